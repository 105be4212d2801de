"""How the service's cost grows with the work: cores, length of the texts, clients, texts that wait; beside its engine.

    python benchmarks/scaling.py [--bundle FOLDER] [--rounds 3] [--seconds 3] [--write]

The service runs on the first core, or on the first few, and the clients on the last one. In each round each load comes
once. Figures are medians over the rounds; no text comes twice. docs/benchmarks.md has the rest.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from growth import CLIENTS, CORES, DEPTHS, LENGTHS, LISTS, Point, goals, plot, tables
from load import Load, NextRequest, Outcome, hold, put
from machine import describe, has_bfloat16
from sentences import joined_sentences, sentences, taker
from servers import Running, Server, running

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import score
from lengnuan.model.opening import open_engine

RESULTS = Path(__file__).parent / "results" / "scaling.json"
WARM_S = 0.5
ENGINE_TEXTS = 256  # in a run of the engine alone
HELD_LIST = 16  # texts a request of those that hold a queue
# The engine has a full batch of about 40 sentences and another is handed over ahead: what is sent beyond them waits.
RUNNING_TEXTS = 2 * 40


@dataclass(frozen=True)
class Case:
    """A load on the service, and where it stands in the picture.

    Args:
        panel: one of `growth.PANELS`.
        place: on that panel's axis.
        clients: closed-loop.
        size: texts a request.
        characters: of a text; 0 takes sentences of about 38.
        cores: of the service.
    """

    panel: str
    place: int
    clients: int
    size: int = 1
    characters: int = 0
    cores: int = 1


def cases(cores: int) -> list[Case]:
    """All that is measured on a machine with so many cores, those of one service together."""
    found = [
        *(Case(CORES, n, clients=64, cores=n) for n in range(1, cores + 1)),
        *(Case(LENGTHS, n, clients=16, characters=n) for n in (10, 40, 160, 640, 2000)),
        *(Case(CLIENTS, n, clients=n) for n in (1, 4, 16, 64, 256, 1000)),
        *(Case(LISTS, n, clients=1, size=n) for n in (1, 8, 32, 256, 1024)),
        *(Case(DEPTHS, n, (n + RUNNING_TEXTS) // HELD_LIST, HELD_LIST) for n in (0, 16, 64, 256, 1024, 4096)),
    ]
    return sorted(found, key=lambda case: case.cores)


def main() -> None:
    """Print the tables and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load, after half a second to warm up")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name} and a picture beside it")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core for the service and one for the clients: this process may use only one")
    machine, bundle = describe(), Bundle.load(arguments.bundle)
    os.sched_setaffinity(0, cores[-1:])
    measured: dict[Case, list[dict[str, float]]] = {}
    figures: dict[str, list[float]] = {}
    for number, group in itertools.groupby(cases(len(cores)), key=lambda case: case.cores):
        _measure(list(group), cores[:number], arguments, bundle, (measured, figures))
    points = [
        Point(case.panel, case.place, case.size, {key: statistics.median(r[key] for r in found) for key in found[0]})
        for case, found in measured.items()
    ]
    medians = {name: statistics.median(found) for name, found in figures.items()}
    wanted = goals(points, medians)
    shape = f"{arguments.rounds} rounds of {arguments.seconds:g} s"
    head = [machine, f"bundle {bundle.manifest.name} {bundle.version}, {_precision()}, {shape}"]
    print("\n".join([*head, *tables(points, medians, wanted)]))
    if arguments.write:
        found = {"points": [asdict(p) for p in points], "figures": medians, "goals": [goal.told() for goal in wanted]}
        RESULTS.write_text(json.dumps({"head": head, **found}, indent=1) + "\n", encoding="utf-8")
        plot(points, RESULTS.with_suffix(".svg"))


def _precision() -> str:
    return "bfloat16" if has_bfloat16() else "float32"


