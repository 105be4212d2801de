"""Masked language modelling: the encoder learns Chinese from unlabelled text before it sees a label.

Devlin et al. 2019 (arXiv:1810.04805, section 3.1), with more masks (Wettig et al. 2023, arXiv:2202.08005) and a
softmax over the ids that the corpus holds. Most pieces of our tokenizer are words, so masking a piece hides a word.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from lengnuan.model.encoder import EncoderConfig, MaskedLanguageModel
from lengnuan.model.tokenizer import MASK_ID, Tokenizer
from lengnuan.training.batches import Batch, Collator, Ragged, cut_by_tokens, training_order
from lengnuan.training.checkpoint import load_checkpoint, save_checkpoint
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.runlog import RunLog
from lengnuan.training.splits import share_of

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
    result = run_folder / "encoder.safetensors"
    if result.exists():
        log.info("pretraining: %s is there already", result)
        return result
    settings = config.pretrain
    train_rows, held_out_rows = _windows(tokenizer, texts, settings.max_tokens, config.seed)
    candidates = torch.from_numpy(np.union1d(train_rows.distinct(), held_out_rows.distinct()).astype(np.int64))
    torch.manual_seed(config.seed)
    shape = replace(config.model.encoder(tokenizer.size), dropout=0.0)
    model = MaskedLanguageModel(shape, candidates).to(hardware.device)
    orders = [
        training_order(train_rows.lengths, settings.batch_tokens, seed=config.seed, epoch=epoch)
        for epoch in range(settings.epochs)
    ]
    optimiser = Optimiser(model, settings.optimiser, sum(map(len, orders)))
    _log_start(model, shape, train_rows, optimiser.steps, hardware)
    checkpoints = run_folder / "pretrain-checkpoints"
    identity = train_rows.identity()
    _resume(checkpoints, identity, optimiser)
    collate = Collator(train_rows, None, hardware.device)
    with RunLog(run_folder, "pretrain", steps=optimiser.steps, done=optimiser.step) as run_log:
        for indices in [batch for order in orders for batch in order][optimiser.step :]:
            batch = collate(indices)
            with hardware.autocast():
                loss = masked_loss(model, batch, settings.mask_share)
            norm = optimiser.update(loss)
            shown = {"loss": float(loss.detach())}
            run_log.step(optimiser.step, batch.tokens, shown)
            if optimiser.step % 50 == 0:
                run_log.record(optimiser.step, shown | {"gradient_norm": norm})
            if optimiser.step % STEPS_BETWEEN_CHECKPOINTS == 0 or optimiser.step == optimiser.steps:
                held_out = held_out_loss(model, held_out_rows, config, hardware)
                run_log.record(optimiser.step, {"held_out_loss": held_out, "perplexity": math.exp(held_out)})
                log.info("pretrain %d: held-out loss %.4f", optimiser.step, held_out)
                save_checkpoint(checkpoints, optimiser.step, optimiser.tensors(), {"identity": identity})
    _write_weights(model, result)
    return result


def _resume(checkpoints: Path, identity: str, optimiser: Optimiser) -> None:
    resumed = load_checkpoint(checkpoints)
    if resumed is None:
        return
    tensors, state = resumed
    if state["identity"] != identity:
        raise UsageError(f"{checkpoints} are of another corpus: choose another --output, or remove them")
    optimiser.restore(tensors, int(state["step"]))


def masked_loss(model: MaskedLanguageModel, batch: Batch, mask_share: float) -> Tensor:
    """Cross-entropy over hidden tokens: 80 % become the mask id, 10 % a random id, 10 % stay (BERT, appendix A.1)."""
    draw = torch.rand(batch.token_ids.shape, device=batch.token_ids.device)
    hidden_at = (draw < mask_share) & batch.mask
    if not hidden_at.any():
        hidden_at[0, 0] = True
    fate = torch.rand(batch.token_ids.shape, device=batch.token_ids.device)
    choice = torch.randint(len(model.candidates), batch.token_ids.shape, device=batch.token_ids.device)
    shown = torch.where(hidden_at & (fate < 0.8), MASK_ID, batch.token_ids)
    shown = torch.where(hidden_at & (fate >= 0.9), model.candidates[choice], shown)
    answers = torch.searchsorted(model.candidates, batch.token_ids[hidden_at])
    return F.cross_entropy(model(shown, batch.mask, hidden_at).float(), answers)


@torch.no_grad()
def held_out_loss(model: MaskedLanguageModel, rows: Ragged, config: TrainConfig, hardware: Hardware) -> float:
    """Mean masked loss over rows that are never trained on, the same masks each time."""
    if not len(rows):
        return math.nan
    model.eval()
    collate = Collator(rows, None, hardware.device)
    losses, weights = [], []
    by_length = np.argsort(rows.lengths, kind="stable")
    with torch.random.fork_rng():  # training's own random numbers go on as if nothing had happened
        torch.manual_seed(0)
        for indices in cut_by_tokens(by_length, rows.lengths, config.pretrain.batch_tokens):
            batch = collate(indices)
            with hardware.autocast():
                losses.append(masked_loss(model, batch, config.pretrain.mask_share).item())
            weights.append(batch.tokens)
    model.train()
    return float(np.average(losses, weights=weights))


def _windows(tokenizer: Tokenizer, texts: Iterable[str], max_tokens: int, seed: int) -> tuple[Ragged, Ragged]:
    """(train, held out): long texts become several rows, so nothing of the corpus is cut off."""
    held_out: list[list[int]] = []

    def train() -> Iterator[list[int]]:
        for text in texts:
            ids = tokenizer.encode(text)
            rows = [ids[start : start + max_tokens] for start in range(0, len(ids), max_tokens)]
            if share_of(text, seed) < HELD_OUT_SHARE:
                held_out.extend(rows)
            else:
                yield from rows

    train_rows = Ragged(train())
    if not len(train_rows):
        raise DataRefused("pretraining: the corpus holds no text; leave pretrain.corpus empty to skip it")
    return train_rows, Ragged(held_out)


def _write_weights(model: MaskedLanguageModel, path: Path) -> None:
    weights = {name: value.detach().cpu().contiguous() for name, value in model.encoder.state_dict().items()}
    aside = path.with_suffix(".writing")
    save_file(weights, aside)
    aside.rename(path)


def _log_start(model: MaskedLanguageModel, shape: EncoderConfig, rows: Ragged, steps: int, hardware: Hardware) -> None:
    parameters = sum(p.numel() for p in model.encoder.parameters())
    log.info("pretrain: %d layers x %d, %.1f M parameters", shape.layers, shape.width, parameters / 1e6)
    log.info(
        "pretrain: %d rows, %.2f M tokens, softmax over %d ids, %d steps on %s",
        len(rows), int(rows.lengths.sum()) / 1e6, len(model.candidates), steps, hardware,
    )  # fmt: skip
