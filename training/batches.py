"""Rows of ids to batches of similar length under a token budget, in an order that (seed, epoch) alone decides."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
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

    def __init__(self, rows: Iterable[Sequence[int]] = ()) -> None:
        flat, lengths = array("i"), array("q")
        for row in rows:
            flat.extend(row)
            lengths.append(len(row))
        self._hold(flat, lengths)

    @classmethod
    def from_flat(cls, flat: "array[int]", lengths: "array[int]") -> "Ragged":
        """Rows that stand one behind the other in `flat`; both arrays must not change any more."""
        rows = cls.__new__(cls)
        rows._hold(flat, lengths)
        return rows

    def _hold(self, flat: "array[int]", lengths: "array[int]") -> None:
        self._ids = np.asarray(flat)
        self.lengths = np.asarray(lengths)
        self._ends = np.cumsum(self.lengths)

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
    """token_ids: int64 [B, T], mask: bool [B, T] (True = real token), targets: float32 [B, K], or empty.

    `seed` is where the random draws on it begin, dropout among them; None: they go on from where they are.
    """

    token_ids: Tensor
    mask: Tensor
    targets: Tensor
    seed: int | None = None

    def begin_draws(self, turn: int = 0) -> None:
        """From here on torch draws what belongs to this batch, others in each turn that it is trained on in a step."""
        if self.seed is not None:
            torch.manual_seed(self.seed + turn)

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

    def __call__(self, indices: npt.NDArray[np.int64], seed: int | None = None) -> Batch:
        """The rows of `indices`, in that order."""
        token_ids, mask = pad([self._rows[i].tolist() for i in indices], PAD_ID)
        targets = self._targets[indices] if len(self._targets) else self._targets
        tensors = [torch.from_numpy(array).to(self._device) for array in (token_ids, mask, targets)]
        return Batch(tensors[0], tensors[1], tensors[2], seed)


def draw_seed(seed: int, step: int, indices: npt.NDArray[np.int64]) -> int:
    """The seed of a batch's random draws: of the run's seed, the step, and the batch's first row.

    So what is drawn does not depend on what was drawn before, in this process or in another: a resumed run goes on with
    the same draws, and so does one that deals its batches to another number of processes.
    """
    return int(np.random.SeedSequence([seed, step, int(indices[0])]).generate_state(1)[0])


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
