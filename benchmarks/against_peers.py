"""Lengnuan beside other servers: the same weights, texts and core, in turns; requests a second and latency.

    python benchmarks/against_peers.py [--install] [--data FOLDER] [--rounds 3] [--seconds 4] [--write]

Every server runs on one core and the clients on another. In each round each server gets each load once, and the one
that begins changes; who is not in turn is stopped (SIGSTOP). Figures are medians over the rounds, ratios the median of
the rounds' own. After each load a random sample of the answers is checked against ONNX Runtime in float32. Servers have
environments of their own under runs/peers; `--install` makes them. docs/benchmarks.md has the rest.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from comparison import ASSEMBLY, CLIENTS, LISTS, MIXED, OURS, goals, plot, table
from load import Load, NextRequest, Outcome, put
from machine import describe, has_bfloat16
from sentences import joined_sentences, reviews, sentences, taker
from servers import Running, Server, install, running

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import OnnxEngine, score
from lengnuan.model.probabilities import softmax

RESULTS = Path(__file__).parent / "results" / "peers.json"
WARM_S = 1.0
SHAPES = {load: (clients, 1) for load, clients in CLIENTS.items()} | {LISTS: (8, 32), MIXED: (64, 1)}
SAMPLE = 24  # texts of each load of each server whose answers are checked
FLOAT32_TOLERANCE = 1e-5
NO_OP = Server("no-op", "", ("benchmarks/peers/no_op.py", "--port", "{port}"), "", ())
# Clients that could do no more than this many times what the fastest server does would be part of what is measured.
ENOUGH = 5.0


def roster(reduced: bool) -> list[Server]:
    """Lengnuan and its peers; `reduced`: this CPU has bfloat16, and so do those that can use it."""
    half = "bfloat16" if reduced else "float32"
    port, bundle = ("--port", "{port}"), ("--bundle", "{bundle}")
    ours = (
        "-m",
        "lengnuan.service",
        *port,
        *bundle,
        "--log-level",
        "warning",
        "--threads",
        "1",
        "--request-timeout-s",
        "60",
    )
    alone, mosec, lit = (f"benchmarks/peers/{name}_server.py" for name in ("fastapi", "mosec", "litserve"))
    onnx = ("onnxruntime",)
    return [
        Server(OURS, "", ours, half, ("lengnuan", "openvino", "uvicorn"), route="/v1/classify"),
        Server("FastAPI + ONNX", "fastapi", (alone, *port, *bundle), "float32", ("fastapi", "uvicorn", *onnx)),
        Server("mosec + ONNX", "mosec", (mosec, *port, *bundle), "float32", ("mosec", *onnx)),
        Server("LitServe + ONNX", "litserve", (lit, *port, *bundle), "float32", ("litserve", *onnx)),
        Server(
            ASSEMBLY, "mosec", (mosec, *port, *bundle, "--engine", "openvino", "--precision", half), half,
            ("mosec", "openvino"), product=False,
        ),
    ]  # fmt: skip


class Reference:
    """What the answers have to be: ONNX Runtime in float32, on one thread, each text as the tokenizer cuts it."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._engine = OnnxEngine(bundle.model_file, "cpu", threads=1)

    def tolerance(self, precision: str) -> float:
        """How far a probability may be off (docs/bundle.md, bfloat16)."""
        if precision == "float32":
            return FLOAT32_TOLERANCE
        return self._bundle.manifest.precision.bound("bfloat16") / (2 * self._bundle.manifest.temperature)

    def differences(self, server: Server, outcome: Outcome) -> list[float]:
        """Of a random sample of answers, the largest difference of a probability a text."""
        size = len(outcome.answers[0][0]) if outcome.answers else 1
        sample = random.Random(0).sample(outcome.answers, min(len(outcome.answers), max(1, SAMPLE // size)))
        found: list[float] = []
        for texts, body in sample:
            rows = [self._bundle.tokenizer.encode(text) for text in texts]
            logits = score(self._engine, rows, self._bundle.manifest.max_tokens)
            expected = softmax(logits / self._bundle.manifest.temperature)
            try:
                given = np.asarray(server.read(json.loads(body)), dtype=np.float64)
            except (ValueError, KeyError, TypeError):  # not such a reply
                given = np.empty(0)
            right_shape = given.shape == expected.shape
            found += np.abs(given - expected).max(axis=1).tolist() if right_shape else [float("inf")] * len(texts)
        return found


@dataclass
class Record:
    """What is known of one server so far: its texts, figures by load and round, and the checks of its answers."""

    running: Running
    short: Iterator[str]
    mixed: Iterator[str]
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    differences: list[float] = field(default_factory=list)
    resident_mb: float = 0.0

    def requests(self, load: str) -> NextRequest:
        """Makes requests of texts that this server has not seen."""
        take = taker(self.mixed if load == MIXED else self.short)

        def next_request(size: int) -> tuple[Sequence[str], bytes]:
            texts = take(size)
            return texts, self.running.server.request(texts)

        return next_request


def main() -> None:
    """Print the tables; ends with 1 if an answer of ours was outside the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--data", type=Path, help="folder with hotel and chnsenticorp, for the mixed lengths")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load, after one to warm up")
    parser.add_argument("--install", action="store_true", help="make the peers' environments that are missing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the peers, these")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name} and a picture beside it")
    arguments = parser.parse_args()
    client_core, server_core = _two_cores()
    bundle, machine = Bundle.load(arguments.bundle), describe()
    os.sched_setaffinity(0, {client_core})
    reference = Reference(bundle)
    servers = _wanted(arguments.only, arguments.install)
    limits = _client_limits(arguments, server_core)
    with contextlib.ExitStack() as stack:
        records = [_start(stack, server, arguments, server_core) for server in servers]
        for turn in range(arguments.rounds):
            for load in SHAPES:
                first = turn % len(records)
                for record in records[first:] + records[:first]:
                    _take_turn(record, load, arguments.seconds, reference)
    results = _results(records, reference, limits)
    head = [
        machine,
        f"bundle {bundle.manifest.name} {bundle.version}; servers on core {server_core}, clients on core {client_core}",
        f"{arguments.rounds} rounds of {arguments.seconds:g} s; every tokenizer is Lengnuan's own",
        f"mixed lengths: {'reviews of ' + arguments.data.name if arguments.data else 'joined sentences'}",
        "the clients against a server that does nothing, requests/s: "
        + ", ".join(f"{load} {rate:.0f}" for load, rate in limits.items()),
    ]
    print("\n".join([*head, *table(results)]))
    if arguments.write:
        RESULTS.write_text(json.dumps({"head": head, **results}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        plot(results, RESULTS.with_suffix(".svg"))
    _refuse_wrong(results)


def _two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core for the servers and one for the clients: this process may use only one")
    return cores[0], cores[-1]


def _wanted(only: Sequence[str] | None, may_install: bool) -> list[Server]:
    """Those that are installed; with `may_install` all that can be."""
    found = []
    for server in roster(has_bfloat16()):
        if only and server.name not in (OURS, *only):
            continue
        if may_install and server.environment:
            install(server.environment)
        if server.installed():
            found.append(server)
        else:
            print(f"left out: {server.name}: not installed; --install does it", file=sys.stderr)
    return found


def _client_limits(arguments: argparse.Namespace, core: int) -> dict[str, float]:
    """Requests a second by load that the clients reach against a server that does nothing."""
    found = {}
    with running(NO_OP, arguments.bundle, core) as nothing:
        record = Record(nothing, sentences(), sentences())
        for load in ("1 client", "64 clients", "256 clients"):
            shape = Load(*SHAPES[load], warm_s=0.2, seconds=min(2.0, arguments.seconds))
            found[load] = uvloop.run(put(nothing.port, shape, record.requests(load))).requests_s
    return found


def _start(stack: contextlib.ExitStack, server: Server, arguments: argparse.Namespace, core: int) -> Record:
    print(f"starting {server.name}", file=sys.stderr, flush=True)
    started = stack.enter_context(running(server, arguments.bundle, core))
    if server.name == OURS:
        started.server = replace(server, precision=_stated_precision(started.port))
    started.pause()
    return Record(started, sentences(), reviews(arguments.data) if arguments.data else joined_sentences())


def _stated_precision(port: int) -> str:
    """What Lengnuan computes in, as it says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as reply:
        return str(json.load(reply)["data"][0]["precision"]["compute"])


def _take_turn(record: Record, load: str, seconds: float, reference: Reference) -> None:
    """One load on one server, and the check of its answers."""
    server = record.running
    server.resume()
    gc.collect()
    gc.disable()  # a pause of the clients would count as latency of the server
    try:
        outcome = uvloop.run(put(server.port, Load(*SHAPES[load], WARM_S, seconds), record.requests(load)))
        record.resident_mb = max(record.resident_mb, server.resident_mb())
    finally:
        gc.enable()
        server.pause()
    figures = {
        "requests_s": outcome.requests_s,
        "p50_ms": outcome.quantile_ms(0.5),
        "p99_ms": outcome.quantile_ms(0.99),
        "errors": float(outcome.errors),
    }
    record.rounds[load].append(figures)
    record.differences += reference.differences(server.server, outcome)
    words = ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
    print(f"{load}, {server.server.name}: {words}", file=sys.stderr, flush=True)


def _results(records: Sequence[Record], reference: Reference, limits: dict[str, float]) -> dict[str, Any]:
    servers = {}
    for record in records:
        server = record.running.server
        tolerance = reference.tolerance(server.precision)
        servers[server.name] = {
            "precision": server.precision,
            "versions": server.versions(),
            "product": server.product,
            "start_s": record.running.start_s,
            "resident_mb": record.resident_mb,
            "tolerance": tolerance,
            "checked": len(record.differences),
            "outside": sum(not difference <= tolerance for difference in record.differences),
            "largest_difference": max(record.differences, default=float("nan")),
        }
    cells = {load: {record.running.server.name: record.rounds[load] for record in records} for load in SHAPES}
    products = [name for name, facts in servers.items() if facts["product"] and name != OURS]
    found = [goal.told() for goal in goals(cells, products)]
    return {
        "client_limits": limits,
        "texts_a_request": {load: size for load, (_, size) in SHAPES.items()},
        "servers": servers,
        "cells": cells,
        "goals": found,
    }


def _refuse_wrong(results: dict[str, Any]) -> None:
    """Say what makes the figures doubtful.

    Raises:
        SystemExit: an answer of ours was outside the tolerance.
    """
    single = [statistics.median(r["requests_s"] for r in rounds) for rounds in results["cells"]["64 clients"].values()]
    if results["client_limits"]["64 clients"] < ENOUGH * max(single):
        print("the clients are part of what was measured: they can do little more than the fastest server")
    for name, facts in results["servers"].items():
        if facts["outside"]:
            share = f"{facts['outside']} of {facts['checked']} answers"
            print(f"{name}: {share} are off by more than {facts['tolerance']:.1e}")
    if results["servers"][OURS]["outside"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
