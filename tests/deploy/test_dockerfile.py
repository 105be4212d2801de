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


def final_stage() -> list[str]:
    last = max(i for i, line in enumerate(LOGICAL_LINES) if line.startswith("FROM "))
    return LOGICAL_LINES[last:]


def test_two_stages_from_one_base_that_can_be_chosen() -> None:
    assert instructions("FROM") == ["${BASE} AS build", "${BASE}"]
    assert LOGICAL_LINES[0].startswith("ARG BASE=python:3.")


def test_the_final_stage_installs_nothing() -> None:
    assert [line for line in final_stage() if line.startswith("RUN ")] == []
    assert "COPY --from=build /opt/lengnuan /opt/lengnuan" in final_stage()


def test_the_user_is_not_root() -> None:
    (user,) = [line for line in final_stage() if line.startswith("USER ")]
    assert user == "USER 10001:10001"


def test_the_entry_point_gets_the_signals_itself() -> None:
    """In exec form there is no shell in between that would keep SIGTERM to itself."""
    (entry,) = instructions("ENTRYPOINT")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert json.loads(entry)[0] in scripts


def test_installs_the_serving_requirements_only_at_pinned_releases() -> None:
    installs = re.findall(r"pip install ([^&;]+)", " && ".join(instructions("RUN")))
    assert [install.split()[-1].strip("'") for install in installs] == [".[serve]", "onnxruntime-gpu"]
    assert all("-c constraints.txt" in install for install in installs)


def test_the_serving_requirements_hold_no_training_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["serve"]
    names = {re.split(r"[^a-zA-Z0-9-]", requirement)[0].lower() for requirement in wanted}
    assert names & TRAINING_ONLY == set()


def test_one_onnxruntime_replaces_the_other() -> None:
    (choice,) = [line for line in instructions("RUN") if "RUNTIME" in line]
    assert choice.index("pip uninstall --yes onnxruntime ") < choice.index("onnxruntime-gpu")


def test_every_copied_file_exists_and_is_let_in() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"]
    copied = [name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in let_in), name


def test_labels() -> None:
    (labels,) = instructions("LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


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
def test_the_health_check_asks_readyz(status: int, healthy: bool) -> None:
    (check,) = instructions("HEALTHCHECK")
    command = json.loads(check[check.index("CMD ") + 4 :])
    assert command[:2] == ["python3", "-c"]
    with server_that_answers(status) as (port, paths):
        env = os.environ | {"LENGNUAN_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.run([sys.executable, *command[1:]], env=env, capture_output=True, check=False)
    assert (run.returncode == 0) is healthy
    assert paths == ["/readyz"]
