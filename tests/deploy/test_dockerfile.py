import fnmatch
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
LOGICAL_LINES = [
    re.sub(r"\s+", " ", line).strip()
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8")).splitlines()
    if line.strip() and not line.startswith("#")
]
TRAINING_ONLY = {"torch", "onnx", "onnxscript", "scikit-learn", "jieba", "matplotlib", "tensorboard", "pytest"}


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in LOGICAL_LINES if line.startswith(f"{name} ")]


def stage(name: str) -> list[str]:
    begin = next(i for i, line in enumerate(LOGICAL_LINES) if line.startswith("FROM ") and line.endswith(f" AS {name}"))
    rest = LOGICAL_LINES[begin + 1 :]
    end = next((i for i, line in enumerate(rest) if line.startswith("FROM ")), len(rest))
    return rest[:end]


def of(name: str, instruction: str) -> str:
    (line,) = [line for line in stage(name) if line.startswith(f"{instruction} ")]
    return line.removeprefix(f"{instruction} ")


def test_the_bases_can_be_chosen_and_the_cpu_service_is_built_by_default() -> None:
    assert LOGICAL_LINES[0].startswith("ARG BASE=python:3.")
    assert LOGICAL_LINES[1] == "ARG GPU_BASE=${BASE}"
    assert instructions("FROM")[-3:] == ["${BASE} AS train", "${GPU_BASE} AS serve-gpu", "${BASE} AS serve-cpu"]


@pytest.mark.parametrize(
    ("name", "built"), [("serve-cpu", "build-cpu"), ("serve-gpu", "build-gpu"), ("train", "build-train")]
)
def test_a_final_stage_takes_what_was_installed_and_runs_it_as_a_user(name: str, built: str) -> None:
    assert [line for line in stage(name) if line.startswith("RUN ")] == []
    assert of(name, "COPY") == f"--from={built} /opt/lengnuan /opt/lengnuan"
    assert of(name, "USER") == "10001:10001"
    assert of(name, "STOPSIGNAL") == "SIGTERM"
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in of(name, "LABEL")


@pytest.mark.parametrize("name", ["serve-cpu", "serve-gpu", "train"])
def test_the_entry_point_gets_the_signals_itself(name: str) -> None:
    """In exec form there is no shell in between that would keep SIGTERM to itself."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert json.loads(of(name, "ENTRYPOINT"))[0] in scripts


def test_everything_is_installed_at_pinned_releases() -> None:
    installs = re.findall(r"pip install ([^&;]+)", " && ".join(instructions("RUN")))
    found = [install.split()[-1].strip("'") for install in installs]
    assert found == [".[serve,tracing]", ".[serve,tracing]", "onnxruntime-gpu", ".[train,s3]"]
    assert all("-c constraints.txt" in install for install in installs)


def test_the_serving_requirements_hold_no_training_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["serve"] + extras["tracing"]
    names = {re.split(r"[^a-zA-Z0-9-]", requirement)[0].lower() for requirement in wanted}
    assert names & TRAINING_ONLY == set()


def test_one_onnxruntime_replaces_the_other() -> None:
    choice = of("build-gpu", "RUN")
    assert choice.index("pip uninstall --yes onnxruntime ") < choice.index("onnxruntime-gpu")


def test_every_copied_file_exists_and_is_let_in() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"]
    copied = [name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in let_in), name


@contextmanager
def server_that_answers(status: int) -> Iterator[tuple[int, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
@pytest.mark.parametrize("name", ["serve-cpu", "serve-gpu"])
def test_the_health_check_asks_readyz(status: int, healthy: bool, name: str) -> None:
    check = of(name, "HEALTHCHECK")
    command = json.loads(check[check.index("CMD ") + 4 :])
    assert command[:2] == ["python3", "-c"]
    with server_that_answers(status) as (port, paths):
        env = os.environ | {"LENGNUAN_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.run([sys.executable, *command[1:]], env=env, capture_output=True, check=False)
    assert (run.returncode == 0) is healthy
    assert paths == ["/readyz"]
