"""How a step's gradient comes about: parts of a batch, passes with other dropout, embeddings moved and put back."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.training.adversarial import FastGradient
from lengnuan.training.batches import Batch, Collator, Ragged
from lengnuan.training.config import FitConfig, OptimiserConfig, TrainConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import Exercise, plan_steps
from lengnuan.training.losses import objective_for
from lengnuan.training.optimise import Hardware, Optimiser

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(0)
ROWS = Ragged([RANDOM.integers(5, 20, length).tolist() for length in [3, 12, 1, 7] * 8])
TARGETS = np.eye(2, dtype=np.float32)[[0, 1, 1, 1] * 8]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network(dropout: float = 0.0) -> Classifier:
    torch.manual_seed(0)
    config = EncoderConfig(20, max_tokens=12, width=8, layers=1, heads=2, feed_forward_width=16, dropout=dropout)
    return Classifier(config, 2)


def batches_of(*sizes: int) -> list[Batch]:
    collate = Collator(ROWS, TARGETS, CPU)
    return [collate(rows) for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


def gradient(
    batches: list[Batch], dropout: float = 0.0, precision: torch.dtype | None = None, **settings: object
) -> dict[str, Tensor]:
    model = network(dropout)
    fit = FitConfig.model_validate({"label_smoothing": 0.1} | settings)
    exercise = Exercise(model, objective_for(fit, TARGETS, CPU), fit, Hardware(CPU, precision))
    torch.manual_seed(1)
    exercise.descend(batches, Optimiser(model, OptimiserConfig(), steps=1))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# Accumulation


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (1, 20, 4, 7), (31, 1)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"class_weight": "balanced"}, {"focal_gamma": 2.0, "class_weight": [1.0, 5.0]}, {"fgm_epsilon": 0.5}],
)
def test_batches_of_any_size_add_up_to_one_large_batch(sizes: tuple[int, ...], settings: dict[str, object]) -> None:
    whole, parts = gradient(batches_of(32), **settings), gradient(batches_of(*sizes), **settings)
    assert largest_difference(whole, parts) < 1e-5
    assert max(float(value.abs().max()) for value in whole.values()) > 1e-2, "there is something to compare"


def test_the_mean_of_means_would_be_another_gradient() -> None:
    whole = gradient(batches_of(32))
    parts = [gradient([batch]) for batch in batches_of(1, 20, 4, 7)]
    naive = {name: torch.stack([part[name] for part in parts]).mean(dim=0) for name in whole}
    assert largest_difference(whole, naive) > 1e-3


def test_the_loss_of_a_step_is_the_mean_over_its_rows() -> None:
    model, fit = network(), FitConfig()
    exercise = Exercise(model, objective_for(fit, TARGETS, CPU), fit, Hardware(CPU, None))
    found = []
    for batches in (batches_of(32), batches_of(1, 20, 11)):
        optimiser = Optimiser(model, OptimiserConfig(learning_rate=1e-12), steps=2)
        exercise.descend(batches, optimiser)
        found.append(optimiser.update()[0])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def config(**fit: object) -> TrainConfig:
    return TrainConfig.model_validate({"name": "toy", "data": {}, "fit": {"min_steps": 1, "batch_tokens": 8} | fit})


@pytest.mark.parametrize(("accumulate", "steps", "last"), [(1, 10, 1), (3, 4, 1), (4, 3, 2), (10, 1, 10), (99, 1, 10)])
def test_the_last_step_takes_what_is_left(accumulate: int, steps: int, last: int) -> None:
    planned, evaluations = plan_steps(Ragged([[1] * 8] * 10), config(epochs=1, accumulate=accumulate))
    assert (len(planned), len(planned[-1])) == (steps, last)
    assert max(evaluations) == steps
    seen = np.concatenate([rows for step in planned for rows in step])
    assert sorted(seen.tolist()) == list(range(10)), "every row once"


def test_min_steps_are_steps_not_batches() -> None:
    planned, _ = plan_steps(Ragged([[1] * 8] * 10), config(epochs=1, accumulate=4, min_steps=7))
    assert len(planned) >= 7


# R-Drop, several dropout samples


def test_r_drop_acts_where_passes_differ_and_only_there() -> None:
    batch = batches_of(16)
    assert largest_difference(gradient(batch, dropout=0.5), gradient(batch, dropout=0.5, r_drop=4.0)) > 1e-3
    assert largest_difference(gradient(batch), gradient(batch, r_drop=4.0)) < 1e-6


def test_more_dropout_samples_are_less_noise() -> None:
    """The head's gradient scatters less around its mean when each row is answered several times."""
    model, batch = network(dropout=0.5), batches_of(16)[0]
    model.encoder.eval()  # only the dropout before the head is drawn anew

    def scatter(samples: int) -> float:
        fit = FitConfig(dropout_samples=samples)
        exercise = Exercise(model, objective_for(fit, TARGETS, CPU), fit, Hardware(CPU, None))
        torch.manual_seed(0)
        drawn = [torch.autograd.grad(exercise.loss(batch), model.head.weight)[0] for _ in range(40)]
        return float(torch.stack(drawn).std(dim=0).mean())

    assert scatter(8) < 0.6 * scatter(1)


