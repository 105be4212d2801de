"""Over real sockets: clients who leave, probes while everything is full, and memory that stops growing."""

import itertools
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from http_service import PATIENCE_S, http_service
from service_fixtures import FakeEngine, write_fake_bundle

from lengnuan.model.bundle import DEFAULT_BUNDLE

pytestmark = pytest.mark.integration

URL = "/v1/classify"
TEXTS = ("".join(characters) for characters in itertools.product("好差很太不看", repeat=4))  # no two alike


def head(body: bytes) -> bytes:
    lines = (f"POST {URL} HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode()


def sample(client: httpx.Client, name: str) -> float:
    """The sum of the series whose line begins like this."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_of_500_clients_who_send_and_leave_no_text_is_run(tmp_path: Path) -> None:
    engine = FakeEngine()
    with (
        http_service(write_fake_bundle(tmp_path), engine, cache_size=0) as address,
        httpx.Client(base_url="http://{}:{}".format(*address), timeout=PATIENCE_S) as client,
        socket.create_connection(address, timeout=PATIENCE_S) as first,
    ):
        engine.rows.clear()
        engine.entered.clear()
        engine.gate.clear()
        body = json.dumps({"input": next(TEXTS)}).encode()
        first.sendall(head(body) + body)
        assert engine.entered.wait(30)
        for text in itertools.islice(TEXTS, 500):
            body = json.dumps({"input": text}).encode()
            with socket.create_connection(address, timeout=PATIENCE_S) as leaving:
                leaving.sendall(head(body) + body)
        gone = f'lengnuan_http_requests_total{{method="POST",route="{URL}",status="499"}}'
        while sample(client, gone) < 500:
            pass
        assert sample(client, "lengnuan_items_in_flight") == 1
        engine.gate.set()
        assert first.recv(12) == b"HTTP/1.1 200"
        assert client.post(URL, json={"input": next(TEXTS)}).status_code == 200
        received = sample(client, "lengnuan_items_received_total")
        assert sample(client, 'lengnuan_items_total{model="default",outcome="cancelled"}') == received - 2
    assert len(engine.rows) == 2


def test_a_queue_that_is_full_and_stays_so_is_ready_and_alive(tmp_path: Path) -> None:
    engine = FakeEngine()
    with (
        http_service(write_fake_bundle(tmp_path), engine, cache_size=0, max_texts=8, queue_items=8) as address,
        httpx.Client(base_url="http://{}:{}".format(*address), timeout=PATIENCE_S) as client,
        socket.create_connection(address, timeout=PATIENCE_S) as first,
        socket.create_connection(address, timeout=PATIENCE_S) as second,
    ):
        engine.entered.clear()
        engine.gate.clear()
        for connection, count in ((first, 1), (second, 8)):
            body = json.dumps({"input": list(itertools.islice(TEXTS, count))}).encode()
            connection.sendall(head(body) + body)
            assert engine.entered.wait(30)
        while sample(client, 'lengnuan_queue_items{model="default",priority="interactive"}') < 8:
            pass
        refused = [client.post(URL, json={"input": "好"}) for _ in range(100)]
        probes = [client.get(path).status_code for path in ("/livez", "/readyz", "/startupz") for _ in range(30)]
        engine.gate.set()
        assert first.recv(12) == second.recv(12) == b"HTTP/1.1 200"
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in refused} == {(429, "overloaded")}
    assert all(re.fullmatch("[1-9][0-9]?", reply.headers["Retry-After"]) for reply in refused)
    assert set(probes) == {200}


OPENED = """
import random, resource, sys
from pathlib import Path
import numpy as np
from lengnuan.model.bundle import Bundle
from lengnuan.model.errors import is_out_of_memory
from lengnuan.model.opening import open_engine

def memory_mb(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024

bundle = Bundle.load(Path(sys.argv[1]))
engine = open_engine(bundle, "cpu", sys.argv[2], "float32", threads=1)

def run(rows, tokens):
    ids = np.full((rows, tokens), 5, dtype=np.int64)
    engine.run(ids, np.ones(ids.shape, dtype=np.bool_))
"""

RANDOM_SHAPES = """
draw, budget = random.Random(0), 1024
for tokens in (bundle.manifest.max_tokens, 32):
    run(budget // tokens, tokens)
found = []
for _ in range(3):
    for _ in range(60):
        tokens = draw.randrange(1, bundle.manifest.max_tokens + 1)
        run(draw.randrange(1, budget // tokens + 1), tokens)
    found.append(memory_mb("VmRSS"))
print(*found)
"""

TOO_LARGE = """
run(4, 32)
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (int(memory_mb("VmSize") + 200) << 20, before[1]))
try:
    run(1 << 14, bundle.manifest.max_tokens)
except Exception as error:
    print(is_out_of_memory(error), type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_AS, before)
run(2, 32)  # OpenVINO has to see another shape than the one that ran last
"""


def output(program: str, engine: str) -> str:
    """What a program prints that begins with an open engine, in a process of its own."""
    if engine == "openvino":
        pytest.importorskip("openvino")
    command = [sys.executable, "-c", OPENED + program, str(DEFAULT_BUNDLE.parent / "tiny"), engine]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_onnx_runtime_s_memory_stops_growing_under_random_shapes() -> None:
    found = output(RANDOM_SHAPES, "onnxruntime")
    first, second, third = map(float, found.split())
    assert third <= 1.05 * first, found
    assert third <= 1.02 * second, found


@linux
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_runtime_without_memory_says_so_in_words_that_are_known_and_goes_on(engine: str) -> None:
    found = output(TOO_LARGE, engine)
    assert found.startswith("True "), found
