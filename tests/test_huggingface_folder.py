"""Hugging Face folders at the edges: task types, names without a prefix, an index that leads elsewhere, no mask."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import WORDPIECES, edit_json, write_model, write_unigram, write_vocab_txt, write_wordpiece

from lengnuan.training.errors import UsageError
from lengnuan.training.huggingface import read_huggingface


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    write_model(tmp_path, "BertModel")
    write_wordpiece(tmp_path)
    return tmp_path


def add(folder: Path, name: str, value: torch.Tensor) -> None:
    save_file(load_file(folder / "model.safetensors") | {name: value}, folder / "model.safetensors")


def test_task_types_need_their_table_and_a_table_its_setting(tmp_path: Path) -> None:
    write_wordpiece(tmp_path)
    write_model(tmp_path, "ErnieModel", use_task_id=False)
    edit_json(tmp_path / "config.json", use_task_id=True)
    with pytest.raises(UsageError, match=r"task_type_embeddings\.weight is missing"):
        read_huggingface(tmp_path)
    write_model(tmp_path, "ErnieModel", use_task_id=True)
    edit_json(tmp_path / "config.json", use_task_id=False)
    with pytest.raises(UsageError, match=r"task_type_embeddings\.weight is no part"):
        read_huggingface(tmp_path)


def test_without_a_prefix_only_known_heads_are_left_out(bert: Path) -> None:
    add(bert, "embeddings.position_ids", torch.arange(48))
    add(bert, "classifier.weight", torch.zeros(2, 16))
    read_huggingface(bert)
    add(bert, "final_norm.weight", torch.zeros(16))
    with pytest.raises(UsageError, match="final_norm"):
        read_huggingface(bert)


def test_an_old_and_a_new_name_of_one_parameter_are_refused(bert: Path) -> None:
    add(bert, "embeddings.LayerNorm.gamma", torch.zeros(16))
    with pytest.raises(UsageError, match="both"):
        read_huggingface(bert)


@pytest.mark.parametrize("index", [{"weight_map": {"x": "../other.safetensors"}}, {"weight_map": 3}, {}])
def test_an_index_names_files_of_the_folder_only(bert: Path, index: dict[str, Any]) -> None:
    (bert / "model.safetensors").unlink()
    (bert / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UsageError, match="weight_map"):
        read_huggingface(bert)


@pytest.mark.parametrize("content", [{"step": 3}, [1]], ids=["a number", "a list"])
def test_a_bin_file_holds_tensors_only(bert: Path, content: object) -> None:
    (bert / "model.safetensors").unlink()
    torch.save(content, bert / "pytorch_model.bin")
    with pytest.raises(UsageError, match="not a table of tensors"):
        read_huggingface(bert)


def test_as_many_rows_as_pieces_are_enough(tmp_path: Path) -> None:
    write_vocab_txt(tmp_path)
    write_model(tmp_path, "BertModel", vocab_size=len(WORDPIECES))
    assert read_huggingface(tmp_path).pieces == tuple(WORDPIECES)
    write_model(tmp_path, "BertModel", vocab_size=len(WORDPIECES) - 1)
    with pytest.raises(UsageError, match=f"{len(WORDPIECES)} pieces"):
        read_huggingface(tmp_path)


def test_a_vocabulary_without_a_mask_has_none(tmp_path: Path) -> None:
    write_model(tmp_path, "BertModel")
    write_unigram(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace("<mask>", "<other>"), encoding="utf-8")
    assert read_huggingface(tmp_path).special.mask is None


def test_positions_of_roberta_start_behind_the_padding_s(tmp_path: Path) -> None:
    write_unigram(tmp_path)
    table = write_model(tmp_path, "RobertaModel").embeddings
    found = read_huggingface(tmp_path)
    assert found.shape["max_tokens"] == 46
    expected = table.position_embeddings.weight[2:] + table.token_type_embeddings.weight[0]
    assert torch.equal(found.weights["embeddings.positions.weight"], expected)