def _measure(
    group: Sequence[Case],
    cores: Sequence[int],
    arguments: argparse.Namespace,
    bundle: Bundle,
    found: tuple[dict[Case, list[dict[str, float]]], dict[str, list[float]]],
) -> None:
    """Every round of one service; on one core also what its engine does alone, and a route without batching."""
    measured, figures = found
    alone = _engine_alone(bundle, cores[0]) if len(cores) == 1 else None
    with running(_service(len(cores)), arguments.bundle, *cores) as service:
        if alone:
            figures["start_s"] = [service.start_s]
        for turn in range(arguments.rounds):
            for case in group:
                measured.setdefault(case, []).append(_put(service, case, arguments.seconds))
                print(f"round {turn + 1}, {case}: {measured[case][-1]}", file=sys.stderr, flush=True)
                if alone and (case.panel, case.place) == (CLIENTS, 64):
                    service.pause()
                    figures.setdefault("engine_texts_s", []).append(alone())
                    service.resume()
        figures.setdefault("resident_mb" if alone else f"resident_mb_{len(cores)}_cores", []).append(
            service.resident_mb()
        )
    if alone:
        with running(_direct(), arguments.bundle, *cores) as server:
            for _ in range(arguments.rounds):
                figures.setdefault("direct_p50_ms", []).append(
                    _put(server, Case(CLIENTS, 1, clients=1), arguments.seconds)["p50_ms"]
                )


def _service(threads: int) -> Server:
    """Patient, and with room for the longest queue."""
    patient = ("--request-timeout-s", "60", "--queue-wait-s", "60", "--queue-items", "8192")
    options = ("--log-level", "warning", "--threads", str(threads), *patient)
    command = ("-m", "lengnuan.service", "--port", "{port}", "--bundle", "{bundle}", *options)
    return Server("scaling", "", command, "", (), route="/v1/classify")


def _direct() -> Server:
    """The same engine behind FastAPI, each request by itself: what batching must not cost a lone caller."""
    command = ("benchmarks/peers/fastapi_server.py", "--port", "{port}", "--bundle", "{bundle}")
    return Server("direct", "", (*command, "--engine", "openvino", "--precision", _precision()), "", ())


def _engine_alone(bundle: Bundle, core: int) -> Callable[[], float]:
    """A function that runs texts like the clients' in sorted batches on the service's core; returns texts a second."""
    engine = open_engine(bundle, "cpu", threads=1)
    take = taker(texts_of(0))

    def run() -> float:
        rows = [bundle.tokenizer.encode(text) for text in take(ENGINE_TEXTS)]
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [core])
        try:
            begin = time.perf_counter()
            score(engine, rows, bundle.manifest.max_tokens, batch_tokens=2048)
            return ENGINE_TEXTS / (time.perf_counter() - begin)
        finally:
            os.sched_setaffinity(0, mine)

    run()  # the first run is slower
    return run


_COUNTER = itertools.count()


def texts_of(characters: int) -> Iterator[str]:
    """Texts without end of so many characters; 0: sentences as they are. The number at the end makes each its own."""
    source = joined_sentences()
    for sentence in sentences():
        number = str(next(_COUNTER))
        body = sentence
        while len(body) < characters:
            body += "。" + next(source)
        yield (body[: characters - len(number)] if characters else body) + number


def _put(server: Running, case: Case, seconds: float) -> dict[str, float]:
    load, requests = Load(case.clients, case.size, WARM_S, seconds), _requests(server, case)
    if case.panel == DEPTHS:
        outcome, loop_s = uvloop.run(hold(server.port, load, requests, server.event_loop_s))
        return _figures(outcome) | {"loop_us": 1e6 * loop_s / case.size}
    return _figures(uvloop.run(put(server.port, load, requests)))


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "requests_s": outcome.requests_s,
        "p50_ms": outcome.quantile_ms(0.5),
        "p99_ms": outcome.quantile_ms(0.99),
        "errors": float(outcome.errors),
    }


def _requests(server: Running, case: Case) -> NextRequest:
    take = taker(texts_of(case.characters))

    def next_request(size: int) -> tuple[Sequence[str], bytes]:
        texts = take(size)
        return texts, server.server.request(texts)

    return next_request


if __name__ == "__main__":
    main()
