"""Masked language modelling: the encoder learns Chinese from unlabelled text before it sees a label.

Devlin et al. 2019 (arXiv:1810.04805, section 3.1), with more masks (Wettig et al. 2023, arXiv:2202.08005) and a
softmax over the ids that the corpus holds. Whole words are hidden (`lengnuan.training.whole_words`). The encoder starts
at random, or continues from one that was imported.
"""

import logging
import math
from array import array
from collections.abc import Iterable
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
from lengnuan.training.batches import Batch, Collator, Ragged, cut_by_tokens, draw_seed, training_order
from lengnuan.training.checkpoint import Checkpoints
from lengnuan.training.config import TrainConfig
from lengnuan.training.distributed import all_sum, from_first, rank, rounds, world
from lengnuan.training.errors import DataRefused
from lengnuan.training.files import write_tensors
from lengnuan.training.memory import keep_freed_memory, trim_memory
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
    if from_first(result.exists):
        log.info("pretraining: %s is there already", result)
        return result
    settings = config.pretrain
    train, held_out = from_first(lambda: _windows(tokenizer, texts, config))
    candidates = torch.from_numpy(np.union1d(train.rows.distinct(), held_out.rows.distinct()).astype(np.int64))
    model = from_first(lambda: _build(config, tokenizer, candidates, run_folder)).to(hardware.device)
    batches = _all_batches(train.rows, config)
    optimiser = Optimiser(model, settings.optimiser, len(batches))
    _log_start(model, train.rows, len(batches), hardware)
    run_log = RunLog(run_folder, "pretrain", steps=len(batches))
    checkpoints = Checkpoints(run_folder / "pretrain-checkpoints", train.rows.identity(), optimiser, log=run_log)
    checkpoints.resume()
    evaluations = {*range(0, len(batches), STEPS_BETWEEN_EVALUATIONS), len(batches)}
    keep_freed_memory()
    with run_log, checkpoints:
        for step in range(optimiser.step, len(batches) + 1):
            if step in evaluations and step > run_log.judged:
                run_log.record_judged(step, _held_out_scores(model, held_out, config, hardware))
                checkpoints.save()
            if step == len(batches):
                break
            checkpoints.save_if_due()
            stop_point()
            batch, flags = train.batch(batches[step], hardware.device, draw_seed(config.seed, step, batches[step]))
            cloze = hide_words(batch, flags, model.candidates, settings.mask_share)
            _descend(model, cloze, hardware, optimiser)
            shown = dict(zip(("loss", "gradient_norm"), optimiser.update(), strict=True))
            trim_memory(optimiser.step)
            run_log.step(optimiser.step, batches[step], batch.tokens, {"loss": shown["loss"]})
            if optimiser.step % 50 == 0:
                run_log.record(optimiser.step, shown | {"skipped_steps": optimiser.skipped})
    from_first(lambda: write_tensors(result, model.encoder.state_dict()))
    return result


def _descend(model: MaskedLanguageModel, cloze: "Cloze", hardware: Hardware, optimiser: Optimiser) -> None:
    """This process's part of the gradient; the parts add up to that of the mean over all hidden tokens."""
    own = cloze.part(rank(), world())
    if own.tokens:
        with hardware.autocast():
            loss = masked_loss(model, own)
        optimiser.descend(own.tokens / cloze.tokens * loss)


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

    def batch(
        self, indices: npt.NDArray[np.int64], device: torch.device, seed: int | None = None
    ) -> tuple[Batch, Tensor]:
        """The rows of `indices` and their flags, int64 [B, T]."""
        batch = Collator(self.rows, None, device)(indices, seed)
        flags, _ = pad([self.flags[i].tolist() for i in indices], NEVER_HIDDEN)
        return batch, torch.from_numpy(flags).to(device)


