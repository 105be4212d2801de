from pathlib import Path

import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.training.corpus import read_corpus
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.splits import codes_of, text_key


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
    with pytest.raises(DataRefused, match="class 'positive' has no training row"):
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


def test_dev_rows_that_are_also_in_test_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = sentences(100)
    write_tsv(tmp_path / "train.tsv", rows[:60])
    write_tsv(tmp_path / "dev.tsv", rows[60:80])
    write_tsv(tmp_path / "test.tsv", rows[75:])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "dev": {"a": "dev.tsv"}, "test": {"a": "test.tsv"}}
    corpus = read_corpus(small_config(tmp_path, data=data))
    assert corpus.facts["dev_rows_also_in_test"] >= 5
    assert not set(codes_of(corpus.dev.values())) & set(codes_of(corpus.test.values()))


def test_dev_share_is_of_the_training_rows_when_test_is_named(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(2000))
    write_tsv(tmp_path / "test.tsv", sentences(10, seed=8))
    data = {
        "root": tmp_path,
        "train": {"a": "train.tsv"},
        "test": {"a": "test.tsv"},
        "dev_share": 0.1,
        "test_share": 0.5,
    }
    corpus = read_corpus(small_config(tmp_path, data=data))
    rows = len(corpus.dev["dev"])
    assert 0.06 < rows / (rows + len(corpus.train)) < 0.14


def test_however_few_the_rows_each_split_gets_some(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [(char, index % 2) for index, char in enumerate("坏好差棒烂赞劣优")])
    for seed in range(20):
        corpus = read_corpus(small_config(tmp_path, data={"root": tmp_path, "train": {"a": "train.tsv"}}, seed=seed))
        assert {example.label for example in corpus.train} == {0, 1}
        assert corpus.dev["dev"]
        assert corpus.test["test"]


def test_the_identity_changes_with_any_row_label_or_order_of_the_classes(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    first = read_corpus(small_config(tmp_path)).identity()
    swapped = read_corpus(small_config(tmp_path, labels={"positive": ["1"], "negative": ["0"]})).identity()
    write_tsv(tmp_path / "train.tsv", [*sentences(60), ("全新的一行", 1)])
    assert len({str(first), str(swapped), str(read_corpus(small_config(tmp_path)).identity())}) == 3
