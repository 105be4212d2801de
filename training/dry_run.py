"""`--dry-run`: how many steps a run has, and from a trial of twenty of them how long it and how much memory it takes.

Rows are read and sub-words learnt as in the run, so that is measured. Of pretraining and of supervised training the
first steps are done, and the largest one for the memory; the rest is multiplication. Everything happens in a temporary
folder.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import torch

from lengnuan.training.batches import Collator
from lengnuan.training.config import TrainConfig
from lengnuan.training.distill import teacher_belief, texts_without_label
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import Exercise, build_classifier, encode_dev, encode_texts, fit, plan_steps
from lengnuan.training.job import Job
from lengnuan.training.judge import predict
from lengnuan.training.lesson import Lesson, labelled_lesson
from lengnuan.training.losses import objective_for
from lengnuan.training.nonsense import made_lesson
from lengnuan.training.optimise import Optimiser
from lengnuan.training.pretrain import HELD_OUT_SHARE, STEPS_BETWEEN_EVALUATIONS, pretrain
from lengnuan.training.trial import Trial, trial

TEACHER_SAMPLE = 65  # texts that each teacher is tried on; the first one also loads it

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """A part of the run. `steps`: 0 for none; `seconds`: predicted unless `measured`; `note`: where they come from."""

    name: str
    steps: int
    seconds: float
    note: str


@dataclass(frozen=True)
class Forecast:
    """What a run would take.

    Args:
        stages: in their order, without the export.
        memory: bytes, the most that this process has held.
        device_memory: bytes on the GPU, 0 without one.
    """

    stages: list[Stage]
    memory: int
    device_memory: int

    def steps(self, name: str) -> int:
        """Of the stage of that name; 0 if the run has no such stage."""
        return sum(stage.steps for stage in self.stages if stage.name == name)


def forecast(config: TrainConfig) -> Forecast:
    """Try the run in a temporary folder.

    Raises:
        UsageError: nothing is trained.
        DataRefused, ...: what the run itself would be refused for.
    """
    if config.average:
        raise UsageError("--dry-run: with `average` nothing is trained")
    tried = config.model_copy(update={"fit": config.fit.model_copy(update={"allow_collapsed": True})})
    with TemporaryDirectory(prefix="lengnuan-dry-run-") as folder:
        job = Job(tried, Path(folder))
        _, reading = _timed(lambda: job.corpus)
        _, learning = _timed(job.tokenizer)
        stages = [Stage("read", 0, reading, "measured"), Stage("sub-words", 0, learning, "measured")]
        stages += _teachers(job) + _pretraining(job) + _fitting(job)
        _largest_step(job)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        on_device = torch.cuda.max_memory_allocated() if job.hardware.device.type == "cuda" else 0
        return Forecast(stages, peak, on_device)


def forecast_table(found: Forecast) -> str:
    """The forecast as lines of text."""
    lines = [f"{'stage':24}{'steps':>9}{'seconds':>10}"]
    for stage in found.stages:
        steps = f"{stage.steps:,}" if stage.steps else ""
        lines.append(f"{stage.name:24}{steps:>9}{stage.seconds:10.1f}  {stage.note}")
    total = sum(stage.seconds for stage in found.stages)
    lines.append(f"{'in all':24}{'':9}{total:10.1f}  {total / 60:.0f} min; early stopping may save some")
    lines.append("not tried: calibration, the n-gram referee, export")
    device = f", {found.device_memory / 1e9:.2f} GB on the GPU" if found.device_memory else ""
    lines.append(f"memory at its peak: {found.memory / 1e9:.2f} GB{device}")
    return "\n".join(lines) + "\n"


def _timed(make: Callable[[], T]) -> tuple[T, float]:
    start = time.monotonic()
    made = make()
    return made, time.monotonic() - start


def _teachers(job: Job) -> list[Stage]:
    """How long the teachers take to judge every text, from what they take for a few."""
    config = job.config
    if not config.distill.teachers:
        return []
    texts = job.corpus.train.texts + texts_without_label(config, job.corpus)
    sample = texts[:: max(1, len(texts) // TEACHER_SAMPLE)][:TEACHER_SAMPLE]
    seconds = 0.0
    for folder in config.distill.teachers:
        _, loading = _timed(partial(teacher_belief, folder, config, sample[:1], job.hardware))
        _, judging = _timed(partial(teacher_belief, folder, config, sample, job.hardware))
        seconds += loading + max(0.0, judging - loading) / max(1, len(sample) - 1) * len(texts)
    return [Stage("teachers", 0, seconds, f"predicted from {len(sample)} of {len(texts):,} texts")]


def _pretraining(job: Job) -> list[Stage]:
    if not job.config.pretrain.corpus:
        return []
    with trial() as tried:
        pretrain(job.config, job.tokenizer(), job.corpus_texts(), job.folder, job.hardware)
    evaluations = -(-tried.steps // STEPS_BETWEEN_EVALUATIONS)
    # Of the rows that are held out, without a backward pass, which is two thirds of a step's work.
    steps_of_held_out = HELD_OUT_SHARE * tried.steps / job.config.pretrain.epochs
    judging = evaluations * steps_of_held_out * tried.seconds_a_step() / 3.0
    return [
        Stage("pretrain: texts to ids", 0, tried.prepared, "measured"),
        Stage("pretrain", tried.steps, tried.steps * tried.seconds_a_step(), _how(tried)),
        Stage("pretrain: evaluations", evaluations, judging, "predicted from the steps"),
    ]


def _fitting(job: Job) -> list[Stage]:
    """Of the one student, or of the distilled and the plain one together."""
    config, corpus, tokenizer = job.config, job.corpus, job.tokenizer()
    lesson = _lesson(job)
    with trial() as tried:
        fit(config, tokenizer, corpus, lesson, job.folder, job.hardware)
    taught, plain = bool(config.distill.teachers), not config.distill.teachers or config.distill.plain_student
    students = [lesson.texts] if plain else []
    if taught:
        students.append(lesson.texts + texts_without_label(config, corpus))
    plans = [plan_steps(encode_texts(tokenizer, texts, config.model.max_tokens)[0], config) for texts in students]
    steps, evaluations = (sum(len(plan[part]) for plan in plans) for part in (0, 1))
    return [
        Stage("fit: texts to ids", 0, len(plans) * tried.prepared, "measured"),
        Stage("fit", steps, steps * tried.seconds_a_step(), _how(tried)),
        Stage("fit: evaluations", evaluations, evaluations * _judging(job), "predicted from one"),
    ]


def _how(tried: Trial) -> str:
    return f"predicted from {len(tried.step_seconds)} steps, {1000 * tried.seconds_a_step():.0f} ms each"


def _lesson(job: Job) -> Lesson:
    return labelled_lesson(job.corpus.train, len(job.corpus.labels.names)) + made_lesson(job.config, job.corpus)


def _judging(job: Job) -> float:
    """Seconds that an evaluation on dev takes."""
    config, tokenizer = job.config, job.tokenizer()
    model = build_classifier(config, tokenizer, len(job.corpus.labels.names), None).to(job.hardware.device)
    dev = encode_dev(config, tokenizer, job.corpus).values()
    budget = config.fit.batch_tokens
    return _timed(lambda: [predict(model, part.rows, budget, job.hardware) for part in dev])[1]


def _largest_step(job: Job) -> None:
    """Do the step that holds most in memory: attention grows with the square of the length."""
    config, tokenizer, lesson = job.config, job.tokenizer(), _lesson(job)
    model = build_classifier(config, tokenizer, len(job.corpus.labels.names), None).to(job.hardware.device)
    rows, _ = encode_texts(tokenizer, lesson.texts, config.model.max_tokens)
    steps, _ = plan_steps(rows, config)

    def size(step: Sequence[np.ndarray]) -> int:
        return max(len(indices) * int(rows.lengths[indices].max()) ** 2 for indices in step)

    collate = Collator(rows, lesson.targets, job.hardware.device)
    optimiser = Optimiser(model, config.fit.optimiser, len(steps), config.fit.ema_decay)
    objective = objective_for(config.fit, lesson.targets, job.hardware.device)
    exercise = Exercise(model, objective, config.fit, job.hardware)
    exercise.descend([collate(indices) for indices in max(steps, key=size)], optimiser)
    optimiser.update()
