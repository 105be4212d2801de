"""`lengnuan-serve` as a real process, for the tests that start one."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 120


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "lengnuan.service", *argv]


@dataclass(frozen=True)
class Served:
    process: "subprocess.Popen[str]"
    ready: dict[str, Any]
    log: list[dict[str, Any]] = field(default_factory=list)  # what came after `ready`, once the process has ended

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def classify(self, client: httpx.Client, text: str = "好") -> httpx.Response:
        return client.post(f"{self.url}/v1/classify", json={"input": text})

    def post(self, head: list[str], body: bytes) -> socket.socket:
        """A connection on which the head of a request is out, its body announced and not sent."""
        url = httpx.URL(self.url)
        lines = ("POST /v1/classify HTTP/1.1", "Host: a", "Content-Type: application/json", *head)
        connection = socket.create_connection((url.host, url.port), timeout=PATIENCE_S)
        connection.sendall("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode())
        return connection

    def peak_mb(self) -> float:
        """The most memory that the process has had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        return int(kilobytes) / 1024

    def wait_for(self, client: httpx.Client, sample: str, path: str = "/metrics") -> None:
        """Ask until `sample` is in the answer."""
        end = time.monotonic() + PATIENCE_S
        while sample not in client.get(f"{self.url}{path}").text:
            assert time.monotonic() < end


def read_all(connection: socket.socket) -> str:
    """What comes until the other side closes."""
    return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@contextmanager
def serve(bundle: Path, *argv: str, program: Sequence[str] = command()) -> Iterator[Served]:
    """A running service whose model is loaded."""
    options = ("--bundle", str(bundle), "--port", "0", "--device", "cpu", *argv)
    process = subprocess.Popen([*program, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = (json.loads(line) for line in process.stderr)
        served = Served(process, next(line for line in lines if line["message"] == "ready"))
        reading = threading.Thread(target=lambda: served.log.extend(lines))  # a full pipe would stop the service
        reading.start()
        yield served
        process.wait(PATIENCE_S)
        reading.join(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
