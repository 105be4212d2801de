"""The init container's script: deploy/components/bundle-s3/fetch_bundle.py."""

import hashlib
import importlib.util
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from checks.tools import DEPLOY

from lengnuan.model.bundle import Bundle

FILE = DEPLOY / "components" / "bundle-s3" / "fetch_bundle.py"
spec = importlib.util.spec_from_file_location("fetch_bundle", FILE)
assert spec is not None
assert spec.loader is not None
fetch_bundle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch_bundle)


@contextmanager
def store(content: bytes, failures: int = 0) -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    """A server of one file that answers 503 a few times first; yields its address and the headers it gets."""
    asked: list[Mapping[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(dict(self.headers))
            good = len(asked) > failures
            self.send_response(200 if good else 503)
            self.send_header("Content-Length", str(len(content) if good else 0))
            self.end_headers()
            self.wfile.write(content if good else b"")

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/models/bundle.tar.gz", asked
        server.shutdown()
        thread.join()


def archive(folder: Path, inside: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, inside)
    return buffer.getvalue()


def asking(url: str, content: bytes, **more: str) -> dict[str, str]:
    return {"BUNDLE_URL": url, "BUNDLE_SHA256": hashlib.sha256(content).hexdigest(), **more}


@pytest.mark.parametrize("inside", [".", "runs/retrain/bundle"])
def test_a_bundle_arrives_and_can_be_loaded(tiny_bundle: Path, tmp_path: Path, inside: str) -> None:
    content = archive(tiny_bundle, inside)
    with store(content) as (url, asked):
        assert fetch_bundle.main(tmp_path, asking(url, content)) == 0
    assert Bundle.load(tmp_path).version == Bundle.load(tiny_bundle).version
    assert "Authorization" not in asked[0]
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in tiny_bundle.iterdir()}


def test_another_checksum_leaves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    content = archive(tiny_bundle, ".")
    with store(content) as (url, _):
        assert fetch_bundle.main(tmp_path, asking(url, b"another")) == 3
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for content in (b"no archive", archive(tmp_path / "in", ".")):
        with store(content) as (url, _):
            assert fetch_bundle.main(tmp_path / "in", asking(url, content)) == 3


def test_a_file_outside_the_folder_is_not_written(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("manifest.json", "../outside.txt"):
            tar.addfile(tarfile.TarInfo(name))
    (tmp_path / "in").mkdir()
    with store(buffer.getvalue()) as (url, _):
        assert fetch_bundle.main(tmp_path / "in", asking(url, buffer.getvalue())) == 3
    assert not (tmp_path / "outside.txt").exists()


def test_it_asks_again(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_bundle.time, "sleep", lambda _: None)
    content = archive(tiny_bundle, ".")
    with store(content, failures=2) as (url, asked):
        assert fetch_bundle.main(tmp_path, asking(url, content)) == 0
    assert len(asked) == 3
    with store(content, failures=99) as (url, asked):
        assert fetch_bundle.main(tmp_path, asking(url, content)) == 1
    assert len(asked) == fetch_bundle.ATTEMPTS


@pytest.mark.parametrize("url", ["", "file:///etc/passwd"])
def test_a_wrong_setting_is_named(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_bundle.main(tmp_path, asking(url, b"")) == 2
    assert "BUNDLE_URL" in capsys.readouterr().err


def test_keys_sign_the_request(tiny_bundle: Path, tmp_path: Path) -> None:
    content = archive(tiny_bundle, ".")
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "cn-north-1"}
    with store(content) as (url, asked):
        assert fetch_bundle.main(tmp_path, asking(url, content, **keys)) == 0
    assert "Credential=key/" in asked[0]["Authorization"]
    assert "/cn-north-1/s3/aws4_request" in asked[0]["Authorization"]


def test_the_signature_is_that_of_the_published_example() -> None:
    """From "Signature Calculations for the Authorization Header", Amazon S3 API reference: GET Object."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"}
    keys["AWS_SECRET_ACCESS_KEY"] = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # noqa: S105 - of the example
    url, more = "https://examplebucket.s3.amazonaws.com/test.txt", {"range": "bytes=0-9"}
    headers = fetch_bundle.signed(url, keys, datetime(2013, 5, 24, tzinfo=UTC), more)
    expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert headers["Authorization"].endswith(f"Signature={expected}")
