"""Supervised training: the straight loop, with the best weights by dev score kept."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from lengnuan.model.encoder import Classifier
from lengnuan.model.tokenizer import MASK_ID, Tokenizer, cut
from lengnuan.training.adversarial import FastGradient
from lengnuan.training.batches import Batch, Collator, Ragged, draw_seed, training_order
from lengnuan.training.checkpoint import Checkpoints
from lengnuan.training.config import FitConfig, TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.distributed import all_sum, from_first, own_part, world
from lengnuan.training.errors import TrainingCollapsed, UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.judge import BEST, Encoded, Judge, Selection
from lengnuan.training.lesson import Lesson
from lengnuan.training.losses import Objective, divergence, objective_for
from lengnuan.training.memory import keep_freed_memory, trim_memory
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.runlog import RunLog
from lengnuan.training.start import ENCODER, START, load_encoder
from lengnuan.training.stopping import stop_point

log = logging.getLogger(__name__)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> tuple[Ragged, float]:
    """Texts to ids, each cut to `max_tokens`; and the share of texts that were longer."""
    over = 0

    def ids_of(text: str) -> list[int]:
        nonlocal over
        ids = tokenizer.encode(text)
        over += len(ids) > max_tokens
        return cut(ids, max_tokens)

    return Ragged(map(ids_of, texts)), over / max(1, len(texts))


def encode_examples(tokenizer: Tokenizer, examples: Sequence[Example], max_tokens: int) -> Encoded:
    """Labelled rows to ids and labels."""
    found = Examples.of(examples)
    rows, _ = encode_texts(tokenizer, found.texts, max_tokens)
    return Encoded(rows, found.labels.astype(np.int64))


def encode_dev(config: TrainConfig, tokenizer: Tokenizer, corpus: Corpus) -> dict[str, Encoded]:
    """The dev rows of every source."""
    return {name: encode_examples(tokenizer, rows, config.model.max_tokens) for name, rows in corpus.dev.items()}


def build_classifier(config: TrainConfig, tokenizer: Tokenizer, classes: int, encoder_file: Path | None) -> Classifier:
    """A fresh classifier; its encoder from `encoder_file` if there is one, its head always new.

    Raises:
        UsageError: the file is not whole, or its encoder has another shape than the config says.
    """
    torch.manual_seed(config.seed)
    model = Classifier(config.model.encoder(tokenizer.size), classes)
    if encoder_file is not None:
        load_encoder(model.encoder, encoder_file)
    return model


def fit(
    config: TrainConfig, tokenizer: Tokenizer, corpus: Corpus, lesson: Lesson, run_folder: Path, hardware: Hardware
) -> tuple[Classifier, Selection]:
    """Train a classifier on `lesson`, judged on the corpus's dev rows; resumes from a checkpoint in `run_folder`.

    Returns:
        The classifier with the weights that had the best dev score (also in `run_folder/best.safetensors`), in
        evaluation mode on the CPU, and how they were chosen.

    Raises:
        TrainingCollapsed: the best weights answer one class to everything.
        NotFinite: too many steps in a row were not finite.
    """
    settings = config.fit
    rows, truncated = encode_texts(tokenizer, lesson.texts, config.model.max_tokens)
    classes = len(corpus.labels.names)
    model = from_first(lambda: _first_weights(config, tokenizer, classes, run_folder)).to(hardware.device)
    steps, evaluations = plan_steps(rows, config)
    optimiser = Optimiser(model, settings.optimiser, len(steps), settings.ema_decay)
    judge = Judge(encode_dev(config, tokenizer, corpus), config, hardware, run_folder)
    run_log = RunLog(run_folder, "fit", steps=len(steps))
    checkpoints = Checkpoints(run_folder / "fit-checkpoints", rows.identity(), optimiser, log=run_log, judge=judge)
    checkpoints.resume()
    _log_start(rows, truncated, len(steps), hardware)
    collate = Collator(rows, lesson.targets, hardware.device)
    exercise = Exercise(model, objective_for(settings, lesson.targets, hardware.device), settings, hardware)
    keep_freed_memory()
    with run_log, checkpoints:
        for step in range(optimiser.step, len(steps) + 1):
            if step in evaluations and step > run_log.judged:
                run_log.record_judged(step, judge.evaluate(model, optimiser))
                checkpoints.save()
            if step == len(steps) or judge.out_of_patience():
                break
            checkpoints.save_if_due()
            stop_point()
            part = own_part(steps[step], whole=settings.accumulate >= world())
            batches = [collate(indices, draw_seed(config.seed, step, indices)) for indices in part]
            exercise.descend(batches, optimiser)
            loss, norm = optimiser.update()
            trim_memory(optimiser.step)
            shown = {"loss": loss, "best dev": judge.selection.best_score}
            every_row = np.concatenate(steps[step])
            run_log.step(optimiser.step, every_row, int(rows.lengths[every_row].sum()), shown)
            if optimiser.step % 20 == 0:
                row = {"loss": loss, "gradient_norm": norm, "skipped_steps": optimiser.skipped}
                run_log.record(optimiser.step, row)
    return from_first(lambda: _best_weights(config, tokenizer, classes, run_folder))


def _first_weights(config: TrainConfig, tokenizer: Tokenizer, classes: int, run_folder: Path) -> Classifier:
    begin = next((file for name in (ENCODER, START) if (file := run_folder / name).exists()), None)
    return build_classifier(config, tokenizer, classes, begin)


def _best_weights(
    config: TrainConfig, tokenizer: Tokenizer, classes: int, run_folder: Path
) -> tuple[Classifier, Selection]:
    best = build_classifier(config, tokenizer, classes, None)
    selection = load_trained(best, run_folder / BEST, allow_collapsed=config.fit.allow_collapsed)
    return best.eval(), selection


Step = list[npt.NDArray[np.int64]]  # the row numbers of each of its batches


def plan_steps(rows: Ragged, config: TrainConfig) -> tuple[list[Step], set[int]]:
    """The rows of every step of the run, and after which steps it is evaluated.

    `fit.epochs` epochs, or as many as `fit.min_steps` takes, in steps of `fit.accumulate` batches; the last step takes
    what is left.
    """
    settings = config.fit
    batches: Step = []
    epoch = 0
    while epoch < settings.epochs or len(batches) <= (settings.min_steps - 1) * settings.accumulate:
        order = training_order(rows.lengths, settings.batch_tokens, seed=config.seed, epoch=epoch)
        part = min(1.0, settings.epochs - epoch)  # of this epoch; beyond the last, `min_steps` takes whole ones
        batches += order[: max(1, round(part * len(order)))] if part > 0 else order
        epoch += 1
    steps = [batches[start : start + settings.accumulate] for start in range(0, len(batches), settings.accumulate)]
    between = max(1, int(len(steps) // (settings.epochs * settings.evaluations_per_epoch)))
    return steps, {*range(between, len(steps), between), len(steps)}


@dataclass(frozen=True)
class Exercise:
    """How a step's gradient comes about: the forward passes that the settings ask for, and their loss."""

    model: Classifier
    objective: Objective
    settings: FitConfig
    hardware: Hardware

    def descend(self, batches: list[Batch], optimiser: Optimiser) -> None:
        """Add the gradient of the mean loss over the rows of all batches, however they were cut into batches.

        Of processes that train together each has its own batches, or none; their gradients add up to that of all.

        Raises:
            UsageError: adversarial training finds no parameter to move.
        """
        weights = [self.objective.weight(batch.targets) for batch in batches]
        total = all_sum(torch.tensor([sum(weights)], dtype=torch.float64)).item()
        shares = [weight / total for weight in weights]  # of rows, not of batches: batches differ in size
        for batch, share in zip(batches, shares, strict=True):
            batch.begin_draws()
            optimiser.descend(share * self.loss(batch))
        if self.settings.fgm_epsilon:
            adversary = FastGradient(self.model, self.settings.fgm_parameter, self.settings.fgm_epsilon)
            optimiser.gather()
            with adversary.moved():
                optimiser.leave_to_first()
                for batch, share in zip(batches, shares, strict=True):
                    batch.begin_draws(turn=1)
                    optimiser.descend(share * self.loss(batch))

    def loss(self, batch: Batch) -> Tensor:
        """Of one pass, or with `r_drop` the mean of two and what they differ by."""
        token_ids = hide_tokens(batch.token_ids, self.settings.token_dropout)
        targets = batch.targets.repeat(self.settings.dropout_samples, 1)
        logits = self._answers(token_ids, batch.mask)
        loss = self.objective(logits, targets)
        if not self.settings.r_drop:
            return loss
        again = self._answers(token_ids, batch.mask)
        differ = self.objective.mean(divergence(logits, again), targets)
        return 0.5 * (loss + self.objective(again, targets)) + self.settings.r_drop * differ

    def _answers(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Float32 [S B, K]: the answers under each of S dropout masks before the head."""
        with self.hardware.autocast():
            pooled = self.model.pool(token_ids, mask)
            logits = [self.model.answer(pooled) for _ in range(self.settings.dropout_samples)]
        return torch.cat(logits).float()


def hide_tokens(token_ids: Tensor, share: float) -> Tensor:
    """Replace about `share` of the ids (int64 [B, T]) by the mask id, so that no single word decides a row.

    Dai and Le 2015 (arXiv:1511.01432) call it word dropout. Padding may be hit too; the mask makes that irrelevant.
    """
    if not share:
        return token_ids
    return torch.where(torch.rand(token_ids.shape, device=token_ids.device) < share, MASK_ID, token_ids)


def _log_start(rows: Ragged, truncated: float, steps: int, hardware: Hardware) -> None:
    tokens = int(rows.lengths.sum()) / 1e6
    log.info(
        "fit: %d rows, %.2f M tokens, %.1f %% of the rows cut, %d steps on %s",
        len(rows), tokens, 100 * truncated, steps, hardware,
    )  # fmt: skip


def selection_of(path: Path) -> Selection:
    """How the weights that `fit` kept in `path` were chosen.

    Raises:
        UsageError: no such file, or weights whose head was never trained.
    """
    if not path.exists():
        raise UsageError(f"{path}: no trained weights there: run `lengnuan-train fit` first")
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
    if "selection" not in metadata:
        raise UsageError(f"{path}: these weights have no trained head; a random one would answer at random")
    return Selection(**json.loads(metadata["selection"]))


def load_trained(model: Classifier, path: Path, *, allow_collapsed: bool = False) -> Selection:
    """Load weights that `fit` kept into `model`; returns how they were chosen.

    Raises:
        UsageError: no such file, or weights whose head was never trained.
        TrainingCollapsed: weights that are no better than guessing, unless `allow_collapsed`.
    """
    selection = selection_of(path)
    if selection.collapsed and not allow_collapsed:
        raise TrainingCollapsed(
            f"{path}: the best weights are no better than guessing: check the labels, lower "
            "fit.optimiser.learning_rate, choose by fit.metric = macro_f1 if one class is rare, or give more rows "
            "(fit.allow_collapsed = true exports them all the same)"
        )
    model.load_state_dict(load_file(path))
    return selection
