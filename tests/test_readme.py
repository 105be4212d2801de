"""What the README says can be looked up: the file tree, and the figures of the embedded model."""

import re
import subprocess
from pathlib import Path

import pytest

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh.md")
DOCS = sorted(str(file.relative_to(ROOT)) for folder in ("docs", "deploy") for file in (ROOT / folder).glob("*.md"))
ROOMS = ("model", "training", "service")


def tree(name: str) -> str:
    blocks = (ROOT / name).read_text(encoding="utf-8").split("```")[1::2]
    return next(block.strip() for block in blocks if block.startswith("\nmodel/"))


def named(name: str) -> set[str]:
    """The paths of the tree."""
    found: set[str] = set()
    room = ""
    for line in tree(name).splitlines():
        if not line.startswith(("├", "└")):
            room = line.split("/")[0]
            continue
        listed = re.match(r"[├└]── ((?:\S+, )*\S+)", line)
        assert listed, line
        found |= {f"{room}/{part.rstrip('/')}" for part in listed[1].split(", ")}
    return found


@pytest.mark.parametrize("name", READMES)
def test_everything_in_the_tree_exists(name: str) -> None:
    assert [path for path in named(name) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", READMES)
def test_every_module_is_in_the_tree(name: str) -> None:
    modules = {f"{room}/{file.name}" for room in ROOMS for file in (ROOT / room).glob("*.py")}
    assert modules - named(name) == {f"{room}/__init__.py" for room in ROOMS} | {"model/__init__.py"}


@pytest.mark.parametrize("name", READMES)
def test_every_top_level_folder_is_in_the_tree(name: str) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    folders = {path.split("/")[0] for path in tracked if "/" in path and not path.startswith(".")}
    assert all(f"{folder}/" in tree(name) for folder in folders)


@pytest.mark.parametrize("name", READMES)
def test_its_figures_are_the_embedded_model_s(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    scores = Bundle.load(DEFAULT_BUNDLE).manifest.scores
    for source, found in scores["test"].items():
        assert re.search(rf"^{source} .* {100 * found['accuracy']:.2f} ", text, re.MULTILINE), source
    assert f"{100 * scores['mean']['accuracy']:.2f}" in text


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md", *DOCS])
def test_links_inside_the_repository_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    folder = (ROOT / name).parent
    assert [target for target in targets if not (folder / target).exists()] == []
