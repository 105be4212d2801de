"""Import from Hugging Face folders: hidden states as transformers has them, or an error that names what is wrong."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import (
    TEXTS,
    WORDPIECES,
    edit_json,
    their_ids,
    write_model,
    write_unigram,
    write_vocab_txt,
    write_wordpiece,
)
from torch import Tensor

from lengnuan.model.encoder import Encoder, EncoderConfig
from lengnuan.model.tokenizer import FIRST_PIECE_ID, Tokenizer
from lengnuan.training.errors import UsageError
from lengnuan.training.foreign import Foreign
from lengnuan.training.huggingface import read_huggingface

FAMILIES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "BERT": (write_wordpiece, "BertModel", {}),
    "BERT with a head and vocab.txt": (write_vocab_txt, "BertForMaskedLM", {}),
    "BERT, as MiniLM fine-tuned": (write_wordpiece, "BertForSequenceClassification", {"num_hidden_layers": 3}),
    "multilingual E5 small": (write_unigram, "BertModel", {}),
    "ERNIE 1.0": (write_wordpiece, "ErnieModel", {"hidden_act": "relu", "type_vocab_size": 2}),
    "ERNIE 3.0": (write_vocab_txt, "ErnieForMaskedLM", {"use_task_id": True, "type_vocab_size": 4}),
    "XLM-R": (write_unigram, "XLMRobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "XLM-R with a head": (write_unigram, "XLMRobertaForMaskedLM", {"pad_token_id": 1, "type_vocab_size": 1}),
    "RoBERTa": (write_unigram, "RobertaForSequenceClassification", {"pad_token_id": 1}),
    "RoBERTa with BERT's vocabulary": (write_wordpiece, "RobertaModel", {"pad_token_id": 0}),
}


def ours(foreign: Foreign) -> tuple[Tokenizer, Encoder, dict[int, int]]:
    """Tokenizer, encoder, and their id -> ours."""
    rows = foreign.rows_of_text()
    tokenizer, weights = foreign.with_vocabulary(rows)
    encoder = Encoder(EncoderConfig(tokenizer.size, **foreign.shape)).eval()
    encoder.load_state_dict(weights)
    ids = {row: FIRST_PIECE_ID + index for index, row in enumerate(rows)}
    return tokenizer, encoder, ids | {foreign.special.start: tokenizer.start_id, foreign.special.end: tokenizer.end_id}


def rectangle(rows: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
    return ids, torch.tensor([[at < len(row) for at in range(longest)] for row in rows])


def assert_parity(folder: Path, model: Any) -> None:
    """The same ids one to one and the same hidden states, alone and padded in a batch."""
    foreign = read_huggingface(folder)
    tokenizer, encoder, new_id = ours(foreign)
    theirs = [their_ids(folder, text) for text in TEXTS]
    found = [tokenizer.encode(text) for text in TEXTS]
    assert foreign.special.unknown not in {row for rows in theirs for row in rows}
    assert found == [[new_id[row] for row in rows] for rows in theirs]
    assert len({len(row) for row in found}) > 1
    for chosen in ([0, 1, 2, 3], [0], [1], [2], [3]):
        ids, mask = rectangle([found[index] for index in chosen], 0)
        their_rows, their_mask = rectangle([theirs[index] for index in chosen], foreign.special.padding)
        with torch.no_grad():
            hidden = encoder(ids, mask)
            expected = model.base_model(input_ids=their_rows, attention_mask=their_mask.long()).last_hidden_state
        torch.testing.assert_close(hidden[mask], expected[their_mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_transformers(family: str, safe: bool, tmp_path: Path) -> None:
    write_vocabulary, name, config = FAMILIES[family]
    write_vocabulary(tmp_path)
    assert_parity(tmp_path, write_model(tmp_path, name, safe=safe, **config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_wordpiece(tmp_path)
    write_model(tmp_path, "BertForMaskedLM")
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(folder: Path, dtype: torch.dtype) -> None:
    half = {name: value.to(dtype) for name, value in load_file(folder / "model.safetensors").items()}
    save_file(half, folder / "model.safetensors")
    found = read_huggingface(folder).weights
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert torch.equal(found["norm.bias"], half["bert.embeddings.LayerNorm.bias"].float())


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_weights_in_several_files(folder: Path, safe: bool) -> None:
    whole = read_huggingface(folder).weights
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    name = "model.safetensors" if safe else "pytorch_model.bin"
    place = {key: f"{index % 3}-{name}" for index, key in enumerate(tensors)}
    for file in set(place.values()):
        part = {key: value for key, value in tensors.items() if place[key] == file}
        if safe:
            save_file(part, folder / file)
        else:
            torch.save(part, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": place}), encoding="utf-8")
    found = read_huggingface(folder).weights
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[key], whole[key]) for key in whole)
    (folder / place[next(iter(tensors))]).unlink()
    with pytest.raises(UsageError, match=name):
        read_huggingface(folder)


def test_the_old_names_of_norms(folder: Path) -> None:
    expected = read_huggingface(folder).weights
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(folder / "model.safetensors")
    for new, name in old.items():
        tensors = {key.replace(new, name): value for key, value in tensors.items()}
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    found = read_huggingface(folder).weights
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_heads_and_buffers_are_left_out_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = load_file(folder / "model.safetensors")
    heads = [name for name in tensors if not name.startswith("bert.")]
    tensors["bert.embeddings.position_ids"] = torch.arange(48)[None]
    tensors["bert.pooler.dense.weight"] = torch.zeros(16, 16)
    save_file(tensors, folder / "model.safetensors")
    with caplog.at_level(logging.INFO, "lengnuan"):
        read_huggingface(folder)
    taken = len(tensors) - len(heads) - 2
    assert taken == 5 + 2 * 16
    assert f"imported {taken} of {len(tensors)} parameters" in caplog.text
    for name in (*heads, "bert.embeddings.position_ids", "bert.pooler.dense.weight"):
        assert name in caplog.text


def test_every_missing_parameter_of_the_encoder_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.startswith("bert.")]:
        save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
        with pytest.raises(UsageError, match=f"{name} is missing"):
            read_huggingface(folder)


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.2.attention.self.query.weight",
        "bert.encoder.layer.1.attention.LayerNorm.weight",
        "bert.encoder.layer.0.attention.self.distance_embedding.weight",
        "bert.embeddings_project.weight",
        "bert.embeddings.task_type_embeddings.weight",
        "encoder.layer.0.output.dense.weight",
        "roberta.encoder.layer.0.output.dense.weight",
    ],
)
def test_a_tensor_of_the_encoder_that_is_left_over_is_refused(folder: Path, name: str) -> None:
    save_file(load_file(folder / "model.safetensors") | {name: torch.zeros(16)}, folder / "model.safetensors")
    with pytest.raises(UsageError, match=f"{name} is no part of the encoder"):
        read_huggingface(folder)


def test_a_layer_more_than_the_config_says_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=1)
    with pytest.raises(UsageError, match=r"bert\.encoder\.layer\.1\..* is no part of the encoder"):
        read_huggingface(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32}, r"word_embeddings\.weight is \[\d+, 16\], not \[\d+, 32\]"),
        ({"vocab_size": 10}, r"word_embeddings\.weight is \[\d+, 16\], not \[10, 16\]"),
        ({"max_position_embeddings": 40}, r"position_embeddings\.weight is \[48, 16\], not \[40, 16\]"),
        ({"type_vocab_size": 3}, r"token_type_embeddings\.weight is \[2, 16\], not \[3, 16\]"),
        ({"intermediate_size": 20}, r"intermediate\.dense\.weight is \[24, 16\], not \[20, 16\]"),
        ({"num_attention_heads": 3}, "width 16 is not a multiple of heads 3"),
        ({"num_hidden_layers": 3}, r"bert\.encoder\.layer\.2\..* is missing"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "wide"}, "wide"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported, only gelu or relu"),
        ({"position_embedding_type": "relative_key"}, "'relative_key' is not supported, only absolute"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
        ({"model_type": "albert"}, "'albert' is not supported, only bert, ernie, roberta, xlm-roberta"),
        ({"model_type": "electra"}, "'electra' is not supported"),
        ({"model_type": "deberta-v2"}, "'deberta-v2' is not supported"),
        ({"model_type": None}, "None is not supported"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    edit_json(folder / "config.json", **change)
    with pytest.raises(UsageError, match=message):
        read_huggingface(folder)


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: tensors[name].to(torch.int8)}, folder / "model.safetensors")
    with pytest.raises(UsageError, match=f"{name} is torch.int8: quantised"):
        read_huggingface(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json", "tokenizer.json"])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name if "model" in name else folder / "model.safetensors")
    (folder / name).write_bytes(b"\x80\x02not what it says")
    with pytest.raises(UsageError, match=name):
        read_huggingface(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match=name):
        read_huggingface(folder)


def test_code_in_a_bin_file_is_not_run(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (folder / "sprung",))

    (folder / "model.safetensors").unlink()
    torch.save({"bert.embeddings.word_embeddings.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin"):
        read_huggingface(folder)
    assert not (folder / "sprung").exists()


def test_a_vocabulary_of_another_kind_is_refused(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", model={"type": "BPE", "vocab": {"好": 0}, "merges": []})
    with pytest.raises(UsageError, match="a BPE vocabulary is not supported, only WordPiece and Unigram"):
        read_huggingface(folder)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "Unigram", "vocab": [["<s>", 0.0], ["好", -1.0]]}, "no piece ▁"),
        ({"type": "Unigram", "vocab": [["▁", -1.0], ["<s>", 0.0]]}, "no </s>, <pad>, <unk>"),
        ({"type": "Unigram", "vocab": [["▁", float("nan")]]}, "no finite number"),
        ({"type": "WordPiece", "vocab": {"好": 0}, "continuing_subword_prefix": "@@"}, "must start with ##"),
        ({"type": "WordPiece", "vocab": {"好": "first"}}, "first"),
        ({"type": "WordPiece"}, "vocab"),
        (None, "model"),
    ],
)
def test_a_vocabulary_without_what_is_needed_is_refused(folder: Path, model: Any, message: str) -> None:
    edit_json(folder / "tokenizer.json", model=model, added_tokens=[])
    with pytest.raises(UsageError, match=message):
        read_huggingface(folder)


def test_more_pieces_than_rows_are_refused(folder: Path) -> None:
    rows = len(load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"])
    (folder / "tokenizer.json").unlink()
    more = [*WORDPIECES, *map(chr, range(0x5000, 0x5000 + rows + 1 - len(WORDPIECES)))]
    (folder / "vocab.txt").write_text("\n".join(more), encoding="utf-8")
    with pytest.raises(UsageError, match=f"{rows + 1} pieces in the vocabulary, but {rows} rows"):
        read_huggingface(folder)


@pytest.mark.parametrize(
    ("readme", "licence"),
    [
        (None, "not stated"),
        ("---\nlanguage: zh\nlicense: apache-2.0\n---\n# license: none\n", "apache-2.0"),
        ("# A model\n\nlicense: mit\n", "not stated"),
        ('---\r\nlicense: "mit"\r\n---\r\n', "mit"),
    ],
)
def test_the_licence_is_that_of_the_front_matter(folder: Path, readme: str | None, licence: str) -> None:
    if readme is not None:
        (folder / "README.md").write_bytes(readme.encode())
    assert read_huggingface(folder).licence == licence


def test_the_origin_is_what_the_config_calls_it(folder: Path) -> None:
    edit_json(folder / "config.json", _name_or_path="somebody/tiny-bert")
    assert read_huggingface(folder).origin == "somebody/tiny-bert (bert)"
    edit_json(folder / "config.json", _name_or_path="/home/somebody/model")
    assert read_huggingface(folder).origin == f"{folder.name} (bert)"
