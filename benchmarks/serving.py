"""The service over HTTP: requests a second and latency for closed-loop clients.

    python benchmarks/serving.py [--bundle FOLDER] [--seconds 8]

Starts `lengnuan-serve` as a process of its own, checks every answer against the engine alone, and runs the clients in
another process, so that the two compete for the cores only as they would in use.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import OnnxEngine, score
from lengnuan.model.probabilities import softmax

LOADS = ((1, 1), (16, 1), (64, 1), (256, 1), (1, 32), (8, 32))  # clients, texts a request
TEXTS = [
    f"{head}，{body}，{tail}{n}"
    for n in range(25)
    for head in ("这家店的服务真的很好", "等了两个小时饭菜全凉了")
    for body in ("房间干净早餐也丰富", "包装破损客服还不理人")
    for tail in ("下次还会再来，推荐给大家", "以后不会再买了，非常失望", "总的来说对得起这个价钱")
]
TOLERANCE = 1e-5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    port = _free_port()
    environment = os.environ | {"LENGNUAN_BUNDLE": str(arguments.bundle), "LENGNUAN_PORT": str(port)}
    environment["LENGNUAN_CACHE_SIZE"] = "0"  # the texts come again and again: what is measured is the model
    command = [sys.executable, "-m", "lengnuan.service"]
    started = time.perf_counter()
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_ready(port, server)
        print(describe())
        characters = statistics.mean(map(len, TEXTS))
        card = _model_card(port)
        texts = f"texts of {characters:.0f} characters and a number"
        runs = f"{card['runtime']} in {card['precision']['compute']}"
        print(f"bundle {bundle.manifest.name} {bundle.version}, {texts}, {runs}")
        print(f"ready after {time.perf_counter() - started:.1f} s, {_resident_mb(server.pid):.0f} MB resident")
        _check_answers(bundle, port, card["precision"])
        print(
            f"{'clients':>8}{'texts each':>12}{'requests/s':>12}{'texts/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'errors':>8}"
        )
        for clients, size in LOADS:
            print(_measure(port, clients, size, arguments.seconds))
        print(f"{_resident_mb(server.pid):.0f} MB resident after the load")
    finally:
        server.terminate()
        server.wait(30)


def _measure(port: int, clients: int, size: int, seconds: float) -> str:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        latencies, errors = pool.apply(_load, (port, clients, size, seconds))
    rate = len(latencies) / seconds
    p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
    return f"{clients:8d}{size:12d}{rate:12.0f}{rate * size:10.0f}{p50:9.1f}{p99:9.1f}{errors:8d}"


def _load(port: int, clients: int, size: int, seconds: float) -> tuple[list[float], int]:
    """Latencies in seconds of all requests that end within `seconds`, and how many were not answered 200."""
    latencies: list[float] = []
    errors = [0]
    stop = time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        turn = 0
        while time.perf_counter() < stop:
            # No text twice: equal ones would be run once.
            batch = [f"{TEXTS[(number + turn + i) % len(TEXTS)]}{number}.{turn + i}" for i in range(size)]
            begin = time.perf_counter()
            status, _ = _classify(connection, batch)
            if status != 200:
                errors[0] += 1
            elif time.perf_counter() < stop:
                latencies.append(time.perf_counter() - begin)
            turn += size

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, errors[0]


def _classify(connection: http.client.HTTPConnection, texts: list[str]) -> tuple[int, Any]:
    body = json.dumps({"input": texts}, ensure_ascii=False).encode()
    connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def _model_card(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/v1/models")
    card: dict[str, Any] = json.loads(connection.getresponse().read())["data"][0]
    return card


def _check_answers(bundle: Bundle, port: int, precision: dict[str, Any]) -> None:
    """Against ONNX Runtime in float32, within what the precision in use allows a probability."""
    reduced = precision["compute"] != "float32"
    allowed = precision["tolerance"] / (2 * bundle.manifest.temperature) if reduced else TOLERANCE
    rows = [bundle.tokenizer.encode(text) for text in TEXTS]
    logits = score(OnnxEngine(bundle.model_file, "cpu"), rows, bundle.manifest.max_tokens)
    expected = softmax(logits / bundle.manifest.temperature)
    status, reply = _classify(http.client.HTTPConnection("127.0.0.1", port, timeout=60), TEXTS)
    found = np.array([item["probs"] for item in reply["data"]])
    worst = float(np.abs(found - expected).max())
    if status != 200 or worst > allowed:
        raise SystemExit(f"answers differ from the engine's by {worst:g}")
    print(f"{len(TEXTS)} answers equal float32's within {allowed:.1g} (largest difference {worst:.1e})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}: start it by hand to see why")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("the server was not ready within 30 s")


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    main()
