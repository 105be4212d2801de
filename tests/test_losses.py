"""Class weights, focal loss and label smoothing against formulas written out here."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lengnuan.training.config import FitConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.losses import Objective, class_weights, divergence, objective_for

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 0.3], [-0.5, 0.2, 0.1]])
LABELS = torch.tensor([0, 2, 1])
TARGETS = torch.eye(3)[LABELS]
WEIGHTS = torch.tensor([1.0, 3.0, 0.5])


def settings(smoothing: float = 0.0, gamma: float = 0.0) -> FitConfig:
    return FitConfig(label_smoothing=smoothing, focal_gamma=gamma)


def by_hand(smoothing: float, gamma: float, weights: list[float]) -> float:
    """The module's formula with plain numbers."""
    total = weight_sum = 0.0
    for logits, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        exponents = [math.exp(x) for x in logits]
        loss = 0.0
        for k, exponent in enumerate(exponents):
            p = exponent / sum(exponents)
            q = (1 - smoothing) * (k == label) + smoothing / 3
            loss -= q * (1 - p) ** gamma * math.log(p)
        total += weights[label] * loss
        weight_sum += weights[label]
    return total / weight_sum


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 2.0, 0.5])
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]])
def test_every_combination_is_the_formula(smoothing: float, gamma: float, weights: list[float] | None) -> None:
    objective = Objective(settings(smoothing, gamma), None if weights is None else torch.tensor(weights))
    expected = by_hand(smoothing, gamma, weights or [1.0, 1.0, 1.0])
    assert objective(LOGITS, TARGETS).item() == pytest.approx(expected, rel=1e-6)


def test_weights_alone_are_torch_s() -> None:
    expected = F.cross_entropy(LOGITS, LABELS, weight=WEIGHTS)
    assert torch.allclose(Objective(settings(), WEIGHTS)(LOGITS, TARGETS), expected)


def test_weights_do_not_bend_what_smoothing_asks_for() -> None:
    """The answer of least loss is the smoothed target itself, whatever the weights; with torch's own it is not."""
    smoothed = 0.8 * TARGETS[1:2] + 0.2 / 3
    logits = smoothed.log().requires_grad_()
    Objective(settings(0.2), WEIGHTS)(logits, TARGETS[1:2]).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-6
    logits.grad = None
    F.cross_entropy(logits, LABELS[1:2], weight=WEIGHTS, label_smoothing=0.2).backward()
    assert logits.grad.abs().max() > 1e-2


def test_a_mixed_target_has_the_mean_weight_of_its_classes() -> None:
    assert Objective(settings(), WEIGHTS).weight(torch.tensor([[0.5, 0.5, 0.0]])) == pytest.approx(2.0)


def test_without_weights_a_batch_counts_by_its_rows() -> None:
    assert Objective(settings()).weight(TARGETS) == 3.0


def test_focal_loss_cares_less_about_what_is_answered_well() -> None:
    sure, unsure = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.1, 0.0]])
    target = torch.tensor([[1.0, 0.0]])
    plain, focal = Objective(settings()), Objective(settings(gamma=2.0))
    assert focal(sure, target) / plain(sure, target) < 1e-3
    assert focal(unsure, target) / plain(unsure, target) > 0.2


def test_balanced_weights_make_every_class_count_the_same() -> None:
    counts = np.array([20.0, 1.0, 4.0])
    found = class_weights("balanced", counts)
    assert found is not None
    assert found.tolist() == pytest.approx([25 / (3 * 20), 25 / 3, 25 / 12])
    assert (found * counts).tolist() == pytest.approx([25 / 3] * 3)


def test_effective_weights_are_cui_s() -> None:
    counts = np.array([2000.0, 10.0])
    found = class_weights("effective", counts)
    assert found is not None
    raw = [(1 - 0.999) / (1 - 0.999**n) for n in counts]
    assert found[1] / found[0] == pytest.approx(raw[1] / raw[0], rel=1e-5)
    assert float((found * counts).sum()) == pytest.approx(2010, rel=1e-5)


@pytest.mark.parametrize("wanted", ["balanced", "effective"])
def test_a_class_without_rows_spoils_nothing(wanted: str) -> None:
    found = class_weights(wanted, np.array([5.0, 0.0, 5.0]))
    assert found is not None
    assert found.tolist() == pytest.approx([1.0, 0.0, 1.0])


def test_none_is_no_weights_and_a_list_is_taken_as_it_is() -> None:
    assert class_weights("none", np.array([1.0, 2.0])) is None
    assert np.array_equal(class_weights((1.0, 4.0), np.array([1.0, 2.0])), [1.0, 4.0])


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="3 weights for 2 classes"):
        class_weights((1.0, 2.0, 3.0), np.array([1.0, 2.0]))


def test_classes_are_counted_in_the_targets() -> None:
    targets = np.eye(2, dtype=np.float32)[[0, 0, 0, 1]]
    objective = objective_for(FitConfig(class_weight="balanced"), targets, torch.device("cpu"))
    assert objective.weight(torch.tensor([[1.0, 0.0]])) == pytest.approx(4 / 6)
    assert objective.weight(torch.tensor([[0.0, 1.0]])) == pytest.approx(2.0)


def test_divergence_is_the_mean_of_both_directions() -> None:
    p, q = LOGITS.softmax(dim=1), LOGITS.flip(0).softmax(dim=1)
    expected = 0.5 * ((p * (p / q).log()).sum(dim=1) + (q * (q / p).log()).sum(dim=1))
    assert torch.allclose(divergence(LOGITS, LOGITS.flip(0)), expected, atol=1e-6)
    assert torch.equal(divergence(LOGITS, LOGITS), torch.zeros(3))
