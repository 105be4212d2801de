"""The engines side by side, without a server: milliseconds a batch, and how they compare.

    taskset -c 1 python benchmarks/engine.py [--bundle FOLDER] [--rounds 5] [--write]

One thread. In each round every engine runs every shape once, and the one that begins changes from round to round, so
that a slow spell of the machine hits all of them; then torch multiplies large matrices, which is the ceiling. The times
are processor time of this process: on a busy machine the clock on the wall says more about the neighbours. Medians over
the rounds, of the ceiling the best; ratios are the median of the rounds' own. The last rows are batches of unequal
lengths; the mean over the others is a geometric one.
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
import torch
from goals import Goal, lines
from machine import describe

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import Engine, OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_engine import OpenVinoEngine

RESULTS = Path(__file__).parent / "results" / "engine.json"
BATCHES = (1, 8, 32, 128)
LENGTHS = (16, 32, 64, 128)
BASE = "onnxruntime float32"
# Of the ceiling: rows, inner, columns. The second is the largest of a batch of 2,048 tokens at width 384.
PRODUCTS = ((1024, 1024, 1024), (2048, 384, 1536), (2048, 2048, 2048))

REPEATS = 3
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Rows, tokens of the longest, and whether the others are shorter: of all lengths from 1 up, like texts that meet.
Shape = tuple[int, int, bool]
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
    shapes: list[Shape] = [(*shape, False) for shape in itertools.product(arguments.batches, arguments.lengths)]
    shapes += [(rows, max(arguments.lengths), True) for rows in arguments.batches if rows > 1]
    ceilings: dict[str, float] = {}
    times = _measure(engines, shapes, bundle, arguments.rounds, ceilings)
    named = f"bundle {bundle.manifest.name} {bundle.version}"
    head = [describe(), f"{named}, one thread, {arguments.rounds} rounds, processor time"]
    table = _table(times, shapes, bundle)
    wanted = _goals(table, ceilings)
    print("\n".join([*head, *_lines(table), "", *_ceiling_lines(ceilings), "", *lines(wanted)]))
    if arguments.write:
        content = {"head": head, **table, "ceilings": ceilings, "goals": [goal.told() for goal in wanted]}
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


def _measure(
    engines: dict[str, Engine], shapes: Sequence[Shape], bundle: Bundle, rounds: int, ceilings: dict[str, float]
) -> Times:
    """Seconds of processor time by engine and shape, one a round; a first round only warms up.

    `ceilings` gets the best GFLOP/s of torch's products in each precision, over the rounds.
    """
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
        for precision, rate in _products(engines).items():
            ceilings[precision] = max(rate, ceilings.get(precision, 0.0))
    return times


def _products(engines: dict[str, Engine]) -> dict[str, float]:
    """GFLOP/s of torch on one thread, the best of some shapes, in each precision that an engine computes in."""
    torch.set_num_threads(1)
    found = {}
    for precision in {engine.precision for engine in engines.values()}:
        rates = []
        for rows, inner, columns in PRODUCTS:
            left, right = (torch.ones(shape, dtype=TYPES[precision]) for shape in ((rows, inner), (inner, columns)))
            left @ right
            begin = time.process_time()
            for _ in range(REPEATS):
                left @ right
            rates.append(2e-9 * rows * inner * columns * REPEATS / (time.process_time() - begin))
        found[precision] = max(rates)
    return found


def _goals(table: dict[str, Any], ceilings: dict[str, float]) -> list[Goal]:
    """Of the fastest engine."""
    means: dict[str, float] = table["geometric_mean_factor"]
    best = max(means, key=lambda name: means[name])
    precision = best.rpartition(" ")[2]
    rate = max(row["engines"][best]["gflops"] for row in table["shapes"])
    return [
        Goal(f"{best} over {BASE}, even batches (meant for AMX)", 4.0, 3.0, means[best]),
        Goal(f"{best}: its best GFLOP/s over those of a product of matrices", 0.7, 0.5, rate / ceilings[precision]),
    ]


def _ceiling_lines(ceilings: dict[str, float]) -> Iterator[str]:
    for precision, rate in ceilings.items():
        yield f"products of matrices in {precision}, torch: {rate:.0f} GFLOP/s"


def _batches(shapes: Sequence[Shape], bundle: Bundle) -> Iterator[tuple[Any, Any]]:
    """Random ids: what an id says costs no time."""
    random = np.random.default_rng(0)
    for shape in shapes:
        token_ids = random.integers(0, bundle.tokenizer.size, shape[:2])
        yield token_ids, np.arange(shape[1]) < np.array(_lengths(shape))[:, None]


def _lengths(shape: Shape) -> list[int]:
    rows, longest, ragged = shape
    return [-(-longest * (row + 1) // rows) for row in range(rows)] if ragged else [longest] * rows


def _table(times: Times, shapes: Sequence[Shape], bundle: Bundle) -> dict[str, Any]:
    """Milliseconds, GFLOP/s and the factor over `BASE` by shape and engine, and the factors' geometric means."""
    rows = []
    for shape in shapes:
        work = operations(bundle, shape)
        engines = {}
        for name, found in times.items():
            seconds = statistics.median(found[shape])
            ratios = [base / own for base, own in zip(times[BASE][shape], found[shape], strict=True)]
            engines[name] = {
                "ms": round(1e3 * seconds, 2),
                "gflops": round(work / seconds / 1e9, 1),
                "factor": round(statistics.median(ratios), 2),
            }
        rows.append({"batch": shape[0], "length": shape[1], "ragged": shape[2], "engines": engines})
    even = [row["engines"] for row in rows if not row["ragged"]]
    means = {name: round(statistics.geometric_mean([row[name]["factor"] for row in even]), 2) for name in times}
    return {"shapes": rows, "geometric_mean_factor": means}


def operations(bundle: Bundle, shape: Shape) -> float:
    """Multiplications and additions of the matrix products of a batch's real tokens; the rest is small."""
    encoder = bundle.manifest.encoder
    width, inner = encoder["width"], encoder["feed_forward_width"]
    per_token = 2 * (4 * width * width + 2 * width * inner)
    return float(sum(n * encoder["layers"] * (per_token + 4 * n * width) for n in _lengths(shape)))


def _lines(table: dict[str, Any]) -> Iterator[str]:
    names = list(table["geometric_mean_factor"])
    yield f"{'':14}" + "".join(f"{name:>28}" for name in names)
    yield f"{'batch':>6}{'length':>8}" + f"{'ms':>12}{'GFLOP/s':>9}{'x':>7}" * len(names)
    for row in table["shapes"]:
        cells = (row["engines"][name] for name in names)
        parts = (f"{cell['ms']:12.2f}{cell['gflops']:9.0f}{cell['factor']:7.2f}" for cell in cells)
        yield f"{row['batch']:6d}{'1-' if row['ragged'] else '':>5}{row['length']:<3d}" + "".join(parts)
    yield f"{'mean of even':14}" + "".join(f"{table['geometric_mean_factor'][name]:28.2f}" for name in names)


if __name__ == "__main__":
    main()
