"""Our training loop beside the Trainer of transformers: tokens a second and the loss, same network, start and texts.

    python benchmarks/training.py [--install] [--data FOLDER] [--rows 1500] [--write]

Each loop is a process; both are on the same core, with one thread, and take turns of a few steps. Seconds are processor
time, so that other work on the machine counts little; the ratio is the median of the turns' own.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from goals import Goal, lines
from machine import describe, has_bfloat16
from sentences import OPENINGS, joined_sentences, labelled_reviews
from training_loops import LOOPS, STEPS_A_TURN, Task, Turns, task_of

from lengnuan.training.examples import Example

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "training.json"
LISTED = Path(__file__).parent / "peers" / "trainer.txt"
PACKAGES = ROOT / "runs" / "peers" / "trainer"
AIM = 1.5
# Losses of the last third that are this close are the same: the two see the rows in different batches.
SAME_LOSS = 0.05
WRONG_LABELS = 0.1  # of the built-in texts, so that there is a loss to come down to


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with hotel and chnsenticorp; else built-in sentences")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--batch-tokens", type=int, default=4096, help="of a step of ours; the other has as many rows")
    parser.add_argument("--install", action="store_true", help="put what the Trainer needs under runs/peers/trainer")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    precision = "bfloat16" if has_bfloat16() else "float32"
    if arguments.loop:
        rows = examples(arguments.data, arguments.rows)
        _be_a_loop(arguments.loop, task_of(rows, arguments.batch_tokens, precision))
        return
    if arguments.install:
        _install()
    if not PACKAGES.exists():
        raise SystemExit("what the Trainer needs is not installed: --install does it")
    machine = f"{describe()}\n{_versions()}"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    turns = _take_turns(arguments)
    results = {"precision": precision, **summary(turns)}
    texts = f"reviews of {arguments.data.name}" if arguments.data else "built-in sentences"
    size = f"steps of {arguments.batch_tokens} tokens"
    head = [machine, f"{arguments.rows} rows of {texts}, {size}, one thread, {precision}"]
    print("\n".join([*head, *_lines(results)]))
    if arguments.write:
        RESULTS.write_text(json.dumps({"head": head, **results}, indent=1) + "\n", encoding="utf-8")


def examples(data: Path | None, rows: int) -> list[Example]:
    """The same rows in each process, and a question that the embedded encoder was not fitted to.

    Of reviews, from which of two sets they are; of built-in sentences, how the last of a text begins, mostly.
    """
    if data is not None:
        return [Example(text, label) for text, label in itertools.islice(labelled_reviews(data), rows)]
    chance = random.Random(0)
    some = OPENINGS[: len(OPENINGS) // 2]
    found = []
    for text in itertools.islice(joined_sentences(), rows):
        begins = text.rpartition("。")[2].startswith(some)
        found.append(Example(text, int(begins != (chance.random() < WRONG_LABELS))))
    return found


def _be_a_loop(name: str, task: Task) -> None:
    """Run one loop; reports go where standard output went, and whatever else is printed to standard error."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    LOOPS[name](task, Turns(said, sys.stdin))


def _take_turns(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The reports of both loops, a turn each, until one of them is through."""
    sizes = ["--rows", str(arguments.rows), "--batch-tokens", str(arguments.batch_tokens)]
    own = [sys.executable, __file__, *sizes]
    data = ["--data", str(arguments.data.resolve())] if arguments.data else []
    paths = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LOOPS}
    loops = {
        name: subprocess.Popen(
            [*own, *data, "--loop", name], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in LOOPS
    }
    try:
        for name, report in _reports(loops):
            found[name].append(report)
            print(f"{name}: {report['tokens'] / report['seconds']:.0f} tokens/s", file=sys.stderr, flush=True)
    finally:
        for loop in loops.values():
            loop.kill()
            loop.wait()
    if min(map(len, found.values())) < 3:
        raise SystemExit(f"fewer than 3 turns of {STEPS_A_TURN} steps: give more --rows, or see what was printed above")
    return found


def _reports(loops: "dict[str, subprocess.Popen[str]]") -> Iterator[tuple[str, dict[str, Any]]]:
    while True:
        for name, loop in loops.items():
            if loop.stdin is None or loop.stdout is None:
                raise ValueError("both loops need pipes")
            print("go", file=loop.stdin, flush=True)
            line = loop.stdout.readline()
            if not line:
                return
            yield name, json.loads(line)


def summary(turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of tokens a second, the ratio turn by turn, and the losses. The first turn only warms up."""
    pairs = list(zip(turns["fit"][1:], turns["Trainer"][1:], strict=False))
    rates = [[turn["tokens"] / turn["seconds"] for turn in pair] for pair in pairs]
    steps = STEPS_A_TURN * (len(pairs) + 1)
    losses = {name: [loss for turn in reports for loss in turn["losses"]][:steps] for name, reports in turns.items()}
    rows = {name: [count for turn in reports for count in turn["rows"]][:steps] for name, reports in turns.items()}
    thirds = {name: _thirds(curve, rows[name]) for name, curve in losses.items()}
    gap = thirds["fit"][-1] - thirds["Trainer"][-1]
    factor = statistics.median(ours / theirs for ours, theirs in rates)
    return {
        "steps": steps,
        "tokens_s": {name: statistics.median(rate[place] for rate in rates) for place, name in enumerate(LOOPS)},
        "ratio": factor,
        "goals": [
            Goal("training: tokens/s of fit over those of the Trainer", AIM, AIM, factor).told(),
            Goal("training: 1 where fit's loss ends no higher", 1.0, 1.0, float(gap <= SAME_LOSS)).told(),
        ],
        "loss_by_third": thirds,
        "losses": losses,
    }


def _thirds(curve: Sequence[float], rows: Sequence[int]) -> list[float]:
    """Mean loss a row: steps of ours have few rows when those are long, and long rows are another matter."""
    size = len(curve) // 3
    parts = [slice(place * size, (place + 1) * size) for place in range(3)]
    return [float(np.average(curve[part], weights=rows[part])) for part in parts]


def _lines(results: dict[str, Any]) -> Iterator[str]:
    yield f"{'':12}{'tokens/s':>10}{'loss: first third':>20}{'second':>9}{'last':>9}"
    for name, rate in results["tokens_s"].items():
        first, second, last = results["loss_by_third"][name]
        yield f"{name:12}{rate:10.0f}{first:20.3f}{second:9.3f}{last:9.3f}"
    yield f"fit over Trainer, {results['steps']} steps each: {results['ratio']:.2f}"
    yield f"a loss is the same if it is at most {SAME_LOSS:g} higher in the last third"
    yield from lines(Goal(goal["name"], goal["aim"], goal["least"], goal["figure"]) for goal in results["goals"])


def _install() -> None:
    """Put the packages beside those of this environment, so that both loops have the same torch."""
    marker = PACKAGES / "installed.txt"
    if not marker.exists() or marker.read_bytes() != LISTED.read_bytes():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", PACKAGES, "-r", LISTED], check=True)
        marker.write_bytes(LISTED.read_bytes())


def _versions() -> str:
    import torch
    import transformers

    pins = [line for line in LISTED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return f"torch {torch.__version__}, transformers {transformers.__version__}, {', '.join(pins)}"


if __name__ == "__main__":
    main()
