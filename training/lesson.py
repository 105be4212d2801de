"""What a network is to learn: texts, and for each the probabilities it should answer with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lengnuan.training.examples import Example, Examples
from lengnuan.training.texts import Texts

Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Lesson:
    """Texts and what is to be answered: `targets` float32 [N, K], rows that sum to 1."""

    texts: Texts
    targets: Probabilities

    def __add__(self, more: "Lesson") -> "Lesson":
        return Lesson(self.texts + more.texts, np.concatenate([self.targets, more.targets]))


def labelled_lesson(examples: Sequence[Example], classes: int) -> Lesson:
    """Every row with all of the probability on its label."""
    rows = Examples.of(examples)
    return Lesson(rows.texts, np.eye(classes, dtype=np.float32)[rows.labels])
