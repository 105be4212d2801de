from collections.abc import Sequence

import numpy as np
from small_runs import sentences

from lengnuan.training.corpus import Corpus
from lengnuan.training.data import Example, LabelSet
from lengnuan.training.referee import Referee


def corpus(rows: Sequence[tuple[str, int]], classes: int = 2) -> Corpus:
    examples = [Example(text, label) for text, label in rows]
    names = [f"class {i}" for i in range(classes)]
    return Corpus(LabelSet(names, {}), examples[20:], {"dev": examples[:20]}, {}, {})


def test_it_learns_what_n_grams_can_learn() -> None:
    referee = Referee(corpus(sentences(120)))
    fresh = sentences(40, seed=9)
    answers = referee.probabilities([Example(text, label) for text, label in fresh]).argmax(axis=1)
    assert (answers == [label for _, label in fresh]).mean() > 0.9


def test_probabilities_sum_to_one_and_a_class_without_rows_gets_zero() -> None:
    found = Referee(corpus(sentences(60), classes=3)).probabilities([Example("味道很好", 1)])
    assert found.shape == (1, 3)
    assert found[0, 2] == 0.0
    assert np.isclose(found.sum(), 1.0)


def test_it_sees_text_as_the_network_does() -> None:
    referee = Referee(corpus(sentences(60)))
    simple, traditional = referee.probabilities([Example("房间很好ABC", 1), Example("房間很好ａｂｃ", 1)])
    assert np.array_equal(simple, traditional)
