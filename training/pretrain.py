"""Masked language modelling: the encoder learns Chinese from unlabelled text before it sees a label.

Devlin et al. 2019 (arXiv:1810.04805, section 3.1), with more masks (Wettig et al. 2023, arXiv:2202.08005) and a
softmax over the ids that the corpus holds. Whole words are hidden (`lengnuan.training.whole_words`). The encoder starts
at random, or continues from one that was imported.
"""

import logging
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from lengnuan.model.encoder import MaskedLanguageModel
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import MASK_ID, Tokenizer
from lengnuan.training.batches import Batch, Collator, Ragged, cut_by_tokens, training_order
from lengnuan.training.checkpoint import Checkpoints
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import DataRefused
from lengnuan.training.files import write_tensors
from lengnuan.training.memory import trim_memory
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.runlog import RunLog
from lengnuan.training.splits import share_of
from lengnuan.training.start import ENCODER, START, load_encoder
from lengnuan.training.stopping import stop_point
from lengnuan.training.whole_words import CONTINUES, NEVER_HIDDEN, STARTS, draw_per_word, encode_words

log = logging.getLogger(__name__)

HELD_OUT_SHARE = 0.01
STEPS_BETWEEN_EVALUATIONS = 500


def pretrain(
    config: TrainConfig, tokenizer: Tokenizer, texts: Iterable[str], run_folder: Path, hardware: Hardware
) -> Path:
    """Train an encoder on `texts`; resumes from a checkpoint in `run_folder`.

    Returns:
        The encoder's weights, `run_folder/encoder.safetensors`: float32, by parameter name. Present already: done.

    Raises:
        DataRefused: `texts` hold nothing to train on.
        UsageError: the run folder's checkpoint is of another corpus.
    """
    result = run_folder / ENCODER
    if result.exists():
        log.info("pretraining: %s is there already", result)
        return result
    settings = config.pretrain
    train, held_out = _windows(tokenizer, texts, config)
    candidates = np.union1d(train.rows.distinct(), held_out.rows.distinct())
    model = _build(config, tokenizer, torch.from_numpy(candidates.astype(np.int64)), run_folder).to(hardware.device)
    batches = _all_batches(train.rows, config)
    optimiser = Optimiser(model, settings.optimiser, len(batches))
    _log_start(model, train.rows, len(batches), hardware)
    run_log = RunLog(run_folder, "pretrain", steps=len(batches))
    checkpoints = Checkpoints(run_folder / "pretrain-checkpoints", train.rows.identity(), optimiser, log=run_log)
    checkpoints.resume()
    evaluations = {*range(0, len(batches), STEPS_BETWEEN_EVALUATIONS), len(batches)}
    with run_log, checkpoints:
        for step in range(optimiser.step, len(batches) + 1):
            if step in evaluations and step > run_log.judged:
                run_log.record_judged(step, _held_out_scores(model, held_out, config, hardware))
                checkpoints.save()
            if step == len(batches):
                break
            checkpoints.save_if_due()
            stop_point()
            batch, flags = train.batch(batches[step], hardware.device)
            with hardware.autocast():
                loss = masked_loss(model, batch, flags, settings.mask_share)
            optimiser.descend(loss)
            shown = dict(zip(("loss", "gradient_norm"), optimiser.update(), strict=True))
            trim_memory(optimiser.step)
            run_log.step(optimiser.step, batches[step], batch.tokens, {"loss": shown["loss"]})
            if optimiser.step % 50 == 0:
                run_log.record(optimiser.step, shown | {"skipped_steps": optimiser.skipped})
    write_tensors(result, model.encoder.state_dict())
    return result


def _all_batches(rows: Ragged, config: TrainConfig) -> list[npt.NDArray[np.int64]]:
    """The rows of every step of the run."""
    settings = config.pretrain
    orders = (
        training_order(rows.lengths, settings.batch_tokens, seed=config.seed, epoch=epoch)
        for epoch in range(settings.epochs)
    )
    return [indices for order in orders for indices in order]


def _build(config: TrainConfig, tokenizer: Tokenizer, candidates: Tensor, run_folder: Path) -> MaskedLanguageModel:
    """At random, or with the encoder that the run folder begins with; without dropout, which only slows it."""
    torch.manual_seed(config.seed)
    model = MaskedLanguageModel(replace(config.model.encoder(tokenizer.size), dropout=0.0), candidates)
    if (run_folder / START).exists():
        load_encoder(model.encoder, run_folder / START)
    return model


