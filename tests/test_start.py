"""Where training may begin: what is complete goes in, what is not is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.encoder import Encoder, EncoderConfig
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.start import ABOUT, ENCODER, START, about, is_ours, load_encoder, shaped, start_from

TOKENIZER = Tokenizer("好坏", [-1.0, -1.0])
SHAPE = EncoderConfig(TOKENIZER.size, max_tokens=16, width=8, layers=2, heads=2, feed_forward_width=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "encoder"
    made.mkdir()
    torch.manual_seed(1)
    save_file(Encoder(SHAPE).state_dict(), made / ENCODER)
    TOKENIZER.to_file(made / "tokenizer.json")
    (made / ABOUT).write_text(json.dumps({"origin": "ours", "licence": "MIT"}), encoding="utf-8")
    return made


def test_a_run_folder_gets_the_same_weights_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    start_from(folder, run)
    begun, given = load_file(run / START), load_file(folder / ENCODER)
    assert all(torch.equal(begun[name], given[name]) for name in given)
    assert Tokenizer.from_file(run / "tokenizer.json").fingerprint() == TOKENIZER.fingerprint()
    assert about(folder)["licence"] == "MIT"


def test_positions_beyond_the_model_s_are_left_out(folder: Path) -> None:
    short = Encoder(EncoderConfig(TOKENIZER.size, 4, 8, 2, 2, 16))
    load_encoder(short, folder / ENCODER)
    expected = load_file(folder / ENCODER)["embeddings.positions.weight"][:4]
    assert torch.equal(short.embeddings.positions.weight, expected)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"layers.1.attention.output.bias": None}, "layers.1.attention.output.bias"),
        ({"layers.9.attention.output.bias": torch.zeros(8)}, "layers.9.attention.output.bias"),
        ({"norm.weight": torch.zeros(9)}, "norm.weight"),
    ],
    ids=["missing", "unknown", "of another shape"],
)
def test_an_incomplete_encoder_is_refused(folder: Path, change: dict[str, torch.Tensor | None], name: str) -> None:
    weights = load_file(folder / ENCODER) | {key: value for key, value in change.items() if value is not None}
    save_file({key: value for key, value in weights.items() if change.get(key, value) is not None}, folder / ENCODER)
    with pytest.raises(UsageError, match=name):
        load_encoder(Encoder(SHAPE), folder / ENCODER)


def test_a_file_cut_short_is_refused(folder: Path) -> None:
    (folder / ENCODER).write_bytes((folder / ENCODER).read_bytes()[:-10])
    with pytest.raises(UsageError, match=ENCODER):
        load_encoder(Encoder(SHAPE), folder / ENCODER)


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trained run, no bundle and no imported encoder"):
        start_from(tmp_path, tmp_path)


def config(**content: object) -> TrainConfig:
    return TrainConfig.model_validate({"name": "a", "data": {}, **content})


def test_the_shape_of_the_model_is_that_of_the_start_unless_given(folder: Path) -> None:
    shape = {"width": 8, "layers": 2, "heads": 2, "feed_forward_width": 16, "max_tokens": 16, "norm": "post"}
    (folder / ABOUT).write_text(json.dumps({"model": shape}), encoding="utf-8")
    found = shaped(config(start_from=folder, model={"max_tokens": 8, "dropout": 0.2}))
    expected = {**shape, "max_tokens": 8, "dropout": 0.2}
    assert found.model.model_dump(include=set(expected)) == expected
    assert shaped(found) == found


@pytest.mark.parametrize("name", ["default", "tiny"])
def test_an_embedded_bundle_goes_by_its_name_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = Bundle.load(DEFAULT_BUNDLE.parent / name).manifest
    shape = {key: value for key, value in manifest.encoder.items() if key != "vocab_size"}
    assert shaped(config(start_from=name)).model.model_dump() == shape
    assert is_ours(Path(name))
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"start_from: {name} holds no trained run"):
        shaped(config(start_from=name))


def test_without_a_start_nothing_is_filled_in() -> None:
    assert shaped(config()) == config()


def test_settings_that_do_not_go_with_the_shape_of_the_start_are_refused(folder: Path) -> None:
    (folder / ABOUT).write_text(json.dumps({"model": {"max_tokens": 16}}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"shape of start_from .*pretrain.max_tokens 128 is more"):
        shaped(config(start_from=folder, pretrain={"corpus": ["texts.txt"]}))
