"""Two classifiers on the same rows: is one better, or is it chance, and what changes for those who use it.

Rows on which both are right, or both wrong, say nothing about which is better; only the others count.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

CELLS = 1 << 22  # numbers a block of the bootstrap may hold


@dataclass(frozen=True)
class Paired:
    """What two classifiers answer to the rows of one set.

    Args:
        labels: int64 [N], the classes they have.
        candidate: int64 [N], the classes that it gives.
        live: int64 [N], likewise.
        classes: K.
    """

    labels: Labels
    candidate: Labels
    live: Labels
    classes: int

    @property
    def gained(self) -> int:
        """Rows that only the candidate gets right."""
        return int(((self.candidate == self.labels) & (self.live != self.labels)).sum())

    @property
    def lost(self) -> int:
        """Rows that only the live one gets right: negative flips (Yan et al. 2021, arXiv:2011.09161)."""
        return int(((self.candidate != self.labels) & (self.live == self.labels)).sum())

    @property
    def difference(self) -> float:
        """The candidate's accuracy less the live one's."""
        return (self.gained - self.lost) / len(self.labels)

    def part(self, chosen: Bools) -> "Paired":
        """The rows where `chosen` (bool [N]) is True."""
        return Paired(self.labels[chosen], self.candidate[chosen], self.live[chosen], self.classes)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p of McNemar's exact test (1947): how likely so uneven a split is if each such row is a fair coin."""
    if gained + lost == 0:
        return 1.0
    return float(binomtest(gained, gained + lost).pvalue)


def bootstrap(paired: Paired, rounds: int, seed: int) -> dict[str, Any]:
    """95 % percentile intervals (Efron 1979) of how much better the candidate is, in accuracy and macro-F1.

    Whole rows are drawn again, with both answers, so what the two have in common cancels out. Rows with the same label
    and the same two answers are alike: drawing how many there are of each kind is the same, and costs no row.

    Returns:
        accuracy, macro_f1: `difference` and `interval` (low, high) of each.
    """
    kinds, counts = np.unique(
        np.stack([paired.labels, paired.candidate, paired.live], axis=1), axis=0, return_counts=True
    )
    random = np.random.default_rng(seed)
    block = max(1, CELLS // max(1, len(kinds)))
    parts = []
    for start in range(0, rounds, block):
        drawn = random.multinomial(counts.sum(), counts / counts.sum(), min(block, rounds - start))
        parts.append(_differences(kinds, drawn.astype(np.float64), paired.classes))
    seen = _differences(kinds, counts[None].astype(np.float64), paired.classes)[0]
    low, high = np.quantile(np.concatenate(parts), (0.025, 0.975), axis=0)
    return {
        name: {"difference": float(seen[place]), "interval": (float(low[place]), float(high[place]))}
        for place, name in enumerate(("accuracy", "macro_f1"))
    }


def _differences(kinds: Labels, counts: Floats, classes: int) -> Floats:
    """Candidate less live in (accuracy, macro-F1), float64 [R, 2], for R draws of how often each kind occurs [R, C]."""
    label, candidate, live = kinds.T
    support = counts @ np.eye(classes)[label]
    found = []
    for given in (candidate, live):
        right = counts @ (np.eye(classes)[label] * (given == label)[:, None])
        total = support + counts @ np.eye(classes)[given]
        f1 = (2 * right / np.maximum(total, 1)).sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
        found.append(np.stack([right.sum(axis=1) / counts.sum(axis=1), f1], axis=1))
    difference: Floats = found[0] - found[1]
    return difference


def churn(paired: Paired, candidate: Floats, live: Floats) -> dict[str, Any]:
    """What changes for those who use the answers, also where the accuracy does not.

    Args:
        paired: the answers.
        candidate: float64 [N], the probability that it gives to each row's label.
        live: float64 [N], likewise.

    Returns:
        changed: share of all rows with another answer.
        negative_flips: rows that only the live one gets right; `negative_flip_share` of those that it gets right.
        positive_flips: rows that only the candidate gets right.
        both_right: rows; `moved`: mean absolute change of the label's probability among them.
    """
    right = paired.live == paired.labels
    both = right & (paired.candidate == paired.labels)
    return {
        "changed": float((paired.candidate != paired.live).mean()),
        "negative_flips": paired.lost,
        "negative_flip_share": paired.lost / max(1, int(right.sum())),
        "positive_flips": paired.gained,
        "both_right": int(both.sum()),
        "moved": float(np.abs(candidate - live)[both].mean()) if both.any() else 0.0,
    }
