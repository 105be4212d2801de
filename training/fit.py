"""Supervised training: the straight loop, with the best weights by dev score kept."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn import functional as F

from lengnuan.model.encoder import Classifier
from lengnuan.model.tokenizer import Tokenizer, cut
from lengnuan.training.batches import Collator, Ragged, training_order
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.data import Example
from lengnuan.training.errors import TrainingCollapsed, UsageError
from lengnuan.training.judge import BEST, Encoded, Judge, Selection
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.runlog import RunLog

log = logging.getLogger(__name__)


def encode_examples(tokenizer: Tokenizer, examples: Sequence[Example], max_tokens: int) -> Encoded:
    """Texts to ids, each cut to `max_tokens`."""
    over = 0

    def ids_of(example: Example) -> list[int]:
        nonlocal over
        ids = tokenizer.encode(example.text)
        over += len(ids) > max_tokens
        return cut(ids, max_tokens)

    rows = Ragged(map(ids_of, examples))
    labels = np.array([example.label for example in examples], dtype=np.int64)
    return Encoded(rows, labels, over / max(1, len(examples)))


def build_classifier(config: TrainConfig, tokenizer: Tokenizer, classes: int, encoder_file: Path | None) -> Classifier:
    """A fresh classifier; its encoder from `encoder_file` if there is one, its head always new.

    Raises:
        UsageError: the file's encoder has another shape than the config says.
    """
    torch.manual_seed(config.seed)
    model = Classifier(config.model.encoder(tokenizer.size), classes)
    if encoder_file is not None:
        try:
            model.encoder.load_state_dict(load_file(encoder_file))
        except RuntimeError as error:
            raise UsageError(f"{encoder_file} does not fit [model]: {error}") from error
    return model


def fit(
    config: TrainConfig, tokenizer: Tokenizer, corpus: Corpus, run_folder: Path, hardware: Hardware
) -> tuple[Classifier, Selection]:
    """Train a classifier; resumes from a checkpoint in `run_folder`.

    Returns:
        The classifier with the weights that had the best dev score (also in `run_folder/best.safetensors`), in
        evaluation mode on the CPU, and how they were chosen.

    Raises:
        TrainingCollapsed: the best weights answer one class to everything.
        NotFinite: too many steps in a row were not finite.
    """
    settings = config.fit
    train = encode_examples(tokenizer, corpus.train, config.model.max_tokens)
    corpus.facts["train_truncated_share"] = train.truncated
    pretrained = run_folder / "encoder.safetensors"
    model = build_classifier(
        config, tokenizer, len(corpus.labels.names), pretrained if pretrained.exists() else None
    ).to(hardware.device)
    epochs = [
        training_order(train.rows.lengths, settings.batch_tokens, seed=config.seed, epoch=epoch)
        for epoch in range(settings.epochs)
    ]
    batches = [batch for epoch in epochs for batch in epoch]
    evaluate_every = max(1, len(epochs[0]) // settings.evaluations_per_epoch)
    optimiser = Optimiser(model, settings.optimiser, len(batches), settings.ema_decay)
    dev = {name: encode_examples(tokenizer, rows, config.model.max_tokens) for name, rows in corpus.dev.items()}
    judge = Judge(dev, config, hardware, run_folder)
    judge.resume(optimiser)
    _log_start(train, len(batches), hardware)
    collate = Collator(train.rows, train.labels, hardware.device)
    with RunLog(run_folder, "fit", steps=len(batches), done=optimiser.step) as run_log:
        for indices in batches[optimiser.step :]:
            if judge.out_of_patience():
                break
            batch = collate(indices)
            with hardware.autocast():
                logits = model(batch.token_ids, batch.mask)
            loss = F.cross_entropy(logits.float(), batch.labels, label_smoothing=settings.label_smoothing)
            norm = optimiser.update(loss)
            run_log.step(optimiser.step, batch.tokens, {"loss": loss.item(), "best dev": judge.selection.best_score})
            if optimiser.step % 20 == 0:
                run_log.record(optimiser.step, {"loss": loss.item(), "gradient_norm": norm})
            if optimiser.step % evaluate_every == 0 or optimiser.step == len(batches):
                run_log.record(optimiser.step, judge.evaluate(model, optimiser))
    return _best(config, tokenizer, corpus, run_folder, judge), judge.selection


def _log_start(train: Encoded, steps: int, hardware: Hardware) -> None:
    tokens = int(train.rows.lengths.sum()) / 1e6
    log.info(
        "fit: %d rows, %.2f M tokens, %.1f %% of the rows cut, %d steps on %s",
        len(train.rows), tokens, 100 * train.truncated, steps, hardware,
    )  # fmt: skip


def load_trained(model: Classifier, path: Path) -> dict[str, str]:
    """Load weights that `fit` kept into `model`; returns their metadata (step, dev_score).

    Raises:
        UsageError: no such file, or weights whose head was never trained.
    """
    if not path.exists():
        raise UsageError(f"{path}: no trained weights there: run `lengnuan-train fit` first")
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("trained_head") != "true":
        raise UsageError(f"{path}: these weights have no trained head; a random one would answer at random")
    model.load_state_dict(load_file(path))
    return metadata


def _best(config: TrainConfig, tokenizer: Tokenizer, corpus: Corpus, run_folder: Path, judge: Judge) -> Classifier:
    if judge.selection.collapsed:
        raise TrainingCollapsed(
            "the best weights answer one class to every dev row: check the labels, lower fit.optimiser.learning_rate, "
            "or give more rows"
        )
    model = build_classifier(config, tokenizer, len(corpus.labels.names), None)
    load_trained(model, run_folder / BEST)
    return model.eval()
