"""Figures about predictions, each with its interval; the formulas are scikit-learn's or stated here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

Z95 = 1.959964  # two-sided 95 % of the normal distribution
CALIBRATION_BINS = 15  # Guo et al. 2017 (arXiv:1706.04599), section 2
BOOTSTRAP_ROUNDS = 1000
CHANCE_ROUNDS = 200

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scored:
    """Predictions for the rows of one source.

    Args:
        labels: int64 [N], the classes they have.
        probabilities: float64 [N, K].
        domains: N names.
        leaked: bool [N], True where the text is also a training row.
    """

    labels: Labels
    probabilities: Floats
    domains: Sequence[str]
    leaked: npt.NDArray[np.bool_]

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Bool [N], True where the most probable class is the label."""
        result: npt.NDArray[np.bool_] = self.probabilities.argmax(axis=1) == self.labels
        return result

    def part(self, chosen: npt.NDArray[np.bool_]) -> "Scored":
        """The rows where `chosen` (bool [N]) is True."""
        domains = [domain for domain, keep in zip(self.domains, chosen, strict=True) if keep]
        return Scored(self.labels[chosen], self.probabilities[chosen], domains, self.leaked[chosen])


def wilson_interval(right: int, rows: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): unlike the normal one it stays inside [0, 1] and works for few rows."""
    if rows == 0:
        return 0.0, 1.0
    share, z2 = right / rows, Z95**2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = Z95 * math.sqrt(share * (1 - share) / rows + z2 / (4 * rows**2)) / (1 + z2 / rows)
    return max(0.0, middle - half), min(1.0, middle + half)


def calibration_error(labels: Labels, probabilities: Floats) -> float:
    """Expected calibration error: |accuracy - mean confidence| over equally wide bins, weighted by their rows."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = [abs(float(right[bins == b].mean() - confidence[bins == b].mean())) * (bins == b).mean() for b in set(bins)]
    return float(sum(gaps))


def calibration_chance(probabilities: Floats) -> float:
    """The calibration error that so many rows with these confidences stay under 19 times in 20 if each is exactly true.

    The error of few rows is never 0: shares in a bin scatter around any confidence, and only the excess is a fault.
    Simulated: every row is right with the probability that its confidence says.
    """
    confidence = probabilities.max(axis=1)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    random = np.random.default_rng(0)
    expected = np.bincount(bins, confidence, CALIBRATION_BINS)
    errors = [
        np.abs(np.bincount(bins, random.random(len(bins)) < confidence, CALIBRATION_BINS) - expected).sum() / len(bins)
        for _ in range(CHANCE_ROUNDS)
    ]
    return float(np.quantile(errors, 0.95))


def answered(scored: Scored, threshold: float) -> dict[str, Any]:
    """What abstaining below `threshold` does: share of the rows that are answered, and the accuracy of those."""
    covered = scored.probabilities.max(axis=1) >= threshold
    rows, right = int(covered.sum()), int(scored.right[covered].sum())
    return {
        "threshold": threshold,
        "rows": rows,
        "coverage": rows / max(1, len(covered)),
        "accuracy": right / rows if rows else None,
        "accuracy_interval": wilson_interval(right, rows),
    }


def macro_f1_interval(labels: Labels, answers: Labels, classes: int) -> tuple[float, float]:
    """95 % percentile bootstrap over rows, from the confusion matrix (so a round costs K x K, not N)."""
    counts = confusion_matrix(labels, answers, labels=range(classes)).ravel()
    random = np.random.default_rng(0)
    draws = random.multinomial(counts.sum(), counts / counts.sum(), BOOTSTRAP_ROUNDS)
    draws = draws.reshape(-1, classes, classes)
    hits = np.diagonal(draws, axis1=1, axis2=2)
    total = draws.sum(axis=1) + draws.sum(axis=2)
    f1 = (2 * hits / np.maximum(total, 1)).sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
    return float(np.quantile(f1, 0.025)), float(np.quantile(f1, 0.975))


def summary(scored: Scored, labels: Sequence[str]) -> dict[str, Any]:
    """Every figure for one source; leaked and clean rows and the domains apart where there is more than one kind."""
    answers = scored.probabilities.argmax(axis=1)
    found = _figures(scored, answers, labels)
    found["confusion"] = confusion_matrix(scored.labels, answers, labels=range(len(labels))).tolist()
    if scored.leaked.any():
        for name, part in (("leaked", scored.part(scored.leaked)), ("clean", scored.part(~scored.leaked))):
            found[name] = _figures(part, part.probabilities.argmax(axis=1), labels) if len(part.labels) else {"rows": 0}
    domains = sorted(set(scored.domains))
    if len(domains) > 1:
        names = np.array(scored.domains)
        parts = {domain: scored.part(names == domain) for domain in domains}
        found["domains"] = {domain: _accuracy(part) for domain, part in parts.items()}
    return found


def _accuracy(scored: Scored) -> dict[str, Any]:
    right, rows = int(scored.right.sum()), len(scored.labels)
    return {"rows": rows, "accuracy": right / rows, "accuracy_interval": wilson_interval(right, rows)}


def _figures(scored: Scored, answers: Labels, labels: Sequence[str]) -> dict[str, Any]:
    precision, recall, f1, support = precision_recall_fscore_support(
        scored.labels, answers, labels=range(len(labels)), zero_division=0.0
    )
    present = (support > 0) | np.isin(range(len(labels)), answers)  # as scikit-learn's macro average
    return {
        **_accuracy(scored),
        "macro_f1": float(f1[present].mean()),
        "macro_f1_interval": macro_f1_interval(scored.labels, answers, len(labels)),
        "ece": calibration_error(scored.labels, scored.probabilities),
        "ece_by_chance": calibration_chance(scored.probabilities),
        "mean_confidence": float(scored.probabilities.max(axis=1).mean()),
        "classes": {
            name: {"precision": float(p), "recall": float(r), "f1": float(f), "rows": int(n)}
            for name, p, r, f, n in zip(labels, precision, recall, f1, support, strict=True)
        },
    }


def margin(model: Mapping[str, Scored], referee: Mapping[str, Scored]) -> dict[str, Any]:
    """How far the model's accuracy is above the referee's on the same rows, and on the mean of the sources.

    Paired: only rows that one of the two gets right and the other wrong move it. The 95 % interval is Agresti and
    Min's (2005, Statistics in Medicine 24:729): half a row is added to each of the four cells, so that few rows, or
    rows without any difference, do not look certain. The sources are independent of each other.
    """
    sources = {name: _paired(scored.right, referee[name].right) for name, scored in model.items()}
    margins, centres, deviations = (np.array(column) for column in zip(*sources.values(), strict=True))
    deviation = float(np.sqrt((deviations**2).sum())) / len(sources)
    return {
        "mean": _with_interval(float(margins.mean()), float(centres.mean()), deviation),
        "sources": {name: _with_interval(*found) for name, found in sources.items()},
    }


def _paired(right: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> tuple[float, float, float]:
    """(difference of the two shares, centre and standard deviation of its interval) for bool [N] twice."""
    gained, lost = int((right & ~other).sum()), int((other & ~right).sum())
    rows = len(right) + 2.0
    centre = (gained - lost) / rows
    return (gained - lost) / len(right), centre, math.sqrt(gained + lost + 1.0 - rows * centre**2) / rows


def _with_interval(value: float, centre: float, deviation: float) -> dict[str, Any]:
    return {"margin": value, "interval": (centre - Z95 * deviation, centre + Z95 * deviation)}
