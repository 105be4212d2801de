"""What a network is to learn: texts, and for each the probabilities it should answer with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lengnuan.training.data import Example

Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Lesson:
    """Texts and what is to be answered: `targets` float32 [N, K], rows that sum to 1."""

    texts: list[str]
    targets: Probabilities

    def __add__(self, more: "Lesson") -> "Lesson":
        return Lesson(self.texts + more.texts, np.concatenate([self.targets, more.targets]))


def labelled_lesson(examples: Sequence[Example], classes: int) -> Lesson:
    """Every row with all of the probability on its label."""
    one_hot = np.eye(classes, dtype=np.float32)[[example.label for example in examples]]
    return Lesson([example.text for example in examples], one_hot)
