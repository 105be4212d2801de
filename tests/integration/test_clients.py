"""Other people's clients, and long streams, against a real HTTP server."""

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from http_service import PATIENCE_S, http_service

pytestmark = pytest.mark.integration

TEXTS = ["好", "差", "电影很好看!"]


@pytest.fixture(scope="module")
def address(tiny_bundle: Path) -> Iterator[tuple[str, int]]:
    with http_service(tiny_bundle) as found:
        yield found


def classified(address: tuple[str, int]) -> list[dict[str, Any]]:
    body = {"input": TEXTS, "return_logits": True}
    reply = httpx.post("http://{}:{}/v1/classify".format(*address), json=body, timeout=PATIENCE_S)
    data: list[dict[str, Any]] = reply.json()["data"]
    return data


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("shape", [[3], [3, 1]], ids=str)
@pytest.mark.parametrize("binary", [True, False])
def test_the_inference_protocols_own_client(address: tuple[str, int], shape: list[int], binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    expected = classified(address)
    client = triton.InferenceServerClient("{}:{}".format(*address))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert not client.is_model_ready("another")
    assert client.get_server_metadata()["name"] == "lengnuan"
    version = client.get_model_metadata("tiny")["versions"][0]
    texts = triton.InferInput("text", shape, "BYTES")
    texts.set_data_from_numpy(np.array(TEXTS, dtype=object).reshape(shape), binary_data=binary)
    usual = client.infer("tiny", [texts], request_id="7", model_version=version)
    assert usual.get_response()["id"] == "7"
    assert [label.decode() for label in usual.as_numpy("label").astype(bytes)] == [item["label"] for item in expected]
    assert usual.as_numpy("probabilities") == pytest.approx(np.array([item["probs"] for item in expected]), abs=1e-6)
    assert usual.as_numpy("truncated").tolist() == [item["truncated"] for item in expected]
    names = ("logits", "tokens")
    asked = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
    chosen = client.infer("tiny", [texts], outputs=asked)
    assert chosen.as_numpy("logits") == pytest.approx(np.array([item["logits"] for item in expected]), abs=1e-5)
    assert chosen.as_numpy("tokens").tolist() == [item["tokens"] for item in expected]
    assert chosen.as_numpy("label") is None
    with pytest.raises(triton.InferenceServerException, match=r"\[404\] the model served here is tiny"):
        client.infer("another", [texts])
    client.close()


@contextmanager
def streaming(address: tuple[str, int], *head: str) -> Iterator[socket.socket]:
    """A connection on which the head of a stream's request is out."""
    lines = ("POST /v1/classify/stream HTTP/1.1", "Host: a", "Content-Type: application/x-ndjson", *head)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join((*lines, "Transfer-Encoding: chunked", "Connection: close", "", "")).encode())
        yield connection


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def read_until(connection: socket.socket, mark: bytes, already: bytes = b"") -> bytes:
    """What comes until `mark` has come, or the other side closes."""
    found = already
    while mark not in found and (data := connection.recv(65536)):
        found += data
    return found


def test_an_answer_comes_before_the_body_ends(address: tuple[str, int]) -> None:
    with streaming(address) as connection:
        for n in range(3):
            connection.sendall(chunk(b'{"input": "a"}\n'))
            assert b'"index":%d,' % n in read_until(connection, b'"index":%d,' % n)
        connection.sendall(b"0\r\n\r\n")
        assert read_until(connection, b"0\r\n\r\n").endswith(b"0\r\n\r\n")


def test_a_client_that_waits_for_100_continue(address: tuple[str, int]) -> None:
    with streaming(address, "Expect: 100-continue") as connection:
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.sendall(chunk(b'{"input": "a"}\n') + b"0\r\n\r\n")
        reply = read_until(connection, b"\r\n0\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200")
    assert b'"index":0,' in reply


def test_thousands_of_lines_while_both_sides_talk(address: tuple[str, int]) -> None:
    count = 5000
    with streaming(address) as connection:

        def send() -> None:
            for start in range(0, count, 500):
                lines = (json.dumps({"input": "好差很太"[n % 4] + "ab" * (n % 9)}) for n in range(start, start + 500))
                connection.sendall(chunk("\n".join([*lines, ""]).encode()))
            connection.sendall(b"0\r\n\r\n")

        sending = threading.Thread(target=send)
        sending.start()
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
        sending.join(PATIENCE_S)
    body = reply.partition(b"\r\n\r\n")[2]
    content = bytearray()
    while not body.startswith(b"0\r\n"):
        size, _, body = body.partition(b"\r\n")
        content += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    items = [json.loads(line) for line in content.splitlines()]
    assert [item["index"] for item in items] == list(range(count))
    assert all(item["label"] for item in items)


@pytest.mark.skipif(sys.platform != "linux", reason="counts segments with Linux's TCP_INFO")
def test_a_reply_is_one_segment(address: tuple[str, int]) -> None:
    body = json.dumps({"input": TEXTS}).encode()
    head = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:

        def segments() -> int:
            found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            return int(struct.unpack_from("I", found, 152)[0])  # tcpi_data_segs_in of linux/tcp.h

        for replies in range(1, 4):
            connection.sendall(head % len(body) + body)
            assert read_until(connection, b'"timings":').startswith(b"HTTP/1.1 200")
            assert segments() == replies
