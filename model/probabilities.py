"""Logits to an answer: softmax, calibrated by a temperature, and the decision to abstain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """The answer for one text.

    Args:
        label: the most probable class; also when `abstained`, so that a caller may overrule.
        confidence: its probability.
        probabilities: one a class, in the order of the labels; they sum to 1.
        abstained: True when `confidence` is below the bundle's threshold: treat the answer as "uncertain".
    """

    label: str
    confidence: float
    probabilities: tuple[float, ...]
    abstained: bool


def softmax(logits: Floats) -> npt.NDArray[np.float64]:
    """Probabilities along the last axis: float [..., K] -> float64 [..., K].

    Shifted by the true maximum, so no exponent is above zero and none overflows, however large the logits.
    """
    shifted = np.asarray(logits, dtype=np.float64)
    exponents = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    result: npt.NDArray[np.float64] = exponents / exponents.sum(axis=-1, keepdims=True)
    return result


def decide(logits: Floats, labels: Sequence[str], temperature: float, abstain_threshold: float) -> Prediction:
    """The prediction for one text's logits (float [K]).

    Args:
        logits: one a label.
        labels: names in the order of the outputs.
        temperature: the logits are divided by it first (Guo et al. 2017, arXiv:1706.04599); 1 changes nothing.
        abstain_threshold: a confidence below it is marked `abstained`; 0 never abstains.

    Raises:
        ValueError: not one finite logit a label.
    """
    # Of so few numbers, the interpreter's own functions make more in a microsecond than numpy's.
    values: list[float] = logits.tolist()
    if len(values) != len(labels) or not all(map(math.isfinite, values)):
        raise ValueError(f"need {len(labels)} finite logits, got {values}")
    highest = max(values)
    exponents = [math.exp((value - highest) / temperature) for value in values]
    total = sum(exponents)
    probabilities = [exponent / total for exponent in exponents]
    confidence = max(probabilities)
    label = labels[probabilities.index(confidence)]
    return Prediction(label, confidence, tuple(probabilities), confidence < abstain_threshold)
