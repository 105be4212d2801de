import numpy as np
import pytest

from lengnuan.model.probabilities import softmax
from lengnuan.training.calibrate import coverage_curve, fit_temperature, fit_threshold
from lengnuan.training.scores import calibration_error


def overconfident(rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model that is three times too sure, with labels drawn from the true probabilities."""
    random = np.random.default_rng(0)
    true_logits = random.normal(0, 1.5, (rows, 2))
    labels = (random.random(rows) < softmax(true_logits)[:, 1]).astype(np.int64)
    return (3 * true_logits).astype(np.float32), labels


def test_temperature_finds_how_much_too_sure_the_model_is() -> None:
    assert fit_temperature(*overconfident()) == pytest.approx(3.0, rel=0.1)


def test_temperature_lowers_the_calibration_error() -> None:
    logits, labels = overconfident()
    before = calibration_error(labels, softmax(logits))
    after = calibration_error(labels, softmax(logits / fit_temperature(logits, labels)))
    assert after < 0.03 < before


def test_threshold_reaches_the_wanted_accuracy_and_is_the_lowest_that_does() -> None:
    logits, labels = overconfident()
    probabilities = softmax(logits / 3.0)
    threshold = fit_threshold(labels, probabilities, 0.9)
    right = probabilities.argmax(axis=1) == labels
    covered = probabilities.max(axis=1) >= threshold
    assert right[covered].mean() >= 0.9
    assert right[probabilities.max(axis=1) >= threshold - 0.02].mean() < 0.9


def test_nothing_wanted_never_abstains() -> None:
    logits, labels = overconfident(50)
    assert fit_threshold(labels, softmax(logits), None) == 0.0


def test_an_accuracy_that_cannot_be_reached_abstains_always() -> None:
    labels, probabilities = np.array([1, 1]), np.array([[0.8, 0.2], [0.9, 0.1]])
    assert fit_threshold(labels, probabilities, 0.9) == 1.0


def test_coverage_falls_as_the_threshold_rises() -> None:
    logits, labels = overconfident(500)
    shares = [coverage for _, coverage, _ in coverage_curve(labels, softmax(logits))]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("rows", [10, 50, 200])
def test_separable_dev_rows_do_not_ask_for_endless_confidence(rows: int) -> None:
    labels = np.arange(rows) % 2
    logits = np.stack([1.0 - labels, labels], axis=1).astype(np.float32)  # always right, by a margin of one
    assert softmax(logits / fit_temperature(logits, labels)).max() < (rows + 1.0) / (rows + 2.0) + 1e-3


def test_a_temperature_at_its_bound_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    fit_temperature(np.zeros((4, 2), dtype=np.float32) + 1e-6 * np.eye(4, 2, dtype=np.float32), np.array([0, 1, 0, 0]))
    assert "too few dev rows" in caplog.text
