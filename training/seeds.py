"""`--seeds N`: the same training under N seeds, so that a score is not the luck of one; the median one is kept.

Rows, sub-words, pretrained encoder and teachers' beliefs are the same for all; the new weights, the order of the rows
and dropout differ. Each seed is a run of its own in a sub-folder, `seed-1`, `seed-2`, ..., that goes on where it was.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from sklearn.metrics import f1_score

from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.distill import distilled_lesson
from lengnuan.training.distributed import from_first
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text
from lengnuan.training.fit import build_classifier, encode_dev, load_trained
from lengnuan.training.job import PLAIN, Job
from lengnuan.training.judge import BEST, predict
from lengnuan.training.runlog import METRICS
from lengnuan.training.spread import SEEDS, seed_figures

log = logging.getLogger(__name__)

_SCORES = "dev.json"


def run_seeds(job: Job, count: int) -> Path:
    """Everything, from data to the bundle of the median seed; returns the bundle's folder.

    Raises:
        UsageError: as `fit_seeds`.
    """
    from_first(lambda: _check(job, count))
    job.prepare()
    fit_seeds(job, count)
    return from_first(job.export)


def fit_seeds(job: Job, count: int) -> dict[str, Any]:
    """Train under `count` seeds, from the config's seed on; the folder then is that of a run with the median seed.

    Returns:
        What `seeds.json` holds: the dev scores by seed and source, their mean, standard deviation and least.

    Raises:
        UsageError: nothing is trained, or the folder holds a run with one seed.
        TrainingCollapsed: a seed is no better than guessing.
    """
    corpus = from_first(lambda: _begin(job, count))
    found = {seed: _fit(job, seed, corpus) for seed in range(job.config.seed, job.config.seed + count)}
    return from_first(lambda: _choose(job, found))


def seed_folder(seed: int) -> str:
    """Name of the sub-folder."""
    return f"seed-{seed}"


def _begin(job: Job, count: int) -> Corpus:
    """The rows; and in the folder what all seeds begin with."""
    _check(job, count)
    job.tokenizer()
    if job.config.distill.teachers:
        distilled_lesson(job.config, job.corpus, job.folder, job.hardware)
    return job.corpus


def _choose(job: Job, found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Write `seeds.json`, and keep the median one."""
    scores = {seed: row["score"] for seed, row in found.items()}
    figures = seed_figures(job.config.fit.metric, scores, {seed: row["sources"] for seed, row in found.items()})
    write_text(job.folder / SEEDS, json.dumps(figures, ensure_ascii=False, indent=1) + "\n")
    _keep(job, job.folder / seed_folder(figures["median_seed"]))
    return figures


def _check(job: Job, count: int) -> None:
    if count < 2:
        raise UsageError("--seeds: give 2 or more, or leave it out")
    if job.config.average:
        raise UsageError("--seeds: with `average` nothing is trained")
    if (job.folder / BEST).exists() and not (job.folder / SEEDS).exists():
        raise UsageError(f"{job.folder} holds a run with one seed: choose another --output for several")


def _fit(job: Job, seed: int, corpus: Corpus) -> dict[str, Any]:
    """Train one, unless that is done; its dev score, and that of every dev source."""
    file = job.folder / seed_folder(seed) / _SCORES
    member = job.member(seed_folder(seed), _with_seed(job.config, seed), corpus)
    if not from_first(file.exists):
        log.info("seed %d", seed)
        member.fit()
        from_first(lambda: write_text(file, json.dumps(_scores(member), ensure_ascii=False) + "\n"))
    found: dict[str, Any] = from_first(lambda: json.loads(file.read_text(encoding="utf-8")))
    return found


def _with_seed(config: TrainConfig, seed: int) -> TrainConfig:
    """Another seed, the same rows."""
    data = config.data.model_copy(update={"seed": config.data_seed})
    return config.model_copy(update={"seed": seed, "data": data})


def _scores(member: Job) -> dict[str, Any]:
    config, corpus, tokenizer = member.config, member.corpus, member.tokenizer()
    model = build_classifier(config, tokenizer, len(corpus.labels.names), None)
    selection = load_trained(model, member.better()[0], allow_collapsed=config.fit.allow_collapsed)
    model.to(member.hardware.device)
    sources = {}
    for name, dev in encode_dev(config, tokenizer, corpus).items():
        answers = predict(model, dev.rows, config.fit.batch_tokens, member.hardware).argmax(axis=1)
        if config.fit.metric == "accuracy":
            sources[name] = float((answers == dev.labels).mean())
        else:
            sources[name] = float(f1_score(dev.labels, answers, average="macro", zero_division=0.0))
    return {"score": selection.best_score, "sources": sources}


def _keep(job: Job, kept: Path) -> None:
    """Give the run folder the weights and the log of one seed."""
    for name in (BEST, f"{PLAIN}/{BEST}"):
        if (kept / name).exists():
            (job.folder / name).parent.mkdir(exist_ok=True)
            aside = (job.folder / name).with_suffix(".writing")
            shutil.copyfile(kept / name, aside)
            os.replace(aside, job.folder / name)
    own = (job.folder / METRICS).read_text(encoding="utf-8") if (job.folder / METRICS).exists() else ""
    before = [line for line in own.splitlines() if json.loads(line)["stage"] != "fit"]
    fitted = (kept / METRICS).read_text(encoding="utf-8").splitlines()
    write_text(job.folder / METRICS, "".join(line + "\n" for line in before + fitted))
