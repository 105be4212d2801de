"""What the answers to a batch cost: cross-entropy, with rare classes or hard rows made to count more.

For a row with target q (smoothed to q' = (1 - s) q + s / K), answers p = softmax(logits) and class weights w:

    loss of the row     sum over k of  -q'_k (1 - p_k)^gamma log p_k      gamma = 0: plain cross-entropy
    weight of the row   sum over k of  w_k q_k                            of the target as it was before smoothing
    loss of the batch   sum of weight x loss, over the sum of the weights

So smoothing says what a row should be answered with and class weights say how much the row counts; neither bends the
other (torch applies its weights to the smoothed target, and then a rare class is smoothed less than a common one).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from lengnuan.training.config import FitConfig
from lengnuan.training.errors import UsageError

EFFECTIVE_BETA = 0.999  # of Cui et al. 2019: beyond 1 / (1 - beta) rows, more of the same add nothing


class Objective:
    """The loss of a batch.

    Args:
        settings: label smoothing, focal gamma.
        class_weights: float32 [K]; None: every row counts the same.
    """

    def __init__(self, settings: FitConfig, class_weights: Tensor | None = None) -> None:
        self._smoothing = settings.label_smoothing
        self._gamma = settings.focal_gamma
        self._class_weights = class_weights

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the rows; logits and targets: float32 [B, K]."""
        if self._class_weights is None and not self._gamma:
            return F.cross_entropy(logits, targets, label_smoothing=self._smoothing)
        smoothed = (1.0 - self._smoothing) * targets + self._smoothing / targets.shape[1]
        log_p = F.log_softmax(logits, dim=1)
        # Lin et al. 2017 (arXiv:1708.02002), equation 4, for every class that the target names.
        hardness = (1.0 - log_p.exp()) ** self._gamma if self._gamma else 1.0
        return self.mean(-(smoothed * hardness * log_p).sum(dim=1), targets)

    def mean(self, values: Tensor, targets: Tensor) -> Tensor:
        """Mean of one value a row (float32 [B]), each row with its weight."""
        if self._class_weights is None:
            return values.mean()
        weights = targets @ self._class_weights
        return (weights * values).sum() / weights.sum()

    def weight(self, targets: Tensor) -> float:
        """How much a batch counts beside others: its rows, or the sum of their weights."""
        if self._class_weights is None:
            return float(len(targets))
        return float((targets @ self._class_weights).sum())


def class_weights(wanted: str | Sequence[float], counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float32] | None:
    """Float32 [K], or None for `none`. A class without rows gets 0: nothing is answered with it.

    `balanced`: every class counts as much as any other, N / (K n_k). `effective`: in inverse proportion to the
    effective number of rows, (1 - beta^n_k) / (1 - beta) (Cui et al. 2019, arXiv:1901.05555), so classes that are all
    large count nearly alike. Both are scaled to a mean of 1 over the rows: the learning rate keeps its meaning.

    Args:
        wanted: none, balanced, effective, or one weight a class.
        counts: float64 [K], training rows of each class.

    Raises:
        UsageError: a list of another length.
    """
    if wanted == "none":
        return None
    present = np.maximum(counts, 1.0)
    if isinstance(wanted, str):
        weights = 1.0 / present if wanted == "balanced" else 1.0 / (1.0 - EFFECTIVE_BETA**present)
        weights = np.where(counts > 0, weights, 0.0)
        weights *= counts.sum() / (weights * counts).sum()
    elif len(wanted) == len(counts):
        weights = np.array(wanted)
    else:
        raise UsageError(f"fit.class_weight has {len(wanted)} weights for {len(counts)} classes: give one for each")
    return weights.astype(np.float32)


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Mean of the two Kullback-Leibler divergences between two answers to the same rows: [B, K] twice -> [B].

    It makes two passes with different dropout agree: R-Drop (Liang et al. 2021, arXiv:2106.14448).
    """
    one, other = F.log_softmax(logits, dim=1), F.log_softmax(others, dim=1)
    return 0.5 * ((one.exp() - other.exp()) * (one - other)).sum(dim=1)


def objective_for(settings: FitConfig, targets: npt.NDArray[np.float32], device: torch.device) -> Objective:
    """The loss that `settings` ask for, with the classes counted in the targets (float32 [N, K])."""
    weights = class_weights(settings.class_weight, targets.sum(axis=0, dtype=np.float64))
    return Objective(settings, None if weights is None else torch.from_numpy(weights).to(device))
