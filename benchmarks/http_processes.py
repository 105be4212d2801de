"""What a request costs the process with the models and those that answer HTTP, in processor time; no model runs.

    python benchmarks/http_processes.py [--processes 0 1 2] [--rounds 3] [--seconds 4] [--write]

The engine answers at once, so that what is left is HTTP, text, queue and what the processes say to each other. A second
divided by the time of the process that has most to do is what a machine with a core for each of them can reach.
`--processes 0` is one process that does it all. Settings, rounds and loads take turns; medians.
"""

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop
from load import Load, put
from machine import describe
from sentences import sentences, taker
from servers import Running, Server, running

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.tokenizer import cut
from lengnuan.service.__main__ import serve
from lengnuan.service.settings import Settings

RESULTS = Path(__file__).parent / "results" / "http_processes.json"
SERVE = "--serve"
LOADS = {"64 clients x 1 text": (64, 1), "16 clients x 32 texts": (16, 32)}
WARM_S = 0.5


class InstantEngine:
    """Knows the bundle's golden answers, without which it could not start, and says 0 to all else."""

    runtime, provider, precision, threads, workers = "none", "cpu", "float32", 1, 1

    def __init__(self, bundle: Bundle) -> None:
        self._known = {tuple(cut(g.ids, bundle.manifest.max_tokens)): g.logits for g in bundle.golden}
        self._none = (0.0,) * len(bundle.labels)

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Logits of the golden texts; 0 for others."""
        rows = (tuple(ids[real].tolist()) for ids, real in zip(token_ids, mask, strict=True))
        return np.array([self._known.get(row, self._none) for row in rows], dtype=np.float32)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--processes", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    arguments = parser.parse_args()
    head = describe()
    client_core, *server_cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {client_core})
    found: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for count in arguments.processes:
            with running(_server(count), arguments.bundle, *(server_cores or [client_core])) as service:
                for name in LOADS:
                    found[name, count].append(_measure(service, name, arguments.seconds))
    rows = [
        {"load": name, "processes": count, **{key: statistics.median(row[key] for row in took) for key in took[0]}}
        for (name, count), took in sorted(found.items(), key=lambda entry: (list(LOADS).index(entry[0][0]), entry[0]))
    ]
    print("\n".join([head, *_table(rows)]))
    if arguments.write:
        RESULTS.write_text(json.dumps({"head": [head], "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _server(count: int) -> Server:
    flags = ("--bundle", "{bundle}", "--port", "{port}", "--http-processes", str(count), "--log-level", "warning")
    command = (str(Path(__file__)), SERVE, *flags, "--cache-size", "0", "--drain-delay-s", "0")
    return Server(f"instant {count}", "", command, "", (), route="/v1/classify")


def _measure(service: Running, load: str, seconds: float) -> dict[str, float]:
    """Requests a second, and microseconds of processor time a request."""
    clients, size = LOADS[load]
    take = taker(sentences())

    def next_request(count: int) -> tuple[list[str], bytes]:
        texts = take(count)
        return list(texts), service.server.request(texts)

    uvloop.run(put(service.port, Load(clients, size, 0.0, WARM_S), next_request))
    before = service.processor_s()
    outcome = uvloop.run(put(service.port, Load(clients, size, 0.0, seconds), next_request))
    spent = {pid: 1e6 * (now - before.get(pid, 0.0)) for pid, now in service.processor_s().items()}
    models, *others = [spent[pid] for pid in sorted(spent, key=lambda pid: (pid != service.pid, pid))]
    requests = len(outcome.answers)
    return {
        **{"requests_s": outcome.requests_s, "errors": outcome.errors, "models_us": models / requests},
        # Each of the others has its part of the requests; together they have all of them.
        **{"http_us": sum(others) / requests, "resident_mb": service.resident_mb()},
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'':24}{'processes':>10}{'requests/s':>12}{'models us':>11}{'HTTP us':>9}{'errors':>8}{'MB':>6}"]
    for row in rows:
        shown = f"{row['load']:24}{row['processes']:10d}{row['requests_s']:12.0f}{row['models_us']:11.0f}"
        lines.append(f"{shown}{row['http_us']:9.0f}{row['errors']:8.0f}{row['resident_mb']:6.0f}")
    return lines


if __name__ == "__main__":
    if SERVE in sys.argv:
        settings = Settings.from_command_line([part for part in sys.argv[1:] if part != SERVE])
        serve(settings, InstantEngine(Bundle.load(settings.bundle)))
    else:
        main()
