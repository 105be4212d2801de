"""Making the confidence mean something: a temperature, and a threshold under which the answer is "uncertain"."""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from lengnuan.model.probabilities import softmax

log = logging.getLogger(__name__)

TEMPERATURE_RANGE = (0.05, 20.0)

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """What was fitted on dev, and what it does there.

    Args:
        temperature: stored in the bundle.
        abstain_threshold: stored in the bundle.
        dev_ece_before: expected calibration error without the temperature.
        dev_ece_after: with it.
        dev_coverage: share of the rows at or above the threshold.
        dev_accuracy_covered: accuracy of those.
    """

    temperature: float
    abstain_threshold: float
    dev_ece_before: float
    dev_ece_after: float
    dev_coverage: float
    dev_accuracy_covered: float


def fit_temperature(logits: npt.NDArray[np.float32], labels: Labels) -> float:
    """The one number that, dividing the logits, makes dev labels most likely (Guo et al. 2017, arXiv:1706.04599).

    With Platt's targets (1999), (n + 1) / (n + K) for the label and 1 / (n + K) for the others: labels that a small dev
    set happens to separate must not ask for endless confidence.

    Args:
        logits: float32 [N, K].
        labels: int64 [N].
    """
    rows, classes = logits.shape
    targets = np.full((rows, classes), 1.0 / (rows + classes))
    targets[np.arange(rows), labels] = (rows + 1.0) / (rows + classes)

    def loss(log_temperature: float) -> float:
        probabilities = softmax(logits / np.exp(log_temperature))
        return float(-(targets * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1).mean())

    low, high = np.log(TEMPERATURE_RANGE)
    temperature = round(float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x)), 4)
    if not 1.05 * TEMPERATURE_RANGE[0] < temperature < 0.95 * TEMPERATURE_RANGE[1]:
        log.warning("calibrate: the temperature reached its bound, %g: too few dev rows to trust it", temperature)
    return temperature


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
