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
from lengnuan.training.checkpoint import load_checkpoint, save_checkpoint
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.files import write_tensors
from lengnuan.training.memory import trim_memory
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.runlog import RunLog
from lengnuan.training.splits import share_of
from lengnuan.training.start import ENCODER, START, load_encoder
from lengnuan.training.whole_words import CONTINUES, NEVER_HIDDEN, STARTS, draw_per_word, encode_words

log = logging.getLogger(__name__)

HELD_OUT_SHARE = 0.01
STEPS_BETWEEN_CHECKPOINTS = 500


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
    orders = [
        training_order(train.rows.lengths, settings.batch_tokens, seed=config.seed, epoch=epoch)
        for epoch in range(settings.epochs)
    ]
    optimiser = Optimiser(model, settings.optimiser, sum(map(len, orders)))
    _log_start(model, train.rows, optimiser.steps, hardware)
    checkpoints = run_folder / "pretrain-checkpoints"
    identity = train.rows.identity()
    _resume(checkpoints, identity, optimiser)
    with RunLog(run_folder, "pretrain", steps=optimiser.steps, done=optimiser.step) as run_log:
        for indices in [batch for order in orders for batch in order][optimiser.step :]:
            batch, flags = train.batch(indices, hardware.device)
            with hardware.autocast():
                loss = masked_loss(model, batch, flags, settings.mask_share)
            norm = optimiser.update(loss)
            shown = {"loss": float(loss.detach())}
            trim_memory(optimiser.step)
            run_log.step(optimiser.step, batch.tokens, shown)
            if optimiser.step % 50 == 0:
                run_log.record(optimiser.step, shown | {"gradient_norm": norm})
            if optimiser.step % STEPS_BETWEEN_CHECKPOINTS == 0 or optimiser.step == optimiser.steps:
                unseen = held_out_loss(model, held_out, config, hardware)
                run_log.record(optimiser.step, {"held_out_loss": unseen, "perplexity": math.exp(unseen)})
                log.info("pretrain %d: held-out loss %.4f", optimiser.step, unseen)
                save_checkpoint(checkpoints, optimiser.step, optimiser.tensors(), {"identity": identity})
    write_tensors(result, model.encoder.state_dict())
    return result


def _build(config: TrainConfig, tokenizer: Tokenizer, candidates: Tensor, run_folder: Path) -> MaskedLanguageModel:
    """At random, or with the encoder that the run folder begins with; without dropout, which only slows it."""
    torch.manual_seed(config.seed)
    model = MaskedLanguageModel(replace(config.model.encoder(tokenizer.size), dropout=0.0), candidates)
    if (run_folder / START).exists():
        load_encoder(model.encoder, run_folder / START)
    return model


def _resume(checkpoints: Path, identity: str, optimiser: Optimiser) -> None:
    resumed = load_checkpoint(checkpoints)
    if resumed is None:
        return
    tensors, state = resumed
    if state["identity"] != identity:
        raise UsageError(f"{checkpoints} are of another corpus: choose another --output, or remove them")
    optimiser.restore(tensors, int(state["step"]))


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
