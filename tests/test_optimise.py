"""Schedule, decay groups, moving average, steps that are not finite, exact continuation."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.training.config import OptimiserConfig, TrainConfig
from lengnuan.training.errors import NotFinite, UsageError
from lengnuan.training.optimise import MAX_BAD_STEPS, Optimiser, choose_hardware, learning_rate_at

STEPS = 20


class Toy(nn.Module):
    """An embedding, a norm and a linear layer: one parameter of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.table(ids)))
        return logits


def loss_of(model: nn.Module, step: int) -> Tensor:
    ids = torch.randint(7, (8,), generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(model(ids), ids % 2)


def step(optimiser: Optimiser, loss: Tensor) -> float:
    """A whole step; returns the norm of the gradient."""
    optimiser.descend(loss)
    return optimiser.update()[1]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Schedule


@pytest.mark.parametrize("decay", ["cosine", "linear", "none"])
def test_the_learning_rate_is_its_closed_form_at_every_step(decay: str) -> None:
    config = OptimiserConfig(learning_rate=0.8, warmup_share=0.2, decay=decay)
    for number in range(4):
        assert learning_rate_at(number, STEPS, config) == pytest.approx(0.8 * (number + 1) / 4)
    for number in range(4, STEPS):
        done = (number - 4) / 16
        factor = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "none": 1.0}[decay]
        assert learning_rate_at(number, STEPS, config) == pytest.approx(0.8 * factor)


def test_the_schedule_ends_at_zero() -> None:
    for decay in ("cosine", "linear"):
        assert learning_rate_at(STEPS, STEPS, OptimiserConfig(decay=decay)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("steps", "share"), [(1, 0.1), (1, 0.0), (2, 0.0), (3, 0.99)])
def test_a_very_short_run_has_a_positive_rate_at_every_step(steps: int, share: float) -> None:
    config = OptimiserConfig(warmup_share=share)
    rates = [learning_rate_at(number, steps, config) for number in range(steps)]
    assert all(0.0 < rate <= config.learning_rate for rate in rates)


def test_each_step_uses_the_rate_of_the_schedule() -> None:
    model = Toy()
    config = OptimiserConfig(weight_decay=0.0)
    optimiser = Optimiser(model, config, STEPS)
    # Adam's first step moves every weight with a gradient by the learning rate, whatever the gradient's size.
    before = model.head.bias.detach().clone()
    step(optimiser, loss_of(model, 0))
    moved = (model.head.bias - before).detach().abs().max().item()
    assert moved == pytest.approx(learning_rate_at(0, STEPS, config), rel=1e-3)


# Groups


def test_matrices_decay_and_nothing_else() -> None:
    model = Toy()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    config = OptimiserConfig(learning_rate=0.1, weight_decay=0.5, warmup_share=0.0)
    optimiser = Optimiser(model, config, STEPS)
    step(optimiser, sum(p.sum() for p in model.parameters()) * 0.0)  # every gradient is zero: only decay is left
    decayed = {name for name, p in model.named_parameters() if not torch.equal(p, torch.ones_like(p))}
    assert decayed == {"head.weight"}
    assert model.head.weight.detach().flatten().tolist() == pytest.approx([1 - 0.1 * 0.5] * 8)


def test_a_large_gradient_is_clipped_and_its_true_norm_returned() -> None:
    model = Toy()
    norm = step(Optimiser(model, OptimiserConfig(clip_norm=1.0), STEPS), 1e6 * loss_of(model, 0))
    assert norm > 1e4
    assert all(p.detach().isfinite().all() for p in model.parameters())


# Moving average


def test_the_moving_average_follows_by_hand() -> None:
    model = Toy()
    optimiser = Optimiser(model, OptimiserConfig(), STEPS, ema_decay=0.3)
    expected = model.head.weight.detach().clone()
    for number in range(5):
        step(optimiser, loss_of(model, number))
        decay = min(0.3, (2 + number) / (11 + number))
        expected = decay * expected + (1 - decay) * model.head.weight.detach()
    assert torch.allclose(optimiser.average["head.weight"], expected, atol=1e-7)


def test_without_decay_there_is_no_average() -> None:
    assert Optimiser(Toy(), OptimiserConfig(), STEPS).average == {}


# Not finite