@pytest.mark.parametrize("settings", [{"r_drop": 1.0}, {"dropout_samples": 4}])
def test_what_would_do_nothing_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"do nothing without model\.dropout"):
        TrainConfig.model_validate({"name": "toy", "data": {}, "model": {"dropout": 0.0}, "fit": settings})


# Adversarial training


def test_fgm_moves_the_table_along_its_gradient_and_puts_it_back_bit_for_bit() -> None:
    model = network()
    table = model.encoder.embeddings.tokens.weight
    before = table.detach().clone()
    model(batches_of(8)[0].token_ids, batches_of(8)[0].mask).square().sum().backward()
    assert table.grad is not None
    with FastGradient(model, "embeddings.tokens", 0.3).moved():
        moved = table.detach() - before
        assert float(moved.norm()) == pytest.approx(0.3, rel=1e-4)
        assert torch.allclose(moved / 0.3, table.grad / table.grad.norm(), atol=1e-5)
    assert torch.equal(table, before)


def test_fgm_puts_the_table_back_after_an_error_too() -> None:
    model = network()
    before = model.encoder.embeddings.tokens.weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(KeyboardInterrupt), FastGradient(model, "embeddings", 0.3).moved():
        raise KeyboardInterrupt
    assert torch.equal(model.encoder.embeddings.tokens.weight, before)


def test_fgm_adds_the_gradient_at_the_moved_place() -> None:
    batch = batches_of(16)
    plain, adversarial = gradient(batch), gradient(batch, fgm_epsilon=1.0)
    doubled = {name: 2 * value for name, value in plain.items()}
    assert largest_difference(adversarial, doubled) > 1e-3


def test_fgm_refuses_a_name_that_no_parameter_has() -> None:
    with pytest.raises(UsageError, match="'word_embeddings' is in no parameter's name: choose among encoder"):
        gradient(batches_of(4), fgm_epsilon=1.0, fgm_parameter="word_embeddings")


def test_fgm_refuses_a_parameter_without_a_gradient() -> None:
    with pytest.raises(UsageError, match="does not depend on it"), FastGradient(network(), "head", 1.0).moved():
        pytest.fail("moved")


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_fgm_leaves_the_table_alone_where_there_is_no_direction(bad: float) -> None:
    model = network()
    table = model.encoder.embeddings.tokens.weight
    before = table.detach().clone()
    table.grad = torch.full_like(table, bad)
    with FastGradient(model, "embeddings.tokens", 1.0).moved():
        assert torch.equal(table, before)


# Low precision


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
def test_a_row_of_padding_alone_leaves_the_gradient_finite(precision: torch.dtype | None) -> None:
    batch = batches_of(4)[0]
    mask = batch.mask.clone()
    mask[1] = False
    found = gradient([Batch(batch.token_ids, mask, batch.targets)], precision=precision, fgm_epsilon=0.5)
    assert all(value.isfinite().all() for value in found.values())
