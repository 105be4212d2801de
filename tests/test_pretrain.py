"""Masked language modelling on a toy corpus: it learns, it never looks at padding, it resumes exactly."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengnuan.model.encoder import MaskedLanguageModel
from lengnuan.model.tokenizer import FIRST_PIECE_ID, MASK_ID, Tokenizer
from lengnuan.training import pretrain as pretraining
from lengnuan.training.batches import Batch, Ragged
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import DataRefused
from lengnuan.training.optimise import Hardware
from lengnuan.training.pretrain import Cloze, Maskable, held_out_loss, hide_words, masked_loss, pretrain
from lengnuan.training.start import START, load_encoder
from lengnuan.training.whole_words import encode_words

CPU = Hardware(torch.device("cpu"), None)
CHARACTERS = "房间很干净服务差太吵了再来"
TOKENIZER = Tokenizer(CHARACTERS, [-2.0] * len(CHARACTERS))
SENTENCES = tuple(
    f"{subject}{verdict}" for subject in ("房间", "服务", "干净") for verdict in ("很差", "太吵了", "再来")
)
TEXTS = SENTENCES * 8
CONFIG = TrainConfig.model_validate(
    {
        "name": "toy",
        "data": {},
        "model": {"width": 16, "layers": 1, "heads": 2, "feed_forward_width": 32, "max_tokens": 8},
        "pretrain": {
            "corpus": ["toy.txt"],
            "epochs": 5,
            "max_tokens": 8,
            "batch_tokens": 64,
            "optimiser": {"learning_rate": 0.02},
        },
    }
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint every ten steps; the held-out share so large that some of the few sentences fall into it."""
    monkeypatch.setattr(pretraining, "STEPS_BETWEEN_EVALUATIONS", 10)
    monkeypatch.setattr(pretraining, "HELD_OUT_SHARE", 0.3)


@pytest.fixture
def model() -> MaskedLanguageModel:
    torch.manual_seed(0)
    candidates = torch.arange(FIRST_PIECE_ID, FIRST_PIECE_ID + len(CHARACTERS))
    return MaskedLanguageModel(CONFIG.model.encoder(TOKENIZER.size), candidates)


def rows(folder: Path, key: str) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row[key] for row in map(json.loads, lines) if key in row]


def interrupt_at(step: int) -> Callable[[MaskedLanguageModel, Cloze], Tensor]:
    """A `masked_loss` that ends the run in its n-th training call."""
    calls = 0

    def loss(model: MaskedLanguageModel, cloze: Cloze) -> Tensor:
        nonlocal calls
        calls += model.training
        if calls > step:
            raise KeyboardInterrupt
        return masked_loss(model, cloze)

    return loss


@pytest.mark.usefixtures("often")
def test_the_loss_falls(tmp_path: Path) -> None:
    path = pretrain(CONFIG, TOKENIZER, TEXTS, tmp_path, CPU)
    assert path == tmp_path / "encoder.safetensors"
    held_out = rows(tmp_path, "held_out_loss")
    assert held_out[-1] < held_out[0]
    assert rows(tmp_path, "perplexity")[-1] < len(CHARACTERS), "better than guessing evenly"


def test_the_result_is_the_encoder_alone(tmp_path: Path, model: MaskedLanguageModel) -> None:
    weights = load_file(pretrain(CONFIG, TOKENIZER, TEXTS[:8], tmp_path, CPU))
    wanted = model.encoder.state_dict()
    assert {name: value.shape for name, value in weights.items()} == {n: v.shape for n, v in wanted.items()}
    assert all(value.dtype == torch.float32 for value in weights.values())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("step", [4, 10, 17])
def test_an_interrupted_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = load_file(pretrain(CONFIG, TOKENIZER, TEXTS, tmp_path / "whole", CPU))
    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "masked_loss", interrupt_at(step))
        with pytest.raises(KeyboardInterrupt):
            pretrain(CONFIG, TOKENIZER, TEXTS, tmp_path / "cut", CPU)
    torch.manual_seed(99)  # a new process would not have our random state
    resumed = load_file(pretrain(CONFIG, TOKENIZER, TEXTS, tmp_path / "cut", CPU))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert rows(tmp_path / "whole", "held_out_loss") == rows(tmp_path / "cut", "held_out_loss")


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    path = pretrain(CONFIG, TOKENIZER, TEXTS[:8], tmp_path, CPU)
    before = path.stat().st_mtime_ns
    assert pretrain(CONFIG, TOKENIZER, [], tmp_path, CPU) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("texts", [[], ["   ", ""]])
