"""On a GPU: texts a second and TFLOP/s of the engine by length, and through HTTP; for a machine that has one.

    python benchmarks/gpu.py --peak 989 [--data FILE ...] [--write]

--peak: dense float16 TFLOP/s of the chip, from its maker's page. With --data (dev texts) it first measures float16's
bound into a copy of the bundle and uses it; without, float32. --device cpu tries the script where there is none.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvloop
from engine import operations
from load import Load, put
from machine import describe
from sentences import sentences, taker
from servers import Server, running

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import OnnxEngine

RESULTS = Path(__file__).parent / "results" / "gpu.json"
BATCHES = (1, 16, 64, 256, 1024)
LENGTHS = (16, 32, 64, 128, 256, 512)
LOADS = {"1 client": (1, 1), "64 clients": (64, 1), "512 clients": (512, 1), "16 clients x 256 texts": (16, 256)}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the chip")
    parser.add_argument("--data", type=Path, nargs="+", help="dev texts, to measure float16's bound with")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--rounds", type=int, default=5)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--http-processes", type=int, nargs="+", default=(0, max(1, cores - 2)), help="one run each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over HTTP")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = _measured(arguments, Path(folder) / "bundle")
        half = arguments.device == "cuda" and bundle.manifest.precision.states("float16")
        precision: Literal["float32", "float16"] = "float16" if half else "float32"
        engine = OnnxEngine(bundle.model_file, arguments.device, 0, precision)
        head = [describe(), _chip(), f"bundle {bundle.manifest.name} {bundle.version}, {engine.provider}, {precision}"]
        alone = list(_engine_rows(engine, bundle, arguments))
        http = [row for count in arguments.http_processes for row in _http_rows(bundle, arguments, count)]
    print("\n".join([*head, *_lines(alone, http)]))
    if arguments.write:
        RESULTS.write_text(json.dumps({"head": head, "engine": alone, "http": http}, indent=1) + "\n", encoding="utf-8")


def _measured(arguments: argparse.Namespace, folder: Path) -> Bundle:
    """A copy of the bundle, which states what float16 does if there are texts to tell it by."""
    shutil.copytree(arguments.bundle, folder)
    if arguments.data:
        command = [sys.executable, "-m", "lengnuan.training", "measure", "--bundle", folder, "--data", *arguments.data]
        subprocess.run(command, check=True)
    return Bundle.load(folder)


def _chip() -> str:
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"
    return found.stdout.splitlines()[0].partition(" (UUID")[0]


def _engine_rows(engine: OnnxEngine, bundle: Bundle, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    for length in (length for length in LENGTHS if length <= bundle.manifest.max_tokens):
        for batch in arguments.batches:
            token_ids = random.integers(0, bundle.tokenizer.size, (batch, length))
            mask = np.ones((batch, length), dtype=np.bool_)
            engine.run(token_ids, mask)
            times = []
            for _ in range(arguments.rounds):
                begin = time.perf_counter()
                engine.run(token_ids, mask)
                times.append(time.perf_counter() - begin)
            seconds = statistics.median(times)
            rate = operations(bundle, (batch, length, False)) / seconds / 1e12
            share = rate / arguments.peak if arguments.peak else None
            yield {"batch": batch, "length": length, "texts_s": batch / seconds, "tflops": rate, "of_peak": share}


def _http_rows(bundle: Bundle, arguments: argparse.Namespace, processes: int) -> Iterator[dict[str, Any]]:
    command = ("-m", "lengnuan.service", "--port", "{port}", "--bundle", "{bundle}", "--device", arguments.device)
    command = (*command, "--http-processes", str(processes), "--log-level", "warning")
    server = Server("Lengnuan on a GPU", "", command, "", (), route="/v1/classify")
    take = taker(sentences())

    def next_request(size: int) -> tuple[list[str], bytes]:
        texts = take(size)
        return list(texts), service.server.request(texts)

    with running(server, bundle.path, *sorted(os.sched_getaffinity(0))) as service:
        for name, (clients, size) in LOADS.items():
            found = uvloop.run(put(service.port, Load(clients, size, 1.0, arguments.seconds), next_request))
            yield {
                **{
                    "processes": processes,
                    "load": name,
                    "requests_s": found.requests_s,
                    "texts_s": found.requests_s * size,
                },
                **{"p50_ms": found.quantile_ms(0.5), "p99_ms": found.quantile_ms(0.99), "errors": found.errors},
            }


def _lines(alone: list[dict[str, Any]], http: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'length':>7}{'batch':>7}{'texts/s':>10}{'TFLOP/s':>10}{'of peak':>9}"
    for row in alone:
        share = "" if row["of_peak"] is None else f"{row['of_peak']:.0%}"
        yield f"{row['length']:7d}{row['batch']:7d}{row['texts_s']:10.0f}{row['tflops']:10.3f}{share:>9}"
    yield ""
    yield f"{'HTTP processes':>14}  {'':26}{'requests/s':>12}{'texts/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'errors':>8}"
    for row in http:
        speeds = f"{row['requests_s']:12.0f}{row['texts_s']:10.0f}{row['p50_ms']:9.1f}{row['p99_ms']:9.1f}"
        yield f"{row['processes']:14d}  {row['load']:26}{speeds}{row['errors']:8d}"


if __name__ == "__main__":
    main()
