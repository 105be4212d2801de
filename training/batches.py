"""Rows of ids to batches of similar length under a token budget, in an order that (seed, epoch) alone decides."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID

# Rows are sorted by length inside windows of this many batches: wide enough that little is padded, narrow enough
# that a batch is still a random draw.
WINDOW_BATCHES = 50


class Ragged:
    """Rows of ids of any length in one flat array: a few bytes a token however many rows there are."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        lengths: list[int] = []

        def flat() -> Iterator[int]:
            for row in rows:
                lengths.append(len(row))
                yield from row

        self._ids = np.fromiter(flat(), dtype=np.int32)
        self._ends = np.cumsum(np.array(lengths, dtype=np.int64))
        self.lengths = np.array(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        end = self._ends[index]
        return self._ids[end - self.lengths[index] : end]

    def identity(self) -> str:
        """Hash of all rows in their order."""
        digest = hashlib.sha256(self._ids.tobytes())
        digest.update(self.lengths.tobytes())
        return digest.hexdigest()[:16]

    def distinct(self) -> npt.NDArray[np.int32]:
        """The ids that occur, sorted."""
        return np.unique(self._ids)


@dataclass(frozen=True)
class Batch:
    """token_ids: int64 [B, T], mask: bool [B, T] (True = real token), targets: float32 [B, K], or empty."""

    token_ids: Tensor
    mask: Tensor
    targets: Tensor

    @property
    def tokens(self) -> int:
        """Real tokens in it."""
        return int(self.mask.sum())


class Collator:
    """Row numbers to a padded batch on the device."""

    def __init__(self, rows: Ragged, targets: npt.NDArray[np.float32] | None, device: torch.device) -> None:
        self._rows = rows
        self._targets = np.empty(0, dtype=np.float32) if targets is None else targets
        self._device = device

    def __call__(self, indices: npt.NDArray[np.int64]) -> Batch:
        """The rows of `indices`, in that order."""
        token_ids, mask = pad([self._rows[i].tolist() for i in indices], PAD_ID)
        targets = self._targets[indices] if len(self._targets) else self._targets
        return Batch(*(torch.from_numpy(array).to(self._device) for array in (token_ids, mask, targets)))


def training_order(
    lengths: npt.NDArray[np.int64], batch_tokens: int, *, seed: int, epoch: int
) -> list[npt.NDArray[np.int64]]:
    """Every row once, shuffled, in batches of similar length.

    Args:
        lengths: int64 [N], tokens of each row.
        batch_tokens: padded tokens a batch may hold; a single longer row is a batch of its own.
        seed: with `epoch`, decides the order completely.
        epoch: 0-based.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    window = max(1, int(WINDOW_BATCHES * batch_tokens / max(1.0, float(lengths.mean()))))
    batches: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(order), window):
        rows = order[start : start + window]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches += cut_by_tokens(rows, lengths, batch_tokens)
    return [batches[i] for i in random.permutation(len(batches))]


def cut_by_tokens(
    rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], batch_tokens: int
) -> list[npt.NDArray[np.int64]]:
    """Consecutive rows to batches whose padded size (rows x longest) stays within `batch_tokens`."""
    batches: list[npt.NDArray[np.int64]] = []
    start = longest = 0
    for position, row in enumerate(rows):
        longest = max(longest, int(lengths[row]))
        if position > start and longest * (position - start + 1) > batch_tokens:
            batches.append(rows[start:position])
            start, longest = position, int(lengths[row])
    if len(rows):
        batches.append(rows[start:])
    return batches
