"""`--folds K`: every training row judged by a model that was trained without it.

The rows are those of the train files as they stand, also the repeats and the texts with two labels that training leaves
out; rows that are held out for dev or test are not among them. Repeats and near copies fall into one fold, and every
fold has its share of each class. Each fold is a run of its own in a sub-folder, with new weights, a new optimiser and
the random numbers of its seed, so it does not matter which folds were trained before. All are judged on the same dev
rows, which choose their weights and their temperature.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from lengnuan.model.probabilities import softmax
from lengnuan.training.augment import synthetic_rows
from lengnuan.training.calibrate import fit_temperature
from lengnuan.training.config import DistillConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.data import Accounting, read_rows_of, source_of
from lengnuan.training.distributed import from_first
from lengnuan.training.divide import text_groups
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.files import write_tensors, write_text
from lengnuan.training.fit import build_classifier, encode_dev, encode_texts, load_trained
from lengnuan.training.job import Job
from lengnuan.training.judge import BEST, predict
from lengnuan.training.out_of_fold import OutOfFold, Place, write_out_of_fold
from lengnuan.training.referee import Referee
from lengnuan.training.scores import Scored, summary
from lengnuan.training.splits import Codes, codes_of, without
from lengnuan.training.spread import spread
from lengnuan.training.start import is_ours

log = logging.getLogger(__name__)

OUT_OF_FOLD, FIGURES = "out-of-fold.jsonl", "folds.json"
_KEPT = "out-of-fold.safetensors"

Beliefs = npt.NDArray[np.float64]
# (probabilities [N, K] of the texts, dev score) of a model that was trained on a fold's corpus in its sub-folder
Predictor = Callable[[Job, str, Corpus, Sequence[str]], tuple[Beliefs, float]]


@dataclass(frozen=True)
class _Pool:
    """The rows of the train files that are not held out, where each stands, and its fold, 1-based, int64 [N]."""

    places: list[Place]
    examples: Examples
    fold_of: npt.NDArray[np.int64]


def run_folds(job: Job, folds: int, predictor: Predictor, folder: str) -> dict[str, Any]:
    """Train `folds` models and ask each about the rows that it has not seen.

    Args:
        job: its folder gets `folder` with `out-of-fold.jsonl`, `folds.json` and a sub-folder a fold.
        folds: 2 or more.
        predictor: `network_beliefs` or `ngram_beliefs`.
        folder: name of the sub-folder.

    Returns:
        What `folds.json` holds: rows, dev score and out-of-fold scores by fold and in all.

    Raises:
        UsageError: fewer than two folds, or nothing is trained.
        DataRefused: too few rows of a class for so many folds.
    """
    if folds < 2:
        raise UsageError("--folds: give 2 or more")
    if job.config.average:
        raise UsageError("--folds: with `average` nothing is trained")
    corpus, pool = from_first(lambda: (job.corpus, _read_pool(job, folds)))
    beliefs: Beliefs = np.zeros((len(pool.examples), len(corpus.labels.names)))
    dev_scores = []
    for fold in range(1, folds + 1):
        rows = np.flatnonzero(pool.fold_of == fold)
        rest = _without_fold(job, corpus, pool, fold)
        texts = list(pool.examples.texts.take(rows))
        name = f"{folder}/fold-{fold}"
        log.info("fold %d of %d: %d rows to train on, %d rows to judge", fold, folds, len(rest.train), len(rows))
        beliefs[rows], score = _kept_or_made(job, name, rest, texts, predictor)
        dev_scores.append(score)
    labels = pool.examples.labels.astype(np.int64)
    found = OutOfFold(corpus.labels.names, pool.places, pool.examples.texts, labels, pool.fold_of, beliefs)
    return from_first(lambda: _write(found, dev_scores, job.folder / folder))


def _write(found: OutOfFold, dev_scores: Sequence[float], folder: Path) -> dict[str, Any]:
    """Both files; returns what the second one holds."""
    write_out_of_fold(found, folder / OUT_OF_FOLD)
    figures = _figures(found, dev_scores)
    write_text(folder / FIGURES, json.dumps(figures, ensure_ascii=False, indent=1) + "\n")
    return figures


def deal(examples: Sequence[Example], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """The fold of every row, 1-based, int64 [N].

    Groups of repeats and near copies go one by one, the largest first, to the fold that has least of their commonest
    class. It depends on texts, labels and seed alone, not on the order of the rows.
    """
    found = np.zeros(len(examples), dtype=np.int64)
    classes = 1 + max(example.label for example in examples)
    filled = np.zeros((classes, folds), dtype=np.int64)
    for group in sorted(text_groups(examples, seed), key=lambda group: (-len(group.rows), group.at)):
        label = max(group.labels, key=lambda label: (group.labels[label], label))
        fold = int(np.lexsort((filled.sum(axis=0), filled[label]))[0])
        found[group.rows] = fold + 1
        for each, rows in group.labels.items():
            filled[each, fold] += rows
    return found


def network_beliefs(job: Job, name: str, corpus: Corpus, texts: Sequence[str]) -> tuple[Beliefs, float]:
    """Train the config's network on `corpus`, without teachers, who may have seen every row; calibrated on dev."""
    source = job.config.start_from
    if source and is_ours(source):
        log.warning("%s has learnt labels: if these rows were among them, no fold is judged blindly", source)
    from_first(job.tokenizer)
    member = job.member(name, job.config.model_copy(update={"distill": DistillConfig()}), corpus)
    member.fit()
    return from_first(lambda: _network_beliefs(member, texts))


