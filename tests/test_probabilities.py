import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.probabilities import decide, softmax

LABELS = ("negative", "positive")
logit_rows = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6)


def logits(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_softmax_by_hand() -> None:
    assert softmax(logits(0.0, math.log(3.0))) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((100.0, -100.0), (1.0, 0.0), id="far apart"),
        pytest.param((-60.0, 40.0), (0.0, 1.0), id="the largest magnitude is the smallest logit"),
        pytest.param((1e4, 1e4), (0.5, 0.5), id="large and equal"),
        pytest.param((-1e4, -1e4), (0.5, 0.5), id="small and equal"),
        pytest.param((1e38, -1e38), (1.0, 0.0), id="as far as float32 goes"),
    ],
)
def test_softmax_stays_finite(values: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert softmax(logits(*values)) == pytest.approx(expected)


def test_softmax_works_on_every_row() -> None:
    result = softmax(np.array([[0.0, 0.0], [1000.0, 0.0]], dtype=np.float32))
    assert result.shape == (2, 2)
    assert result.dtype == np.float64
    assert result.tolist() == [[0.5, 0.5], [1.0, 0.0]]


@given(logit_rows)
def test_softmax_is_a_distribution_that_peaks_at_the_largest_logit(values: list[float]) -> None:
    result = softmax(np.array(values))
    assert result.sum() == pytest.approx(1.0)
    assert result[np.argmax(values)] == result.max()


@given(logit_rows, st.floats(-1e3, 1e3))
def test_softmax_does_not_see_a_common_shift(values: list[float], shift: float) -> None:
    assert softmax(np.array(values) + shift) == pytest.approx(softmax(np.array(values)), abs=1e-6)


def test_decide_takes_the_most_probable_label() -> None:
    found = decide(logits(0.0, math.log(3.0)), LABELS, temperature=1.0, abstain_threshold=0.0)
    assert (found.label, found.abstained) == ("positive", False)
    assert found.confidence == pytest.approx(0.75)
    assert found.probabilities == pytest.approx((0.25, 0.75))


def test_decide_keeps_its_label_when_it_abstains() -> None:
    found = decide(logits(0.0, math.log(3.0)), LABELS, temperature=1.0, abstain_threshold=0.8)
    assert (found.label, found.abstained) == ("positive", True)


def test_a_confidence_at_the_threshold_does_not_abstain() -> None:
    assert not decide(logits(0.0, 0.0), LABELS, temperature=1.0, abstain_threshold=0.5).abstained


def test_temperature_divides_the_logits() -> None:
    found = decide(logits(0.0, 2.0 * math.log(3.0)), LABELS, temperature=2.0, abstain_threshold=0.0)
    assert found.confidence == pytest.approx(0.75)


@given(logit_rows, st.floats(0.05, 20.0))
def test_no_temperature_changes_the_label(values: list[float], temperature: float) -> None:
    names = [f"class {i}" for i in range(len(values))]
    found = decide(np.array(values), names, temperature, abstain_threshold=0.0)
    assert values[names.index(found.label)] == pytest.approx(max(values))


@pytest.mark.parametrize("values", [(1.0,), (1.0, 2.0, 3.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_decide_refuses_what_is_not_one_finite_logit_a_label(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="2 finite logits"):
        decide(logits(*values), LABELS, temperature=1.0, abstain_threshold=0.0)
