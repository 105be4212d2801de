"""What each training text is to be answered with: its label, or also what larger models believe about it.

Hinton et al. 2015 (arXiv:1503.02531). The target of a labelled row is `weight` times the teachers' mean belief plus
the rest times its label; a text without a label gets the teachers' belief alone. The n-grams judge each training row
with a model that has not seen it (five folds), so their beliefs are honest; the networks have seen their rows, but once
or twice only: `calibrate` takes from the beliefs what they are too sure of (`doubt.py`).
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lengnuan.model.bundle import MANIFEST, MODEL, TOKENIZER, Bundle
from lengnuan.model.engine import Logits, score
from lengnuan.model.opening import open_engine
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import Tokenizer, cut
from lengnuan.training.batches import Ragged
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.data import read_texts, source_of
from lengnuan.training.doubt import doubting, fit_doubt
from lengnuan.training.errors import UsageError
from lengnuan.training.examples import Examples
from lengnuan.training.fit import build_classifier, load_trained
from lengnuan.training.judge import BEST, predict
from lengnuan.training.lesson import Lesson, Probabilities, labelled_lesson
from lengnuan.training.optimise import Hardware
from lengnuan.training.referee import Referee
from lengnuan.training.splits import text_key
from lengnuan.training.texts import Texts

log = logging.getLogger(__name__)

BELIEFS = "beliefs.safetensors"


def distilled_lesson(config: TrainConfig, corpus: Corpus, run_folder: Path, hardware: Hardware) -> Lesson:
    """Training rows and `distill.texts` with the teachers' beliefs mixed in.

    The beliefs are computed once and kept in `run_folder/beliefs.safetensors`.

    Raises:
        UsageError: a teacher is not there, of other labels, or the kept beliefs are of other texts or teachers.
        TrainingCollapsed: a teacher is no better than guessing.
    """
    labelled = labelled_lesson(corpus.train, len(corpus.labels.names))
    extra = texts_without_label(config, corpus)
    targets = _kept_or_made(config, corpus, labelled.texts + extra, run_folder, hardware)
    rows, weight = len(labelled.texts), config.distill.weight
    targets[:rows] = weight * targets[:rows] + (1.0 - weight) * labelled.targets
    return Lesson(labelled.texts + extra, targets)


def texts_without_label(config: TrainConfig, corpus: Corpus) -> Texts:
    """Distinct texts of `distill.texts` that are no train, dev or test row."""
    seen = corpus.train_keys() | corpus.held_out_keys()

    def new() -> Iterator[str]:
        for path in config.distill.texts:
            for text in read_texts(source_of(path, config.data)):
                key = text_key(text)
                if key and key not in seen:
                    seen.add(key)
                    yield text

    return Texts(new())


def _kept_or_made(
    config: TrainConfig, corpus: Corpus, texts: Texts, run_folder: Path, hardware: Hardware
) -> Probabilities:
    file = run_folder / BELIEFS
    identity = _identity(config, texts)
    if file.exists():
        with safe_open(file, framework="numpy") as kept:
            if (kept.metadata() or {}).get("identity") != identity:
                raise UsageError(f"{file} is of other texts or teachers: remove it, or choose another --output")
        return np.array(load_file(file)["beliefs"], dtype=np.float32)
    beliefs = _mean_belief(config, corpus, texts, hardware)
    aside = file.with_suffix(".writing")
    save_file({"beliefs": beliefs}, aside, metadata={"identity": identity})
    aside.rename(file)
    return beliefs


def _identity(config: TrainConfig, texts: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass"))
    for folder in config.distill.teachers:
        network = folder / (MODEL if _is_bundle(folder) else BEST)
        if not network.is_file():
            raise UsageError(f"distill.teachers: {folder} holds no bundle and no trained weights: run its `fit` first")
        digest.update(network.read_bytes())
    digest.update(f"{config.distill.ngram_share} {config.distill.temperature}".encode())
    if config.distill.calibrate:
        digest.update(b" calibrated")
    return digest.hexdigest()


def _mean_belief(config: TrainConfig, corpus: Corpus, texts: Texts, hardware: Hardware) -> Probabilities:
    settings, rows = config.distill, len(corpus.train)
    dev = Examples(row for part in corpus.dev.values() for row in part) if settings.calibrate else Examples()
    log.info("distill: %d teachers judge %d texts", len(settings.teachers), len(texts) + len(dev))
    every = texts + dev.texts
    parts = [teacher_belief(folder, config, every, hardware) for folder in settings.teachers]
    belief: Probabilities = np.mean(parts, axis=0, dtype=np.float32)
    if settings.ngram_share:
        referee = Referee(corpus)
        ngrams = np.concatenate([referee.out_of_fold(corpus), referee.probabilities(every[rows:])])
        belief = ((1.0 - settings.ngram_share) * belief + settings.ngram_share * ngrams).astype(np.float32)
    agree = float((belief[:rows].argmax(axis=1) == corpus.train.labels).mean())
    log.info("distill: the teachers agree with %.1f %% of the labels", 100 * agree)
    found, of_dev = belief[: len(texts)], belief[len(texts) :]
    if not settings.calibrate:
        return found
    return doubting(found, corpus.train.domains, fit_doubt(of_dev, dev))


def teacher_belief(folder: Path, config: TrainConfig, texts: Sequence[str], hardware: Hardware) -> Probabilities:
    """What the network of a run folder or a bundle believes about each text, softened by `distill.temperature`.

    Returns:
        float32 [N, K].

    Raises:
        UsageError: a folder of another release, or of other labels.
        TrainingCollapsed: it is no better than guessing.
        BundleRefused: the bundle is damaged.
    """
    if _is_bundle(folder):
        logits = _bundle_logits(folder, config, texts)
    else:
        logits = _run_logits(folder, config, texts, hardware)
    return softmax(logits / config.distill.temperature).astype(np.float32)


def _is_bundle(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _bundle_logits(folder: Path, config: TrainConfig, texts: Sequence[str]) -> Logits:
    """As it would be served here: in whatever engine is fastest, without torch."""
    bundle = Bundle.load(folder)
    _check_labels(folder, config, bundle.labels)
    engine = open_engine(bundle, config.device, threads=config.threads)
    log.info("distill: teacher %s, bundle %s", folder.name, bundle.version)
    return score(engine, [bundle.tokenizer.encode(text) for text in texts], bundle.manifest.max_tokens)


def _run_logits(folder: Path, config: TrainConfig, texts: Sequence[str], hardware: Hardware) -> Logits:
    try:
        teacher = TrainConfig.model_validate_json((folder / "config.json").read_bytes())
        tokenizer = Tokenizer.from_file(folder / TOKENIZER)
        labels = json.loads((folder / "data.json").read_text(encoding="utf-8"))["labels"]
    except (OSError, ValidationError, ValueError, KeyError) as error:
        raise UsageError(f"distill.teachers: {folder}: {error}") from error
    _check_labels(folder, config, labels)
    model = build_classifier(teacher, tokenizer, len(labels), None)
    selection = load_trained(model, folder / BEST)
    log.info("distill: teacher %s, dev %s %.4f", folder.name, teacher.fit.metric, selection.best_score)
    rows = Ragged(cut(tokenizer.encode(text), teacher.model.max_tokens) for text in texts)
    return predict(model.to(hardware.device), rows, 4 * config.fit.batch_tokens, hardware)


def _check_labels(folder: Path, config: TrainConfig, labels: Sequence[str]) -> None:
    if config.labels and list(labels) != list(config.labels):
        raise UsageError(f"distill.teachers: {folder} answers with {list(labels)}, not with {list(config.labels)}")
