"""`lengnuan-train resume-proof`: a run that is killed again and again must end as the one that nobody disturbed.

Each life of a run is a process of its own. SIGKILL, which no program can answer, ends it at a random moment: while it
reads, trains, judges or saves. The next life begins in the same folder as if the command had been given again.
"""

import hashlib
import json
import logging
import multiprocessing
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from tqdm import tqdm

from lengnuan.training.augment import generate
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import TrainingError
from lengnuan.training.job import Job

log = logging.getLogger(__name__)

ROWS = 800  # of synthetic text, where the user gives no config

Say = Callable[[str], object]


@dataclass(frozen=True)
class Trace:
    """What a run has left: hashes of every tensor, of the metrics log, and the log's checksums of the row order."""

    weights: str
    log: str
    row_order: str


def prove(config: TrainConfig, folder: Path, kills: int, seed: int, say: Say) -> bool:
    """Train undisturbed, then with `kills` random kills, as many runs as that takes; whether all ended alike.

    Args:
        config: of the training; all of it but the export is run.
        folder: gets the run folders.
        kills: how often a run is killed, over all runs.
        seed: decides when, as a share of the time that the undisturbed run took.
        say: takes the lines of the account.

    Raises:
        TrainingError: the training fails by itself.
    """
    context = multiprocessing.get_context("forkserver")  # it imports what takes long once; each life is a fork of it
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    _live(context.Process(target=bool, daemon=True))
    start = time.monotonic()
    _live(context.Process(target=train, args=(config, folder / "undisturbed"), daemon=True))
    took = time.monotonic() - start
    expected = trace_of(folder / "undisturbed")
    say(f"undisturbed: {took:.1f} s; weights {expected.weights}, log {expected.log}, rows {expected.row_order}")
    draw = random.Random(seed)
    done = runs = alike = 0
    while done < kills:
        runs += 1
        run = folder / f"killed-{runs}"
        killed = True
        while killed:
            seconds = draw.uniform(0.0, took) if done < kills else None
            killed = _live(context.Process(target=train, args=(config, run), daemon=True), seconds)
            done += killed
            if killed:
                say(f"kill {done} after {seconds:.2f} s, {moment_of(run)}")
        found = trace_of(run)
        alike += found == expected
        say(f"{run.name} {'ends alike' if found == expected else f'DIFFERS: {found}'}")
    say(f"{done} kills, {runs} runs, {alike} of them with the same weights, log and row order")
    return alike == runs


def train(config: TrainConfig, run_folder: Path) -> None:
    """One life of a run: pretraining, if the config has any, and supervised training, from wherever it was."""
    tqdm.set_lock(threading.RLock())  # its own is shared by processes, and a killed one would leave it behind
    job = Job(config, run_folder)
    if config.pretrain.corpus:
        job.pretrain()
    job.fit()


def _live(process: multiprocessing.process.BaseProcess, seconds: float | None = None) -> bool:
    """Let a process run, at most so long; True if it had to be killed."""
    process.start()
    process.join(seconds)
    process.kill()  # if it still lives
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise TrainingError(f"the training ended with {process.exitcode} by itself: try it with `fit` first")
    return process.exitcode != 0


def trace_of(run_folder: Path) -> Trace:
    """Of a finished run; the checkpoints' tensors are among those hashed: moments, moving average."""
    weights = hashlib.sha256()
    for file in sorted(run_folder.rglob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            weights.update(name.encode())
            weights.update(tensor.contiguous().numpy().tobytes())
    logs = [file.read_bytes() for file in sorted(run_folder.rglob("metrics.jsonl"))]
    rows = [json.loads(content.splitlines()[-1])["row_order"] for content in logs]
    return Trace(weights.hexdigest()[:16], hashlib.sha256(b"\n".join(logs)).hexdigest()[:16], " ".join(rows))


def moment_of(run_folder: Path) -> str:
    """Where a killed run was, by what it left."""
    files = sorted(run_folder.rglob("metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    text = files[-1].read_text(encoding="utf-8") if files else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last line may be half written
    where = "before the first log line"
    if lines:
        where = "after log line {}, {stage} step {step}".format(len(lines), **json.loads(lines[-1]))
    writing = sorted(path.name for path in run_folder.rglob(".*writing*"))
    return f"{where}, while writing {', '.join(writing)}" if writing else where


def own_config(folder: Path) -> TrainConfig:
    """A small training on synthetic sentences, written to `folder`: pretraining, then supervised."""
    rows = generate(ROWS, seed=0)
    lines = "".join(f"{row.label}\t{row.text}\n" for row in rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tsv").write_text(f"label\ttext\n{lines}", encoding="utf-8")
    return TrainConfig.model_validate(
        {
            "name": "resume-proof",
            "threads": 1,
            "device": "cpu",
            "precision": "float32",
            "labels": {"negative": ["0"], "positive": ["1"]},
            "data": {"root": folder, "train": {"synthetic": "train.tsv"}, "dev_share": 0.3},
            "tokenizer": {"pieces": 300, "min_count": 2, "every_character": False},
            "model": {"max_tokens": 64, "width": 32, "layers": 2, "heads": 2, "feed_forward_width": 64},
            "pretrain": {"corpus": ["train.tsv"], "epochs": 8, "max_tokens": 64, "batch_tokens": 512},
            "fit": {"epochs": 12, "evaluations_per_epoch": 2, "patience": 99, "batch_tokens": 512, "min_steps": 1,
                    "token_dropout": 0.1, "accumulate": 2, "allow_collapsed": True},
        }
    )  # fmt: skip
