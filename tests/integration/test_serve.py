"""`lengnuan-serve` as a real process: its first request, how it leaves, and how it refuses to start."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.integration

PATIENCE_S = 120
LONG_TEXTS = ["好差很太" * 24_000] * 10  # seconds of work


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "lengnuan.service", *argv]


@dataclass(frozen=True)
class Served:
    process: "subprocess.Popen[str]"
    ready: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def classify(self, client: httpx.Client, text: str = "好") -> httpx.Response:
        return client.post(f"{self.url}/v1/classify", json={"input": text})

    def wait_for(self, client: httpx.Client, sample: str) -> None:
        """Scrape until `sample` is there."""
        end = time.monotonic() + PATIENCE_S
        while sample not in client.get(f"{self.url}/metrics").text:
            assert time.monotonic() < end


@contextmanager
def serve(bundle: Path, *argv: str) -> Iterator[Served]:
    """A running service whose model is loaded."""
    process = subprocess.Popen(
        command("--bundle", str(bundle), "--port", "0", "--device", "cpu", *argv), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        lines = (json.loads(line) for line in process.stderr)
        ready = next(line for line in lines if line["message"] == "ready")
        reading = threading.Thread(target=process.stderr.read)  # a full pipe would stop the service
        reading.start()
        yield Served(process, ready)
        process.wait(PATIENCE_S)
        reading.join(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_printed_first_request_works_and_sigterm_ends_with_0(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--drain-delay-s", "0") as served:
        _, _, url, _, header, _, body = shlex.split(served.ready["curl"])
        name, _, content = header.partition(": ")
        reply = httpx.post(url, content=body.encode(), headers={name: content}, timeout=PATIENCE_S)
        served.process.send_signal(signal.SIGTERM)
    assert reply.status_code == 200
    assert reply.json()["data"][0]["label"] in {"negative", "positive"}
    assert served.process.returncode == 0


def test_while_draining_it_answers_everything_but_readiness(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--drain-delay-s", "600") as served, httpx.Client(timeout=PATIENCE_S) as client:
        before = served.classify(client)
        served.process.send_signal(signal.SIGTERM)
        while client.get(f"{served.url}/readyz").status_code == 200:
            pass
        during = [served.classify(client) for _ in range(20)]
        alive = client.get(f"{served.url}/livez")
        served.process.send_signal(signal.SIGTERM)  # asked twice: no more waiting
    assert "Connection" not in before.headers
    assert {(reply.status_code, reply.headers["Connection"]) for reply in during} == {(200, "close")}
    assert alive.status_code == 200
    assert served.process.returncode == 0


def test_what_is_in_flight_is_finished(tiny_bundle: Path) -> None:
    patience = ("--drain-delay-s", "0", "--request-timeout-s", str(PATIENCE_S), "--shutdown-timeout-s", str(PATIENCE_S))
    replies: list[httpx.Response] = []
    with serve(tiny_bundle, *patience) as served, httpx.Client(timeout=PATIENCE_S) as client:

        def ask() -> None:
            replies.append(httpx.post(f"{served.url}/v1/classify", json={"input": LONG_TEXTS}, timeout=PATIENCE_S))

        asking = threading.Thread(target=ask)
        asking.start()
        served.wait_for(client, "lengnuan_items_in_flight 10.0")
        served.process.send_signal(signal.SIGTERM)
        asking.join(PATIENCE_S)
    assert [reply.status_code for reply in replies] == [200]
    assert served.process.returncode == 0


def test_a_client_that_hangs_up_is_noticed(tiny_bundle: Path) -> None:
    patience = ("--drain-delay-s", "0", "--request-timeout-s", str(PATIENCE_S))
    body = json.dumps({"input": LONG_TEXTS}, ensure_ascii=False).encode()
    lines = ("POST /v1/classify HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join((*lines, "", ""))
    with serve(tiny_bundle, *patience) as served, httpx.Client(timeout=PATIENCE_S) as client:
        url = httpx.URL(served.url)
        with socket.create_connection((url.host, url.port)) as connection:
            connection.sendall(head.encode() + body)
            served.wait_for(client, "lengnuan_items_in_flight 10.0")
        served.wait_for(client, 'lengnuan_items_total{outcome="cancelled"} 10.0')
        served.process.send_signal(signal.SIGTERM)
    assert served.process.returncode == 0


def test_a_chunked_body_of_50_mb_is_refused_and_the_service_goes_on(tiny_bundle: Path) -> None:
    chunks = (b" " * 500_000 for _ in range(100))
    with serve(tiny_bundle, "--drain-delay-s", "0") as served, httpx.Client(timeout=PATIENCE_S) as client:
        headers = {"Content-Type": "application/json"}
        reply = client.post(f"{served.url}/v1/classify", content=chunks, headers=headers)
        after = served.classify(client)
        served.process.send_signal(signal.SIGINT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert after.status_code == 200
    assert served.process.returncode == 0


def check_refused(code: int, message: str, *argv: str) -> None:
    """It ends at once with this code, and its last line says why, without a traceback."""
    done = subprocess.run(
        command("--port", "0", *argv), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    last = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, last["level"]) == (code, "error")
    assert message in last["message"]
    assert "traceback" not in done.stderr.lower()


def test_a_bad_setting_is_2(tiny_bundle: Path) -> None:
    check_refused(2, "LENGNUAN_MAX_TEXTS", "--bundle", str(tiny_bundle), "--max-texts", "none")


def test_a_limit_that_does_not_fit_the_model_is_2(tiny_bundle: Path) -> None:
    check_refused(2, "max_batch_tokens", "--bundle", str(tiny_bundle), "--max-batch-tokens", "4")


def test_no_bundle_is_3(tmp_path: Path) -> None:
    check_refused(3, "not a bundle", "--bundle", str(tmp_path))


def test_a_damaged_bundle_is_3(bundle_copy: Path) -> None:
    graph = bundle_copy / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    check_refused(3, "sha256", "--bundle", str(bundle_copy))


def test_missing_cuda_is_4(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_refused(4, "device cuda", "--bundle", str(tiny_bundle), "--device", "cuda")


def test_a_port_in_use_is_5(tiny_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        check_refused(5, "can't listen", "--bundle", str(tiny_bundle), "--port", str(taken.getsockname()[1]))
