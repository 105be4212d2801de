"""The commands of docs/http.md, run as they stand against the embedded bundle."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_service import PATIENCE_S, http_service

from lengnuan.model.bundle import DEFAULT_BUNDLE

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
BLOCKS = [block for block in PAGE.split("```")[1::2] if block.startswith("\n") and "curl" in block]
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http_service(DEFAULT_BUNDLE) as (host, port):
        yield f"http://{host}:{port}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.findall(f"{URL}(/[a-z0-9/]+)", block)[0])
def test_a_command_of_the_page_works(url: str, block: str) -> None:
    script = block.replace(URL, url).replace(
        "curl -s", f"curl -sS --fail-with-body --max-time {PATIENCE_S} -w '\\n' -s"
    )
    run = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if line]
    assert len(lines) >= block.count("curl")
    assert all(json.loads(line) for line in lines)


def test_the_page_shows_every_route_that_is_posted_to() -> None:
    shown = set(re.findall(f"{URL}(/[a-z0-9/]+)", "".join(BLOCKS)))
    assert shown >= {
        *(f"/v1/{name}" for name in ("classify", "classify/stream", "tokenize", "explain")),
        *("/predict", "/info", "/v2/models/default", "/v2/models/default/infer"),
    }