@dataclass(frozen=True)
class Cloze:
    """A batch with words hidden. shown and token_ids: int64, mask and hidden_at: bool; all [B, T]."""

    shown: Tensor
    mask: Tensor
    hidden_at: Tensor
    token_ids: Tensor

    @property
    def tokens(self) -> int:
        """How many are to be guessed."""
        return int(self.hidden_at.sum())

    def part(self, rank: int, world: int) -> "Cloze":
        """Every `world`-th row, from `rank` on."""
        return Cloze(*(part[rank::world] for part in (self.shown, self.mask, self.hidden_at, self.token_ids)))


def hide_words(batch: Batch, flags: Tensor, candidates: Tensor, mask_share: float) -> Cloze:
    """Of the hidden words 80 % become the mask id, 10 % random ids, 10 % stay (BERT, appendix A.1)."""
    batch.begin_draws()
    hidden_at = draw_per_word(flags) < mask_share
    if not hidden_at.any():
        hidden_at[0, 0] = True
    fate = draw_per_word(flags)
    choice = torch.randint(len(candidates), batch.token_ids.shape, device=batch.token_ids.device)
    shown = torch.where(hidden_at & (fate < 0.8), MASK_ID, batch.token_ids)
    shown = torch.where(hidden_at & (fate >= 0.9), candidates[choice], shown)
    return Cloze(shown, batch.mask, hidden_at, batch.token_ids)


def masked_loss(model: MaskedLanguageModel, cloze: Cloze) -> Tensor:
    """Cross-entropy over the hidden words, of which there must be some."""
    answers = torch.searchsorted(model.candidates, cloze.token_ids[cloze.hidden_at])
    return F.cross_entropy(model(cloze.shown, cloze.mask, cloze.hidden_at).float(), answers)


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
    total = torch.zeros(2, dtype=torch.float64)  # losses by the tokens of their batch, and those tokens
    batches = cut_by_tokens(np.argsort(lengths, kind="stable"), lengths, config.pretrain.batch_tokens)
    for indices in rounds(batches):
        stop_point()
        if indices is None:
            continue
        batch, flags = corpus.batch(indices, hardware.device, draw_seed(0, 0, indices))
        with hardware.autocast():
            loss = masked_loss(model, hide_words(batch, flags, model.candidates, config.pretrain.mask_share))
        total += torch.tensor([batch.tokens * loss.item(), batch.tokens])
    model.train()
    losses, tokens = all_sum(total).tolist()
    return float(losses / tokens)


def _windows(tokenizer: Tokenizer, texts: Iterable[str], config: TrainConfig) -> tuple[Maskable, Maskable]:
    """(train, held out): long texts become several rows, so nothing of the corpus is cut off."""
    sides = ((array("i"), array("b"), array("q")), (array("i"), array("b"), array("q")))
    step = config.pretrain.max_tokens
    for text in texts:
        ids, flags = encode_words(tokenizer, text)
        if not config.pretrain.whole_words:
            flags = [STARTS if flag == CONTINUES else flag for flag in flags]
        all_ids, all_flags, lengths = sides[share_of(text, config.seed) < HELD_OUT_SHARE]
        all_ids.extend(ids)
        all_flags.extend(flags)
        lengths.extend(min(step, len(ids) - at) for at in range(0, len(ids), step))
    if not sides[0][0]:
        raise DataRefused("pretraining: the corpus holds no text; leave pretrain.corpus empty to skip it")
    train, held_out = (
        Maskable(Ragged.from_flat(ids, lengths), Ragged.from_flat(flags, lengths)) for ids, flags, lengths in sides
    )
    return train, held_out


def _log_start(model: MaskedLanguageModel, rows: Ragged, steps: int, hardware: Hardware) -> None:
    parameters = sum(p.numel() for p in model.encoder.parameters())
    shape = model.encoder.config
    log.info("pretrain: %d layers x %d, %.1f M parameters", shape.layers, shape.width, parameters / 1e6)
    log.info(
        "pretrain: %d rows, %.2f M tokens, softmax over %d ids, %d steps on %s",
        len(rows), int(rows.lengths.sum()) / 1e6, len(model.candidates), steps, hardware,
    )  # fmt: skip