def test_a_corpus_without_text_is_refused(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(DataRefused, match="the corpus holds no text"):
        pretrain(CONFIG, TOKENIZER, texts, tmp_path, CPU)


def test_a_long_text_becomes_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "HELD_OUT_SHARE", 0.0)
    train, held_out = pretraining._windows(TOKENIZER, ["房间很干净服务差太吵了"], short_rows(4))
    assert train.rows.lengths.tolist() == train.flags.lengths.tolist() == [4, 4, 3]
    assert len(held_out.rows) == 0


@pytest.mark.usefixtures("often")
def test_a_text_is_held_out_by_what_it_says(tmp_path: Path) -> None:
    parts = pretraining._windows(TOKENIZER, TEXTS, CONFIG)
    sides = [{tuple(part.rows[i].tolist()) for i in range(len(part.rows))} for part in parts]
    assert all(sides)
    assert not sides[0] & sides[1]


def short_rows(max_tokens: int) -> TrainConfig:
    return CONFIG.model_copy(update={"pretrain": CONFIG.pretrain.model_copy(update={"max_tokens": max_tokens})})


def maskable(*texts: str) -> Maskable:
    rows = [encode_words(TOKENIZER, text) for text in texts]
    return Maskable(Ragged([ids for ids, _ in rows]), Ragged([flags for _, flags in rows]))


def batch_of(*texts: str) -> tuple[Batch, Tensor]:
    return maskable(*texts).batch(np.arange(len(texts)), CPU.device)


@pytest.mark.parametrize("mask_share", [0.0, 0.3, 1.0])
def test_padding_is_never_hidden_nor_replaced(model: MaskedLanguageModel, mask_share: float) -> None:
    batch, flags = batch_of("太吵了", "再来", "房间很干净")
    seen: list[tuple[Tensor, Tensor]] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0], inputs[2])))
    for seed in range(20):
        torch.manual_seed(seed)
        masked_loss(model, hide_words(batch, flags, model.candidates, mask_share))
    hook.remove()
    for shown, hidden_at in seen:
        assert not hidden_at[~batch.mask].any()
        assert hidden_at.any(), "a batch always has something to guess"
        assert torch.equal(shown[~hidden_at], batch.token_ids[~hidden_at])


def test_hidden_tokens_become_the_mask_a_random_id_or_stay(model: MaskedLanguageModel) -> None:
    batch, flags = batch_of(*["房间很干净"] * 1000)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(0)
    masked_loss(model, hide_words(batch, flags, model.candidates, 1.0))
    masked = (seen[0] == MASK_ID).float().mean().item()
    same = (seen[0] == batch.token_ids).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.03)
    assert same == pytest.approx(0.1 + 0.1 / len(CHARACTERS), abs=0.03)


def test_held_out_masks_are_always_the_same(model: MaskedLanguageModel) -> None:
    held_out = maskable(*SENTENCES)
    torch.manual_seed(5)
    first = held_out_loss(model, held_out, CONFIG, CPU)
    torch.manual_seed(6)
    assert held_out_loss(model, held_out, CONFIG, CPU) == first


def test_after_measuring_held_out_loss_the_model_trains_on(model: MaskedLanguageModel) -> None:
    held_out_loss(model, maskable("房"), CONFIG, CPU)
    assert model.training


def test_a_run_folder_with_a_start_continues_from_it(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"pretrain": CONFIG.pretrain.model_copy(update={"epochs": 1, "mask_share": 0.2})})
    torch.manual_seed(3)
    begin = MaskedLanguageModel(config.model.encoder(TOKENIZER.size), torch.arange(5)).encoder
    weights = {name: value + 1.0 for name, value in begin.state_dict().items()}
    save_file(weights, tmp_path / START)
    trained = load_file(pretrain(config, TOKENIZER, TEXTS[:8], tmp_path, CPU))
    assert torch.allclose(trained["embeddings.tokens.weight"], weights["embeddings.tokens.weight"], atol=0.2)
    load_encoder(begin, tmp_path / START)
    assert torch.equal(begin.norm.weight, weights["norm.weight"])
