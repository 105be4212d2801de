"""The rules of the house that no linter checks, over every file of the three rooms."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "training", "service")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
VAGUE = {"utils", "util", "common", "helpers", "helper", "core", "base", "manager", "misc"}

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def functions(file: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(file)) if isinstance(node, Function))


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_the_three_rooms_are_found() -> None:
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == set(ROOMS)


def test_no_file_is_over_300_lines() -> None:
    files = [*FILES, *(file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py"))]
    lines = {file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: count for name, count in lines.items() if count > 300} == {}


def test_every_package_is_installed() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for file in FILES}
    places = {name: "lengnuan." + ".".join(folder.parts) for folder in folders for name in [folder.as_posix()]}
    assert set(setup["packages"]) == set(places.values())
    assert setup["package-dir"] == {package: folder for folder, package in places.items()}


@every_file
def test_no_function_is_over_50_lines(file: Path) -> None:
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(file)}
    assert {name: lines for name, lines in lengths.items() if lines > 50} == {}


@every_file
def test_no_function_has_more_than_six_parameters(file: Path) -> None:
    counts = {}
    for node in functions(file):
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        counts[node.name] = len([name for name in names if name not in ("self", "cls")])
    assert {name: count for name, count in counts.items() if count > 6} == {}


@every_file
def test_modules_are_imported_under_one_name_only(file: Path) -> None:
    assert [name for name in imported(file) if name.startswith(".") or name.split(".")[0] in ROOMS] == []


def test_a_runtime_is_imported_where_its_telemetry_is_switched_off() -> None:
    for package, place in (("onnxruntime", "engine.py"), ("openvino", "openvino_engine.py")):
        assert [file.name for file in FILES if package in imported(file)] == [place]


@every_file
def test_nothing_prints(file: Path) -> None:
    calls = [node.func for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"] == []


@every_file
def test_nothing_is_read_that_could_run_code(file: Path) -> None:
    """No pickle and its like: a bundle, a run folder, a key or a table is data.

    What the processes of one training tell each other is pickled, in memory, and never comes from a file.
    """
    spoken = {"loads", "dumps", "HIGHEST_PROTOCOL"} if file == ROOT / "training" / "distributed.py" else set()
    modules = {name.split(".")[0] for name in imported(file)}
    assert modules & {"cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"} == set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
            # what torch raises when it refuses a file
            assert node.attr in {"UnpicklingError", *spoken}, node.lineno
        assert not (isinstance(node, ast.ImportFrom) and node.module == "pickle"), file
        if isinstance(node, ast.Call):
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__", "os.system"), node.lineno
            assert "shell" not in named, node.lineno
            assert named.get("allow_pickle", "False") == "False", node.lineno
            assert called != "torch.load" or named.get("weights_only") == "True", node.lineno


@every_file
def test_names_say_something(file: Path) -> None:
    names = [*file.relative_to(ROOT).with_suffix("").parts]
    names += [node.name for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef | Function)]
    words = {word.lower() for name in names for word in re.findall("[A-Z]?[a-z]+", name)}
    assert words & VAGUE == set()


def public_without_docstring(body: list[ast.stmt], prefix: str = "") -> list[str]:
    found = []
    for node in body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        overload = any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
        if not ast.get_docstring(node) and not overload:
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += public_without_docstring(node.body, f"{node.name}.")
    return found


@every_file
def test_everything_public_has_a_docstring(file: Path) -> None:
    tree = tree_of(file)
    assert ast.get_docstring(tree)
    assert public_without_docstring(tree.body) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_nothing_by_itself(room: str) -> None:
    assert list(imported(ROOT / room / "__init__.py")) == []


@functools.cache
def loaded_by(module: str) -> set[str]:
    """Top-level names in `sys.modules` after a fresh interpreter has imported `module`."""
    code = f"import sys, {module}; sys.stdout.write(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize(
    "module",
    ["model.engine", "model.bundle", "model.rows", "service.app", "service.__main__", "service.classify"],
)
def test_serving_loads_no_training_library(module: str) -> None:
    assert loaded_by(f"lengnuan.{module}") & {"torch", "onnx", "sklearn", "jieba", "matplotlib", "pyarrow"} == set()


@pytest.mark.parametrize("module", ["model.opening", "service.__main__", "service.classify"])
def test_openvino_is_loaded_only_when_it_is_opened(module: str) -> None:
    assert "openvino" not in loaded_by(f"lengnuan.{module}")


@pytest.mark.parametrize("module", ["model.rows", "model.bundle", "service.classify"])
def test_classifying_without_a_server_needs_no_web_framework(module: str) -> None:
    assert loaded_by(f"lengnuan.{module}") & {"fastapi", "starlette", "uvicorn", "prometheus_client"} == set()


def test_the_rooms_see_each_other_in_one_direction_only() -> None:
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "0 broken" in run.stdout