def test_a_step_that_is_not_finite_changes_no_weight_and_is_counted() -> None:
    model = Toy()
    optimiser = Optimiser(model, OptimiserConfig(), STEPS)
    before = weights_of(model)
    step(optimiser, loss_of(model, 0) * math.nan)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert (optimiser.step, optimiser.bad_steps, optimiser.skipped) == (1, 1, 1)


def test_a_good_step_forgives_the_bad_ones() -> None:
    model = Toy()
    optimiser = Optimiser(model, OptimiserConfig(), STEPS)
    for _ in range(3):
        for _ in range(MAX_BAD_STEPS - 1):
            step(optimiser, loss_of(model, 0) * math.inf)
        step(optimiser, loss_of(model, 0))
    assert optimiser.bad_steps == 0
    assert optimiser.skipped == 3 * (MAX_BAD_STEPS - 1)


def test_too_many_bad_steps_in_a_row_end_the_run_with_finite_weights() -> None:
    model = Toy()
    optimiser = Optimiser(model, OptimiserConfig(), STEPS, ema_decay=0.9)
    step(optimiser, loss_of(model, 0))
    for _ in range(MAX_BAD_STEPS - 1):
        step(optimiser, loss_of(model, 0) * math.nan)
    with pytest.raises(NotFinite, match=r"step 5: 5 steps in a row .* lower learning_rate"):
        step(optimiser, loss_of(model, 0) * math.nan)
    assert all(value.isfinite().all() for value in optimiser.tensors().values())


# Continuing


@pytest.mark.parametrize("stop", [1, 7])
def test_a_restored_run_goes_on_bit_for_bit(stop: int) -> None:
    config = OptimiserConfig()
    whole = Optimiser(Toy(), config, STEPS, ema_decay=0.9)
    for number in range(stop):
        step(whole, loss_of(whole.model, number))
    kept = {name: value.clone() for name, value in whole.tensors().items()}
    for number in range(stop, STEPS):
        step(whole, loss_of(whole.model, number))

    model = Toy()
    with torch.no_grad():
        model.head.weight.fill_(9.0)  # whatever it held is replaced
    resumed = Optimiser(model, config, STEPS, ema_decay=0.9)
    resumed.restore(kept, {"step": stop, "bad_steps": 0, "skipped": 0})
    for number in range(resumed.step, STEPS):
        step(resumed, loss_of(model, number))
    wanted, found = whole.tensors(), resumed.tensors()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


# Hardware


def hardware_config(**settings: str) -> TrainConfig:
    return TrainConfig.model_validate({"name": "toy", "data": {}} | settings)


def test_float32_on_the_cpu_is_float32_throughout() -> None:
    hardware = choose_hardware(hardware_config(device="cpu", precision="float32"))
    with hardware.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert str(hardware).startswith("cpu, float32")


def test_bfloat16_can_be_asked_for() -> None:
    hardware = choose_hardware(hardware_config(device="cpu", precision="bfloat16"))
    with hardware.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="use cpu or auto"):
        choose_hardware(hardware_config(device="cuda"))


def test_layer_decay_slows_what_is_nearer_the_embeddings() -> None:
    model = Classifier(
        EncoderConfig(20, max_tokens=4, width=4, layers=3, heads=1, feed_forward_width=4, dropout=0.0), 2
    )
    before = weights_of(model)
    optimiser = Optimiser(model, OptimiserConfig(learning_rate=1e-3, layer_decay=0.5, warmup_share=0.0), steps=10)
    tokens, mask = torch.arange(8).view(2, 4), torch.ones(2, 4, dtype=torch.bool)
    step(optimiser, nn.functional.cross_entropy(model(tokens, mask), torch.tensor([0, 1])))
    moved = {name: float((p - before[name]).detach().abs().max()) for name, p in weights_of(model).items()}
    # AdamW's first step moves every parameter that has a gradient by the learning rate.
    for place, rate in {"head": 1e-3, "encoder.layers.2.feed_forward.expand": 1e-3, "encoder.norm": 1e-3,
                        "encoder.layers.1.feed_forward.expand": 5e-4, "encoder.layers.0.feed_forward.expand": 2.5e-4,
                        "encoder.embeddings.tokens": 1.25e-4}.items():  # fmt: skip
        assert moved[f"{place}.weight"] == pytest.approx(rate, rel=0.05), place
