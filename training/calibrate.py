"""Making the confidence mean something: a temperature, and a threshold under which the answer is "uncertain"."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from lengnuan.model.probabilities import softmax

TEMPERATURE_RANGE = (0.05, 20.0)

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """Both are fitted on dev and stored in the bundle."""

    temperature: float
    abstain_threshold: float


def fit_temperature(logits: npt.NDArray[np.float32], labels: Labels) -> float:
    """The one number that, dividing the logits, makes dev labels most likely (Guo et al. 2017, arXiv:1706.04599).

    Args:
        logits: float32 [N, K].
        labels: int64 [N].
    """
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        chosen = softmax(logits / np.exp(log_temperature))[rows, labels]
        return float(-np.log(np.maximum(chosen, 1e-12)).mean())

    low, high = np.log(TEMPERATURE_RANGE)
    return round(float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x)), 4)


def fit_threshold(labels: Labels, probabilities: Floats, wanted_accuracy: float | None) -> float:
    """The lowest confidence such that the rows at or above it reach `wanted_accuracy`; None wanted: 0, never abstain.

    If no threshold reaches it, the result is 1: everything is uncertain, which is the truth.
    """
    if wanted_accuracy is None:
        return 0.0
    confidence = probabilities.max(axis=1)
    for threshold, _, accuracy in coverage_curve(labels, probabilities):
        if accuracy >= wanted_accuracy:
            return 0.0 if threshold <= confidence.min() else round(threshold, 4)
    return 1.0


def coverage_curve(labels: Labels, probabilities: Floats, points: int = 101) -> list[tuple[float, float, float]]:
    """(threshold, coverage, accuracy of the covered rows), by rising threshold, while any row is covered."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    curve = []
    for threshold in np.linspace(1.0 / probabilities.shape[1], 1.0, points):
        covered = confidence >= threshold
        if not covered.any():
            break
        curve.append((float(threshold), float(covered.mean()), float(right[covered].mean())))
    return curve
