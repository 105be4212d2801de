"""Paired tests: against values worked out by hand, and against what thousands of draws of rows give."""

from math import comb

import numpy as np
import pytest
from sklearn.metrics import f1_score

from lengnuan.training.paired import Paired, bootstrap, churn, mcnemar


def random_pair(rows: int, classes: int = 3) -> Paired:
    random = np.random.default_rng(1)
    labels = random.integers(0, classes, rows)
    given = [np.where(random.random(rows) < right, labels, random.integers(0, classes, rows)) for right in (0.8, 0.6)]
    return Paired(labels, *given, classes)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (8, 2), (2, 8), (5, 5), (300, 250)])
def test_mcnemar_is_twice_the_smaller_tail_of_fair_coins(gained: int, lost: int) -> None:
    total = gained + lost
    tail = sum(comb(total, k) for k in range(min(gained, lost) + 1)) / 2**total
    assert mcnemar(gained, lost) == pytest.approx(min(1.0, 2 * tail))


def test_only_rows_that_one_of_them_gets_right_count() -> None:
    labels, candidate, live = np.array([[0, 1, 1, 0, 1], [0, 1, 0, 1, 1], [0, 0, 1, 1, 0]])
    paired = Paired(labels, candidate, live, 2)
    assert (paired.gained, paired.lost) == (2, 1)
    assert paired.difference == pytest.approx(1 / 5)


def test_the_bootstrap_s_differences_are_those_of_the_rows() -> None:
    pair = random_pair(200)
    found = bootstrap(pair, 200, 0)
    accuracy = (pair.candidate == pair.labels).mean() - (pair.live == pair.labels).mean()
    f1 = [f1_score(pair.labels, answers, average="macro") for answers in (pair.candidate, pair.live)]
    assert found["accuracy"]["difference"] == pytest.approx(accuracy)
    assert found["macro_f1"]["difference"] == pytest.approx(f1[0] - f1[1])


def test_its_intervals_are_those_of_drawing_rows_one_by_one() -> None:
    pair = random_pair(200)
    random = np.random.default_rng(5)
    differences = []
    for _ in range(2000):
        drawn = pair.part(random.integers(0, 200, 200))
        differences.append((drawn.difference, *_f1(drawn)))
    expected = np.quantile(np.array(differences), (0.025, 0.975), axis=0)
    found = bootstrap(pair, 4000, 0)
    assert found["accuracy"]["interval"] == pytest.approx(expected[:, 0], abs=0.011)
    assert found["macro_f1"]["interval"] == pytest.approx(expected[:, 1], abs=0.011)


def _f1(pair: Paired) -> list[float]:
    confusion = [np.zeros((3, 3)), np.zeros((3, 3))]
    for table, answers in zip(confusion, (pair.candidate, pair.live), strict=True):
        np.add.at(table, (pair.labels, answers), 1)
    scores = [(2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))).mean() for table in confusion]
    return [scores[0] - scores[1]]


def test_the_seed_decides_the_interval() -> None:
    pair = random_pair(100)
    assert bootstrap(pair, 200, 3) == bootstrap(pair, 200, 3) != bootstrap(pair, 200, 4)


def test_a_large_bootstrap_is_done_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair(100)
    monkeypatch.setattr("lengnuan.training.paired.CELLS", 100)
    low, high = bootstrap(pair, 2000, 0)["accuracy"]["interval"]
    monkeypatch.undo()
    assert (low, high) == pytest.approx(bootstrap(pair, 2000, 0)["accuracy"]["interval"], abs=0.03)


def test_churn_counts_flips_and_what_moved_where_both_are_right() -> None:
    labels, candidate, live = np.array([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])
    found = churn(Paired(labels, candidate, live, 2), np.array([0.9, 0.2, 0.6, 0.8]), np.array([0.7, 0.9, 0.4, 0.9]))
    assert (found["negative_flips"], found["positive_flips"], found["both_right"]) == (1, 1, 2)
    assert found["negative_flip_share"] == pytest.approx(1 / 3)
    assert found["changed"] == pytest.approx(2 / 4)
    assert found["moved"] == pytest.approx((0.2 + 0.1) / 2)