def _network_beliefs(member: Job, texts: Sequence[str]) -> tuple[Beliefs, float]:
    """Of a network that is trained already."""
    config, tokenizer, corpus = member.config, member.tokenizer(), member.corpus
    model = build_classifier(config, tokenizer, len(corpus.labels.names), None)
    selection = load_trained(model, member.folder / BEST, allow_collapsed=config.fit.allow_collapsed)
    model.to(member.hardware.device)
    budget, hardware = config.fit.batch_tokens, member.hardware
    dev = encode_dev(config, tokenizer, corpus).values()
    dev_logits = np.concatenate([predict(model, part.rows, budget, hardware) for part in dev])
    temperature = fit_temperature(dev_logits, np.concatenate([part.labels for part in dev]))
    rows, _ = encode_texts(tokenizer, texts, config.model.max_tokens)
    return softmax(predict(model, rows, budget, hardware) / temperature), selection.best_score


def ngram_beliefs(job: Job, name: str, corpus: Corpus, texts: Sequence[str]) -> tuple[Beliefs, float]:
    """The n-gram referee, fitted on `corpus`: quick, and without any weights that may have seen a row."""
    del job, name

    def asked() -> tuple[Beliefs, float]:
        referee = Referee(corpus)
        return referee.probabilities(texts), referee.dev_accuracy

    return from_first(asked)


def _read_pool(job: Job, folds: int) -> _Pool:
    """Read the train files again, with the place of every row, and deal them out."""
    data, corpus = job.config.data, job.corpus
    places: list[Place] = []

    def found() -> Iterator[Example]:
        for name, path in data.train.items():
            account = Accounting(str(path))
            for example, row in read_rows_of(source_of(path, data), corpus.labels, data, name, account):
                places.append(Place(name, row.line))
                yield example

    rows = Examples(found())
    kept = np.isin(rows.codes, corpus.train.codes) | ~np.isin(rows.codes, _held_out(corpus))
    log.info("folds: %d of the %d rows are dealt out, the others are held out", kept.sum(), len(rows))
    examples = rows.take(kept)
    return _Pool([places[row] for row in np.flatnonzero(kept)], examples, deal(examples, folds, job.config.data_seed))


def _held_out(corpus: Corpus) -> Codes:
    return codes_of([*corpus.dev.values(), *corpus.test.values()])


