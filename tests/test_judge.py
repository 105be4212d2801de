import numpy as np
import pytest

from lengnuan.training.judge import has_collapsed

LABELS = np.array([0] * 70 + [1] * 30)
ENTROPY = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3))


def answers(right: int) -> np.ndarray:
    """`right` right answers, both classes among them."""
    found = 1 - LABELS
    found[:right] = LABELS[:right]
    return found


@pytest.mark.parametrize("only", [0, 1])
def test_one_class_for_everything_is_collapse_however_good_the_loss(only: int) -> None:
    assert has_collapsed(LABELS, np.full(100, only), loss=0.1)


def test_no_more_right_than_the_majority_and_no_loss_below_the_prior_is_collapse() -> None:
    assert has_collapsed(LABELS, answers(69), loss=float(ENTROPY) + 0.01)


def test_a_loss_below_the_prior_s_entropy_is_learning() -> None:
    assert not has_collapsed(LABELS, answers(69), loss=float(ENTROPY) - 0.01)


def test_more_right_than_the_majority_is_learning_even_if_too_sure() -> None:
    assert not has_collapsed(LABELS, answers(80), loss=5.0)


def test_a_handful_of_rows_proves_nothing() -> None:
    assert not has_collapsed(LABELS[:20], np.zeros(20, dtype=np.int64), loss=9.0)
