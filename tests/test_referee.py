from collections.abc import Sequence

import numpy as np
from small_runs import sentences

from lengnuan.training.corpus import Corpus
from lengnuan.training.data import LabelSet
from lengnuan.training.examples import Example
from lengnuan.training.referee import Referee


def corpus(rows: Sequence[tuple[str, int]], classes: int = 2) -> Corpus:
    examples = [Example(text, label) for text, label in rows]
    names = [f"class {i}" for i in range(classes)]
    return Corpus(LabelSet(names, {}), examples[20:], {"dev": examples[:20]}, {}, {})


def test_it_learns_what_n_grams_can_learn() -> None:
    referee = Referee(corpus(sentences(120)))
    fresh = sentences(40, seed=9)
    answers = referee.probabilities([text for text, _ in fresh]).argmax(axis=1)
    assert (answers == [label for _, label in fresh]).mean() > 0.9


def test_probabilities_sum_to_one_and_a_class_without_rows_gets_zero() -> None:
    found = Referee(corpus(sentences(60), classes=3)).probabilities(["味道很好"])
    assert found.shape == (1, 3)
    assert found[0, 2] == 0.0
    assert np.isclose(found.sum(), 1.0)


def test_it_sees_text_as_the_network_does() -> None:
    referee = Referee(corpus(sentences(60)))
    simple, traditional = referee.probabilities(["房间很好ABC", "房間很好ａｂｃ"])
    assert np.array_equal(simple, traditional)


def test_out_of_fold_judges_each_row_without_having_seen_it() -> None:
    """Every text stands in it once, and its label is chance: only a model that saw the row could know it."""
    rows = [
        (f"{a}{b}", (i * 7 + j * 3) % 2)
        for i, a in enumerate("甲乙丙丁戊己庚辛")
        for j, b in enumerate("子丑寅卯辰巳午未")
    ]
    found = corpus([*sentences(20), *rows])
    referee = Referee(found)
    labels = np.array([example.label for example in found.train])
    seen = referee.probabilities([example.text for example in found.train]).argmax(axis=1) == labels
    unseen = referee.out_of_fold(found).argmax(axis=1) == labels
    assert np.allclose(referee.out_of_fold(found).sum(axis=1), 1.0)
    assert unseen.mean() < 0.75 < seen.mean()
