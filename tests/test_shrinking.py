"""`lengnuan-train import` of an encoder of ours: fewer layers, fewer pieces, the same numbers for what is left."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import small_config

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.encoder import Encoder
from lengnuan.model.tokenizer import FIRST_BYTE_ID, FIRST_PIECE_ID, Tokenizer
from lengnuan.training.config import ModelConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_tensors
from lengnuan.training.fit import build_classifier
from lengnuan.training.importing import import_encoder
from lengnuan.training.judge import BEST
from lengnuan.training.start import ABOUT, ENCODER, load_encoder

PIECES = ("好", "坏", "很", "很好", "电影", "电", "影")
LAYERS = {"max_tokens": 32, "width": 16, "layers": 3, "heads": 2, "feed_forward_width": 32}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    config = small_config(tmp_path, model=LAYERS)
    config.write(folder / "config.json")
    tokenizer = Tokenizer(list(PIECES), [-float(len(piece)) for piece in PIECES])
    tokenizer.to_file(folder / "tokenizer.json")
    write_tensors(folder / BEST, build_classifier(config, tokenizer, 2, None).state_dict())
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("很好电影\n很好\n坏\n", encoding="utf-8")
    return file


def hidden(folder: Path, weights: str, text: str, prefix: str = "") -> torch.Tensor:
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    file = folder / (ABOUT if (folder / ABOUT).exists() else "config.json")
    encoder = Encoder(ModelConfig(**json.loads(file.read_text(encoding="utf-8"))["model"]).encoder(tokenizer.size))
    state = load_file(folder / weights)
    encoder.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        result: torch.Tensor = encoder.eval()(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    return result


def test_what_is_left_answers_as_before(run: Path, corpus: Path, tmp_path: Path) -> None:
    import_encoder(str(run), tmp_path / "small", corpus=[corpus], min_count=2)
    smaller = Tokenizer.from_file(tmp_path / "small" / "tokenizer.json")
    assert smaller.pieces == ("很好",)
    before = hidden(run, BEST, "很好很好", "encoder.")
    assert torch.allclose(hidden(tmp_path / "small", ENCODER, "很好很好"), before, atol=1e-6)
    assert smaller.encode("坏") == [FIRST_BYTE_ID + byte for byte in "坏".encode()], "a piece less is its bytes"


def test_without_a_corpus_every_piece_stays(run: Path, tmp_path: Path) -> None:
    import_encoder(str(run), tmp_path / "whole")
    assert Tokenizer.from_file(tmp_path / "whole" / "tokenizer.json").pieces == PIECES
    assert torch.allclose(
        hidden(tmp_path / "whole", ENCODER, "坏电影"), hidden(run, BEST, "坏电影", "encoder."), atol=1e-6
    )


def test_layers_are_kept_in_the_given_order(run: Path, tmp_path: Path) -> None:
    import_encoder(str(run), tmp_path / "two", layers=[2, 0])
    before, after = load_file(run / BEST), load_file(tmp_path / "two" / ENCODER)
    assert torch.equal(after["layers.0.attention.output.weight"], before["encoder.layers.2.attention.output.weight"])
    assert torch.equal(after["layers.1.attention.output.weight"], before["encoder.layers.0.attention.output.weight"])
    assert not any(name.startswith("layers.2.") for name in after)
    with pytest.raises(UsageError, match="layers 0 to 2"):
        import_encoder(str(run), tmp_path / "none", layers=[3])


def test_a_bundle_is_read_and_keeps_its_start_and_end(corpus: Path, tmp_path: Path) -> None:
    import_encoder(str(DEFAULT_BUNDLE), tmp_path / "small", layers=[0], corpus=[corpus])
    bundle = Bundle.load(DEFAULT_BUNDLE)
    smaller = Tokenizer.from_file(tmp_path / "small" / "tokenizer.json")
    assert smaller.enclosed
    assert len(smaller.pieces) < 20
    for text in ("很好电影", "坏"):
        pieces = [bundle.tokenizer.piece(token_id) for token_id in bundle.tokenizer.encode(text)]
        assert [smaller.piece(token_id) for token_id in smaller.encode(text)] == pieces
    about = json.loads((tmp_path / "small" / ABOUT).read_text(encoding="utf-8"))
    assert (about["layers"], about["pieces"]) == ([0], len(smaller.pieces))
    encoder = Encoder(ModelConfig(**about["model"]).encoder(smaller.size))
    load_encoder(encoder, tmp_path / "small" / ENCODER)
    assert encoder.embeddings.tokens.weight.shape[0] == FIRST_PIECE_ID + len(smaller.pieces) + 2