def _without_fold(job: Job, corpus: Corpus, pool: _Pool, fold: int) -> Corpus:
    """The corpus with what training may see when that fold is judged; `[augment]` copies its rows alone."""
    hidden = codes_of([pool.examples.take(pool.fold_of == fold)])
    train = without(corpus.train, hidden)
    missing = set(range(len(corpus.labels.names))) - set(train.labels.tolist())
    if missing:
        name = corpus.labels.names[min(missing)]
        raise DataRefused(f"--folds: without fold {fold} class {name!r} has no row: give more rows, or fewer folds")
    held_out = np.union1d(_held_out(corpus), hidden)
    synthetic, _ = synthetic_rows(job.config.augment, corpus.labels, train, held_out, job.config.data_seed)
    rest = replace(corpus, train=train, synthetic=synthetic)
    return replace(rest, facts={**corpus.facts, "identity": rest.identity()})


def _kept_or_made(
    job: Job, name: str, corpus: Corpus, texts: Sequence[str], predictor: Predictor
) -> tuple[Beliefs, float]:
    """The beliefs about a fold's texts, from its sub-folder if they are there already."""
    file = job.folder / name / _KEPT
    digest = hashlib.sha256(json.dumps([corpus.facts["identity"], list(texts)]).encode())
    kept = from_first(lambda: _read_kept(file, digest.hexdigest()))
    if kept is not None:
        return kept
    beliefs, score = predictor(job, name, corpus, texts)
    metadata = {"identity": digest.hexdigest(), "dev_score": repr(score)}
    from_first(lambda: _keep(file, beliefs, metadata))
    return beliefs, score


def _read_kept(file: Path, identity: str) -> tuple[Beliefs, float] | None:
    """None if there are none yet."""
    if not file.exists():
        return None
    with safe_open(file, framework="numpy") as kept:
        metadata: dict[str, str] = kept.metadata() or {}
        found: Beliefs = kept.get_tensor("beliefs")
    if metadata.get("identity") != identity:
        raise UsageError(f"{file} is of other rows: choose another --output, or remove that folder")
    return found, float(metadata["dev_score"])


def _keep(file: Path, beliefs: Beliefs, metadata: dict[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, {"beliefs": torch.from_numpy(np.asarray(beliefs, dtype=np.float64))}, metadata)


def _figures(found: OutOfFold, dev_scores: Sequence[float]) -> dict[str, Any]:
    domains = [place.source for place in found.places]
    scored = Scored(found.labels, found.probabilities, domains, np.zeros(len(domains), dtype=bool))
    accuracy = [float(scored.right[found.folds == fold].mean()) for fold in range(1, len(dev_scores) + 1)]
    rows = [int((found.folds == fold).sum()) for fold in range(1, len(dev_scores) + 1)]
    return {
        "rows": rows,
        "dev": {"scores": list(dev_scores), **spread(dev_scores)},
        "accuracy": {"scores": accuracy, **spread(accuracy)},
        "out_of_fold": summary(scored, found.names),
    }


def folds_table(figures: Mapping[str, Any]) -> str:
    """The figures as lines of text."""
    lines = [f"{'fold':8}{'rows':>9}{'dev':>9}{'out of fold':>14}"]
    columns = zip(figures["rows"], figures["dev"]["scores"], figures["accuracy"]["scores"], strict=True)
    lines += [f"{n:<8}{rows:9,}{100 * dev:9.2f}{100 * acc:14.2f}" for n, (rows, dev, acc) in enumerate(columns, 1)]
    for name in ("mean", "sd", "min"):
        lines.append(f"{name:8}{'':9}{100 * figures['dev'][name]:9.2f}{100 * figures['accuracy'][name]:14.2f}")
    every = figures["out_of_fold"]
    low, high = every["accuracy_interval"]
    lines.append(
        f"all      {every['rows']:,} rows: accuracy {100 * every['accuracy']:.2f} % ({100 * low:.2f}-{100 * high:.2f}),"
        f" macro-F1 {100 * every['macro_f1']:.2f} %, ECE {every['ece']:.3f}"
    )
    return "\n".join(lines) + "\n"
