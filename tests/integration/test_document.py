"""schemathesis against a real server: what is sent and what comes back is what the OpenAPI document says."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from http_service import http_service
from service_fixtures import FakeEngine, write_fake_bundle

pytestmark = pytest.mark.integration

# For each operation and kind of generation; DOCUMENT_EXAMPLES=500 takes minutes.
EXAMPLES = os.environ.get("DOCUMENT_EXAMPLES", "10")
TESTS = Path(__file__).parents[1]
CONFIGURATION = """\
[parameters]
"path.name" = "{name}"
"path.version" = "{version}"

# A request that gives itself a millisecond gets an honest 504; it is documented, as every status has to be.
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]

# No schema can say that a text needs a visible character, or no more tokens than the model reads.
[checks.positive_data_acceptance]
enabled = false

# What is wrong with a line is said in its place.
[[operations]]
include-path = "/v1/classify/stream"
checks = {{ negative_data_rejection = {{ enabled = false }} }}
"""


def test_requests_made_from_the_document_are_answered_as_it_says(tmp_path: Path) -> None:
    with http_service(write_fake_bundle(tmp_path / "bundle"), FakeEngine()) as (host, port):
        url = f"http://{host}:{port}"
        model = httpx.get(f"{url}/v1/models").json()["data"][0]
        configuration = tmp_path / "schemathesis.toml"
        configuration.write_text(CONFIGURATION.format(name=model["id"], version=model["version"]), encoding="utf-8")
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration)]
        options = ["--max-examples", EXAMPLES, "--generation-deterministic", "--continue-on-failure", "--no-color"]
        done = subprocess.run(
            [*command, "run", f"{url}/openapi.json", *options],
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": os.pathsep.join(paths())},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr


def paths() -> list[str]:
    """Where the hooks are, and what else this process was told."""
    return [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