@dataclass(frozen=True)
class Maskable:
    """Rows of ids, and of the flags that say where words begin."""

    rows: Ragged
    flags: Ragged

    def batch(self, indices: npt.NDArray[np.int64], device: torch.device) -> tuple[Batch, Tensor]:
        """The rows of `indices` and their flags, int64 [B, T]."""
        batch = Collator(self.rows, None, device)(indices)
        flags, _ = pad([self.flags[i].tolist() for i in indices], NEVER_HIDDEN)
        return batch, torch.from_numpy(flags).to(device)


def masked_loss(model: MaskedLanguageModel, batch: Batch, flags: Tensor, mask_share: float) -> Tensor:
    """Cross-entropy over hidden words: 80 % become the mask id, 10 % random ids, 10 % stay (BERT, appendix A.1)."""
    hidden_at = draw_per_word(flags) < mask_share
    if not hidden_at.any():
        hidden_at[0, 0] = True
    fate = draw_per_word(flags)
    choice = torch.randint(len(model.candidates), batch.token_ids.shape, device=batch.token_ids.device)
    shown = torch.where(hidden_at & (fate < 0.8), MASK_ID, batch.token_ids)
    shown = torch.where(hidden_at & (fate >= 0.9), model.candidates[choice], shown)
    answers = torch.searchsorted(model.candidates, batch.token_ids[hidden_at])
    return F.cross_entropy(model(shown, batch.mask, hidden_at).float(), answers)


def _held_out_scores(
    model: MaskedLanguageModel, corpus: Maskable, config: TrainConfig, hardware: Hardware
) -> dict[str, float]:
    loss = held_out_loss(model, corpus, config, hardware)
    log.info("pretrain: held-out loss %.4f", loss)
    return {"held_out_loss": loss, "perplexity": math.exp(loss)}


@torch.no_grad()
def held_out_loss(model: MaskedLanguageModel, corpus: Maskable, config: TrainConfig, hardware: Hardware) -> float:
    """Mean masked loss over rows that are never trained on, the same masks each time."""
    lengths = corpus.rows.lengths
    if not len(lengths):
        return math.nan
    model.eval()
    losses, weights = [], []
    by_length = np.argsort(lengths, kind="stable")
    with torch.random.fork_rng():  # training's own random numbers go on as if nothing had happened
        torch.manual_seed(0)
        for indices in cut_by_tokens(by_length, lengths, config.pretrain.batch_tokens):
            stop_point()
            batch, flags = corpus.batch(indices, hardware.device)
            with hardware.autocast():
                losses.append(masked_loss(model, batch, flags, config.pretrain.mask_share).item())
            weights.append(batch.tokens)
    model.train()
    return float(np.average(losses, weights=weights))


def _windows(tokenizer: Tokenizer, texts: Iterable[str], config: TrainConfig) -> tuple[Maskable, Maskable]:
    """(train, held out): long texts become several rows, so nothing of the corpus is cut off."""
    kept: dict[bool, tuple[list[Sequence[int]], list[Sequence[int]]]] = {False: ([], []), True: ([], [])}
    step = config.pretrain.max_tokens
    for text in texts:
        ids, flags = encode_words(tokenizer, text)
        if not config.pretrain.whole_words:
            flags = [STARTS if flag == CONTINUES else flag for flag in flags]
        held_out = share_of(text, config.seed) < HELD_OUT_SHARE
        for parts, whole in zip(kept[held_out], (ids, flags), strict=True):
            parts += [array("i", whole[at : at + step]) for at in range(0, len(whole), step)]
    if not kept[False][0]:
        raise DataRefused("pretraining: the corpus holds no text; leave pretrain.corpus empty to skip it")
    train_corpus, held_out_corpus = (Maskable(Ragged(ids), Ragged(flags)) for ids, flags in (kept[False], kept[True]))
    return train_corpus, held_out_corpus


def _log_start(model: MaskedLanguageModel, rows: Ragged, steps: int, hardware: Hardware) -> None:
    parameters = sum(p.numel() for p in model.encoder.parameters())
    shape = model.encoder.config
    log.info("pretrain: %d layers x %d, %.1f M parameters", shape.layers, shape.width, parameters / 1e6)
    log.info(
        "pretrain: %d rows, %.2f M tokens, softmax over %d ids, %d steps on %s",
        len(rows), int(rows.lengths.sum()) / 1e6, len(model.candidates), steps, hardware,
    )  # fmt: skip
