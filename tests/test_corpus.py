from pathlib import Path

import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.training.corpus import read_corpus
from lengnuan.training.data import text_key
from lengnuan.training.errors import DataRefused, UsageError


def test_splits_are_made_where_none_are_named_and_share_no_text(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(300))
    corpus = read_corpus(small_config(tmp_path))
    held_out = [text_key(e.text) for split in (corpus.dev, corpus.test) for rows in split.values() for e in rows]
    assert corpus.dev
    assert corpus.test
    assert not corpus.train_keys() & set(held_out)


def test_training_rows_that_are_also_in_test_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = sentences(100)
    write_tsv(tmp_path / "train.tsv", rows)
    write_tsv(tmp_path / "test.tsv", [(text.replace("，", " , "), label) for text, label in rows[:10]])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "test": {"a": "test.tsv"}}
    corpus = read_corpus(small_config(tmp_path, data=data))
    assert corpus.facts["train_leaked_dropped"] >= 10
    assert corpus.facts["leaks"]["test a"] == 0


def test_leaks_are_kept_and_counted_when_the_config_says_so(tmp_path: Path) -> None:
    rows = sentences(100)
    write_tsv(tmp_path / "train.tsv", rows)
    write_tsv(tmp_path / "test.tsv", rows[:10])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "test": {"a": "test.tsv"}, "drop_leaked": False}
    corpus = read_corpus(small_config(tmp_path, data=data | {"dev": {"a": "test.tsv"}}))
    assert corpus.facts["leaks"]["test a"] == 10


def test_a_text_with_two_labels_is_dropped(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [*sentences(100), ("味道 一般！", 0), ("味道一般", 1)])
    corpus = read_corpus(small_config(tmp_path))
    assert corpus.facts["train_conflicts_dropped"] == 2


def test_too_many_rejected_lines_are_refused_with_line_and_reason(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "train.tsv", sentences(50))
    path.write_text(path.read_text(encoding="utf-8") + "7\t标签不对\n" * 10, encoding="utf-8")
    with pytest.raises(DataRefused, match=r"line 52: unknown label '7'") as refused:
        read_corpus(small_config(tmp_path))
    assert "max_rejected_share" in str(refused.value)


def test_one_class_is_refused(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [row for row in sentences(60) if row[1] == 0])
    with pytest.raises(DataRefused, match="1 class"):
        read_corpus(small_config(tmp_path))


def test_no_training_source_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[data.train\] is empty"):
        read_corpus(small_config(tmp_path, data={"root": tmp_path}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.tsv"):
        read_corpus(small_config(tmp_path))


def test_labels_are_inferred_in_a_fixed_order(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    assert read_corpus(small_config(tmp_path, labels={})).labels.names == ("0", "1")
