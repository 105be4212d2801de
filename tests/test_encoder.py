import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lengnuan.model.encoder import (
    Classifier,
    Encoder,
    EncoderConfig,
    MaskedLanguageModel,
    SelfAttention,
    mean_pool,
    sinusoids,
)

torch.set_num_threads(1)  # on matrices this small a second thread only waits

CONFIG = EncoderConfig(vocab_size=50, max_tokens=12, width=16, layers=2, heads=2, feed_forward_width=24, dropout=0.0)
SHAPES = [
    replace(CONFIG, norm=norm, positions=p) for norm in ("pre", "post") for p in ("learned", "sinusoidal", "none")
]
every_shape = pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.norm}-{config.positions}")


def classifier(config: EncoderConfig = CONFIG, classes: int = 3) -> Classifier:
    """A network with weights large enough for every part to matter, in eval mode."""
    torch.manual_seed(0)
    network = Classifier(config, classes).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return network


def batch(*rows: list[int], length: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """token_ids int64 [B, T] and mask bool [B, T], padded with id 0 to the longest row or to `length`."""
    tokens = max(length, *map(len, rows))
    token_ids = torch.tensor([row + [0] * (tokens - len(row)) for row in rows])
    return token_ids, torch.arange(tokens) < torch.tensor([len(row) for row in rows])[:, None]


ROW = [5, 9, 23, 4]
OTHERS = [[7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [30, 31]]


@every_shape
def test_a_row_gets_the_same_logits_alone_and_among_others(config: EncoderConfig) -> None:
    network = classifier(config)
    alone, among = network(*batch(ROW)), network(*batch(*OTHERS, ROW))
    assert torch.allclose(alone[0], among[-1], atol=1e-5)


@every_shape
def test_a_row_gets_the_same_logits_when_padded_to_the_limit(config: EncoderConfig) -> None:
    network = classifier(config)
    assert torch.allclose(network(*batch(ROW)), network(*batch(ROW, length=config.max_tokens)), atol=1e-5)


@every_shape
def test_the_ids_under_the_padding_change_nothing(config: EncoderConfig) -> None:
    network = classifier(config)
    token_ids, mask = batch(ROW, *OTHERS)
    changed = torch.where(mask, token_ids, 42)
    assert torch.equal(network(token_ids, mask), network(changed, mask))


def test_a_real_token_counts_whatever_its_id() -> None:
    network = classifier()
    assert not torch.allclose(network(*batch([0, *ROW])), network(*batch(ROW)), atol=1e-3)


def test_every_real_token_is_seen() -> None:
    network = classifier()
    token_ids, mask = batch(ROW)
    for place in range(len(ROW)):
        changed = token_ids.clone()
        changed[0, place] = 11
        assert not torch.allclose(network(token_ids, mask), network(changed, mask), atol=1e-4)


def test_no_gradient_reaches_padded_embeddings() -> None:
    network = classifier()
    token_ids, mask = batch(ROW, [7], length=8)
    embedded = network.encoder.embeddings(token_ids).detach().requires_grad_()
    hidden = embedded
    for layer in network.encoder.layers:
        hidden = layer(hidden, mask)
    mean_pool(network.encoder.norm(hidden), mask).square().sum().backward()
    assert embedded.grad is not None
    assert embedded.grad[~mask].abs().max() == 0.0
    assert (embedded.grad[mask].abs().sum(dim=-1) > 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_row_that_is_all_padding_is_finite_and_leaves_the_others_alone(dtype: torch.dtype, norm: str) -> None:
    network = classifier(replace(CONFIG, norm=norm)).to(dtype)
    token_ids, mask = batch(ROW, [])
    logits = network(token_ids, mask)
    assert torch.isfinite(logits).all()
    assert torch.allclose(logits[:1], network(*batch(ROW)), atol=1e-5 if dtype == torch.float32 else 0.1)


def test_a_row_that_is_all_padding_has_finite_gradients() -> None:
    network = classifier()
    network(*batch(ROW, [])).sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in network.parameters() if weight.grad is not None)


@every_shape
def test_without_dropout_training_and_evaluation_agree(config: EncoderConfig) -> None:
    network = classifier(config)
    token_ids, mask = batch(ROW, *OTHERS)
    evaluated = network.eval()(token_ids, mask)
    assert torch.allclose(network.train()(token_ids, mask), evaluated, atol=1e-5)


def test_dropout_acts_in_training_only() -> None:
    network = classifier(replace(CONFIG, dropout=0.5))
    inputs = batch(ROW)
    assert torch.equal(network(*inputs), network(*inputs))
    network.train()
    assert not torch.equal(network(*inputs), network(*inputs))


def attention_by_hand(attention: SelfAttention, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(D)) V for one row and one head at a time, over the real tokens only."""
    rows, tokens, width = hidden.shape
    size = width // attention.heads
    query, key, value = F.linear(hidden, attention.query_key_value.weight, attention.query_key_value.bias).split(
        width, dim=-1
    )
    mixed = torch.zeros(rows, tokens, width)
    for row in range(rows):
        for head in range(attention.heads):
            part = slice(head * size, (head + 1) * size)
            real = mask[row]
            scores = query[row, :, part] @ key[row, real, part].T / math.sqrt(size)
            mixed[row, :, part] = torch.softmax(scores, dim=-1) @ value[row, real, part]
    return F.linear(mixed, attention.output.weight, attention.output.bias)


def test_attention_is_the_formula() -> None:
    attention = classifier().encoder.layers[0].attention
    hidden = torch.randn(3, 5, CONFIG.width)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    assert torch.allclose(attention(hidden, mask), attention_by_hand(attention, hidden, mask), atol=1e-5)


@pytest.mark.parametrize(("length", "width"), [(6, 8), (6, 7)])
def test_sinusoids_are_the_formula(length: int, width: int) -> None:
    table = sinusoids(length, width)
    assert table.shape == (length, width)
    for place in range(length):
        for column in range(width):
            angle = place / 10_000 ** ((column - column % 2) / width)
            wave = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[place, column].item() == pytest.approx(wave, abs=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("positions", "sees_order"), [("learned", True), ("sinusoidal", True), ("none", False)])
def test_the_order_of_the_words_is_seen_through_positions_only(norm: str, positions: str, sees_order: bool) -> None:
    network = classifier(replace(CONFIG, positions=positions, norm=norm))
    same = torch.allclose(network(*batch(ROW)), network(*batch(ROW[::-1])), atol=1e-5)
    assert same is not sees_order


def test_only_learned_positions_have_weights() -> None:
    names = {
        positions: [n for n, _ in Encoder(replace(CONFIG, positions=positions)).named_parameters() if "positions" in n]
        for positions in ("learned", "sinusoidal", "none")
    }
    assert names == {"learned": ["embeddings.positions.weight"], "sinusoidal": [], "none": []}


def test_mean_pool_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 10.0], [3.0, 30.0], [99.0, 99.0]], [[99.0, 99.0]] * 3])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert mean_pool(hidden, mask).tolist() == [[2.0, 20.0], [0.0, 0.0]]


def test_mean_pool_takes_tokens_wherever_they_stand() -> None:
    hidden = torch.tensor([[[1.0], [99.0], [3.0]]])
    assert mean_pool(hidden, torch.tensor([[True, False, True]])).tolist() == [[2.0]]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_number_of_weights(norm: str) -> None:
    c, classes = replace(CONFIG, norm=norm), 3
    norms = 2 * c.width
    attention = 4 * c.width * c.width + 4 * c.width
    feed_forward = 2 * c.width * c.feed_forward_width + c.feed_forward_width + c.width
    expected = (c.vocab_size + c.max_tokens) * c.width + norms
    expected += c.layers * (attention + feed_forward + 2 * norms)
    expected += c.width * classes + classes
    assert sum(weight.numel() for weight in Classifier(c, classes).parameters()) == expected


def test_shapes_of_what_comes_out() -> None:
    token_ids, mask = batch(ROW, *OTHERS)
    assert Encoder(CONFIG)(token_ids, mask).shape == (4, 9, CONFIG.width)
    assert classifier(classes=7)(token_ids, mask).shape == (4, 7)


def test_without_residual_paths_the_network_is_another_one() -> None:
    with_paths, without = classifier(), classifier(replace(CONFIG, residual=False))
    assert not torch.allclose(with_paths(*batch(ROW)), without(*batch(ROW)), atol=1e-3)


def test_masked_language_model_scores_the_hidden_tokens_over_the_candidates() -> None:
    candidates = torch.tensor([3, 5, 8, 13, 21])
    network = MaskedLanguageModel(CONFIG, candidates).eval()
    token_ids, mask = batch(ROW, [7, 8])
    hidden_at = torch.zeros_like(mask)
    hidden_at[0, 1] = hidden_at[0, 3] = hidden_at[1, 0] = True
    assert network(token_ids, mask, hidden_at).shape == (3, 5)


def test_masked_language_model_shares_the_embedding_table() -> None:
    network = MaskedLanguageModel(CONFIG, torch.arange(CONFIG.vocab_size)).eval()
    token_ids, mask = batch(ROW)
    before = network(token_ids, mask, mask)
    with torch.no_grad():
        network.encoder.embeddings.tokens.weight[49] += 1.0  # an id that the row does not hold
    changed = (network(token_ids, mask, mask) != before).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [49]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 15}, "width 15 is not a multiple of heads 2"),
        ({"positions": "rotary"}, "not 'rotary'"),
        ({"norm": "none"}, "not 'none'"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)
