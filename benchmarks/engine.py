"""The engines side by side, without a server: milliseconds a batch, and how they compare.

    taskset -c 1 python benchmarks/engine.py [--bundle FOLDER] [--rounds 5] [--write]

One thread. In each round every engine runs every shape once, and the one that begins changes from round to round, so
that a slow spell of the machine hits all of them. The times are processor time of this process: on a busy machine the
clock on the wall says more about the neighbours. Medians over the rounds; ratios are the median of the rounds' own.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import Engine, OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_engine import OpenVinoEngine

RESULTS = Path(__file__).parent / "results" / "engine.json"
BATCHES = (1, 8, 32, 128)
LENGTHS = (16, 32, 64, 128)
BASE = "onnxruntime float32"

Shape = tuple[int, int]
Times = dict[str, dict[Shape, list[float]]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    engines = _engines(bundle)
    shapes = list(itertools.product(arguments.batches, arguments.lengths))
    times = _measure(engines, shapes, bundle, arguments.rounds)
    machine = describe()
    print(machine)
    print(f"bundle {bundle.manifest.name} {bundle.version}, one thread, {arguments.rounds} rounds, processor time")
    table = _table(times, shapes, bundle)
    print("\n".join(_lines(table)))
    if arguments.write:
        content = {"machine": machine, "bundle": bundle.version, "rounds": arguments.rounds, **table}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _engines(bundle: Bundle) -> dict[str, Engine]:
    """Those that this machine has, by name."""
    file = bundle.model_file
    wanted: Sequence[Callable[[], Engine]] = (
        lambda: OnnxEngine(file, "cpu", 1),
        lambda: OpenVinoEngine(file, "float32", 1),
        lambda: OpenVinoEngine(file, "bfloat16", 1, bundle.manifest.max_tokens),
    )
    found = {}
    for make in wanted:
        try:
            engine = make()
        except EngineUnavailable as error:
            print(f"left out: {error}")
        else:
            found[f"{engine.runtime} {engine.precision}"] = engine
    return found


def _measure(engines: dict[str, Engine], shapes: Sequence[Shape], bundle: Bundle, rounds: int) -> Times:
    """Seconds of processor time by engine and shape, one a round; a first round only warms up."""
    times: Times = {name: {shape: [] for shape in shapes} for name in engines}
    names = list(engines)
    inputs = dict(zip(shapes, _batches(shapes, bundle), strict=True))
    for turn in range(rounds + 1):
        for shape in shapes:
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                begin = time.process_time()
                engines[name].run(*inputs[shape])
                if turn:
                    times[name][shape].append(time.process_time() - begin)
    return times


def _batches(shapes: Sequence[Shape], bundle: Bundle) -> Iterator[tuple[Any, Any]]:
    """Full rows of random ids: what an id says costs no time."""
    random = np.random.default_rng(0)
    for shape in shapes:
        yield random.integers(0, bundle.tokenizer.size, shape), np.ones(shape, dtype=np.bool_)


def _table(times: Times, shapes: Sequence[Shape], bundle: Bundle) -> dict[str, Any]:
    """Milliseconds, GFLOP/s and the factor over `BASE` by shape and engine, and the factors' geometric means."""
    rows = []
    for shape in shapes:
        work = _operations(bundle, shape)
        engines = {}
        for name, found in times.items():
            seconds = statistics.median(found[shape])
            ratios = [base / own for base, own in zip(times[BASE][shape], found[shape], strict=True)]
            engines[name] = {
                "ms": round(1e3 * seconds, 2),
                "gflops": round(work / seconds / 1e9, 1),
                "factor": round(statistics.median(ratios), 2),
            }
        rows.append({"batch": shape[0], "length": shape[1], "engines": engines})
    means = {
        name: round(statistics.geometric_mean([row["engines"][name]["factor"] for row in rows]), 2) for name in times
    }
    return {"shapes": rows, "geometric_mean_factor": means}


def _operations(bundle: Bundle, shape: Shape) -> float:
    """Multiplications and additions of the matrix products of a batch; the rest is small."""
    rows, tokens = shape
    encoder = bundle.manifest.encoder
    width, inner = encoder["width"], encoder["feed_forward_width"]
    per_token = 2 * (4 * width * width + 2 * width * inner) + 4 * tokens * width
    return float(rows * tokens * encoder["layers"] * per_token)


def _lines(table: dict[str, Any]) -> Iterator[str]:
    names = list(table["geometric_mean_factor"])
    yield f"{'':14}" + "".join(f"{name:>28}" for name in names)
    yield f"{'batch':>6}{'length':>8}" + f"{'ms':>12}{'GFLOP/s':>9}{'x':>7}" * len(names)
    for row in table["shapes"]:
        cells = (row["engines"][name] for name in names)
        parts = (f"{cell['ms']:12.2f}{cell['gflops']:9.0f}{cell['factor']:7.2f}" for cell in cells)
        yield f"{row['batch']:6d}{row['length']:8d}" + "".join(parts)
    yield f"{'geometric mean':14}" + "".join(f"{table['geometric_mean_factor'][name]:28.2f}" for name in names)


if __name__ == "__main__":
    main()
