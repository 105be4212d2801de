"""`lengnuan-serve` as a real process: its first request, how it leaves, and how it refuses to start."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from served_process import PATIENCE_S, Served, command, read_all, serve
from service_fixtures import STRANGE, write_fake_bundle

from lengnuan.service.listening import MAX_HEAD_BYTES

pytestmark = pytest.mark.integration

LONG_TEXTS = ["好差很太" * 24_000] * 10  # seconds of work
WEDGED = (sys.executable, str(Path(__file__).parents[1] / "wedged_service.py"))


@pytest.fixture(params=["0", "2"], ids=["one process", "two that answer HTTP"], autouse=True)
def http_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this holds either way."""
    monkeypatch.setenv("LENGNUAN_HTTP_PROCESSES", request.param)


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
        served.wait_for(client, 'lengnuan_items_in_flight{model="default"} 10.0')
        served.process.send_signal(signal.SIGTERM)
        asking.join(PATIENCE_S)
    assert [reply.status_code for reply in replies] == [200]
    assert served.process.returncode == 0


def test_a_client_that_hangs_up_is_noticed(tiny_bundle: Path) -> None:
    patience = ("--drain-delay-s", "0", "--request-timeout-s", str(PATIENCE_S))
    body = json.dumps({"input": LONG_TEXTS}, ensure_ascii=False).encode()
    with serve(tiny_bundle, *patience) as served, httpx.Client(timeout=PATIENCE_S) as client:
        with served.post([], body) as connection:
            connection.sendall(body)
            served.wait_for(client, 'lengnuan_items_in_flight{model="default"} 10.0')
        served.wait_for(client, 'lengnuan_items_total{model="default",outcome="cancelled"} 10.0')
        served.process.send_signal(signal.SIGTERM)
    assert served.process.returncode == 0


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [("/v1/classify", "application/json", 413), ("/v1/classify/stream", "application/x-ndjson", 200)],
)
def test_a_chunked_body_of_50_mb_is_refused_in_flat_memory(
    tiny_bundle: Path, path: str, kind: str, status: int
) -> None:
    chunks = (b" " * 500_000 for _ in range(100))
    with serve(tiny_bundle, "--drain-delay-s", "0") as served, httpx.Client(timeout=PATIENCE_S) as client:
        peak_mb = served.peak_mb()
        reply = client.post(f"{served.url}{path}", content=chunks, headers={"Content-Type": kind})
        growth_mb = served.peak_mb() - peak_mb
        after = served.classify(client)
        served.process.send_signal(signal.SIGINT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, "body_too_large")
    assert (after.status_code, served.process.returncode) == (200, 0)
    assert growth_mb < 20


def test_what_is_open_at_the_end_of_the_patience_is_answered_503(tiny_bundle: Path) -> None:
    patience = ("--drain-delay-s", "0", "--shutdown-timeout-s", "1", "--request-timeout-s", "600")
    with (
        serve(tiny_bundle, *patience) as served,
        httpx.Client(timeout=PATIENCE_S) as client,
        served.post([], b'{"input": "a"}') as connection,
    ):
        served.wait_for(client, "lengnuan_http_requests_in_flight 2.0")
        served.process.send_signal(signal.SIGTERM)
        reply = read_all(connection)
    head, _, body = reply.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503 ")
    assert "connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "not_ready"
    assert [line["status"] for line in served.log if line["message"] == "request"] == [503]
    assert served.process.returncode == 0


@contextmanager
def stuck(folder: Path, *argv: str) -> Iterator[tuple[Served, httpx.Client, socket.socket]]:
    """A service whose engine never comes back, a client for its probes, and the connection that waits for it."""
    bundle, body = write_fake_bundle(folder), json.dumps({"input": STRANGE}).encode()
    argv = (*argv, "--request-timeout-s", "600", "--stalled-after-s", "0.01")
    with (
        serve(bundle, *argv, program=WEDGED) as served,
        httpx.Client(timeout=PATIENCE_S) as client,
        served.post([], body) as connection,
    ):
        connection.sendall(body)
        served.wait_for(client, "running one batch for more than", "/readyz")
        yield served, client, connection


def test_a_stuck_engine_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with stuck(tmp_path, "--drain-delay-s", "0", "--shutdown-timeout-s", "1") as (served, _, connection):
        served.process.send_signal(signal.SIGTERM)
        reply = read_all(connection)
    assert reply.startswith("HTTP/1.1 503 ")
    assert "left behind" in served.log[-1]["message"]
    assert served.process.returncode == 0


def test_the_second_signal_ends_every_wait(tmp_path: Path) -> None:
    with stuck(tmp_path, "--drain-delay-s", "600", "--shutdown-timeout-s", "600") as (served, client, connection):
        served.process.send_signal(signal.SIGTERM)
        served.wait_for(client, "shutting down", "/readyz")
        served.process.send_signal(signal.SIGTERM)
        reply = read_all(connection)
    assert reply.startswith("HTTP/1.1 503 ")
    assert served.process.returncode == 0


def test_ctrl_c_says_how_to_stop_at_once_and_when_it_has(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--drain-delay-s", "0") as served:
        served.process.send_signal(signal.SIGINT)
    first, *_, last = [line["message"] for line in served.log]
    assert "again (Ctrl-C) to stop now" in first
    assert last == "stopped"


def test_a_client_that_would_rather_speak_http2_is_answered(tiny_bundle: Path) -> None:
    upgrade = ["Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    body = b'{"input": "a"}'
    with serve(tiny_bundle, "--drain-delay-s", "0") as served, httpx.Client(timeout=PATIENCE_S) as client:
        with served.post(upgrade, body) as connection:
            served.wait_for(client, "lengnuan_http_requests_in_flight 2.0")
            connection.sendall(body)
            reply = read_all(connection)
        served.process.send_signal(signal.SIGTERM)
    assert reply.startswith("HTTP/1.1 200 ")
    assert not [line for line in served.log if line["level"] == "warning"]


def test_headers_without_end_are_refused_and_the_service_goes_on(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--drain-delay-s", "0") as served, httpx.Client(timeout=PATIENCE_S) as client:
        url, start = httpx.URL(served.url), b"GET /livez HTTP/1.1\r\nX-A: "
        with socket.create_connection((url.host, url.port), timeout=PATIENCE_S) as connection:
            connection.sendall(start + b"a" * (MAX_HEAD_BYTES + 1 - len(start)))
            reply = read_all(connection)
        after = served.classify(client)
        served.process.send_signal(signal.SIGTERM)
    assert reply.startswith("HTTP/1.1 400 ")
    assert after.status_code == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the machine has no IPv6")
def test_the_host_of_all_addresses_is_also_that_of_ipv4(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--drain-delay-s", "0", "--host", "::") as served:
        urls = [f"http://{host}:{httpx.URL(served.url).port}/livez" for host in ("[::1]", "127.0.0.1")]
        found = [httpx.get(url, timeout=PATIENCE_S).status_code for url in urls]
        served.process.send_signal(signal.SIGTERM)
    assert found == [200, 200]


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
    check_refused(
        2, "--max-batch-tokens (LENGNUAN_MAX_BATCH_TOKENS)", "--bundle", str(tiny_bundle), "--max-batch-tokens", "4"
    )


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
