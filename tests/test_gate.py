"""What a training run refuses, and what it goes on with when the config says so."""

from pathlib import Path

import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.training.config import GateConfig
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.errors import DataRefused
from lengnuan.training.examples import Example
from lengnuan.training.gate import Measured, judge, label_shift, refuse
from lengnuan.training.job import Job

LONG = "酒店的位置很方便,服务也周到,早餐种类不算多,不过味道都还可以,下次来这里出差还会住"
Rows = list[tuple[str, int]]


def corpus_of(root: Path, train: Rows, test: Rows | None = None, **gate: object) -> Corpus:
    write_tsv(root / "train.tsv", train)
    data: dict[str, object] = {"root": root, "train": {"a": "train.tsv"}, "dev_share": 0.2, "test_share": 0.2}
    if test is not None:
        write_tsv(root / "test.tsv", test)
        data["test"] = {"a": "test.tsv"}
    return read_corpus(small_config(root, data=data, gate=gate))


def refused(corpus: Corpus) -> list[str]:
    return [found.concern for found in corpus.gate if found.refused]


def test_the_worst_place_is_judged_and_the_limit_itself_is_within() -> None:
    found = judge([Measured("leaked", 0.02, "dev"), Measured("leaked", 0.01, "test")], GateConfig())
    assert [(j.where, j.past) for j in found] == [("dev", False)]
    (past,) = judge([Measured("leaked", 0.0201, "dev")], GateConfig())
    assert (past.past, past.refused) == (True, True)


def test_everything_past_is_named_with_what_to_do_and_how_to_acknowledge() -> None:
    gate = GateConfig(acknowledged=("shortcut",))
    shares = {"conflicting": 0.5, "duplicate": 0.5, "shortcut": 0.5}
    with pytest.raises(DataRefused, match=r'acknowledged = \["conflicting", "duplicate"\]') as error:
        refuse(judge([Measured(name, share, "train") for name, share in shares.items()], gate))  # type: ignore[arg-type]
    assert "decide which label is right" in str(error.value)
    assert "shortcut" not in str(error.value)


def test_ordinary_data_passes(tmp_path: Path) -> None:
    assert refused(corpus_of(tmp_path, sentences(300))) == []


def test_edited_copies_of_test_rows_are_leaks_that_dropping_equal_texts_leaves(tmp_path: Path) -> None:
    rows = sentences(300)
    test = [*rows[:40], (LONG, 1)]
    corpus = corpus_of(tmp_path, [*rows[40:], (LONG[:-5] + "就这样吧", 1)], test)
    assert corpus.facts["leaks"]["test a"] == 0
    assert corpus.facts["leaks_with_near"]["test a"] == 1
    assert refused(corpus) == ["leaked"]
    assert refused(corpus_of(tmp_path, [*rows[40:], (LONG[:-5], 1)], test, max_leaked_share=0.1)) == []


def test_conflicts_and_duplicates_of_the_files_as_they_are_count(tmp_path: Path) -> None:
    rows = sentences(100, seed=3)
    conflicting = [(text, label) for text, label in rows[:10]] + [(text, 1 - label) for text, label in rows[:10]]
    assert refused(corpus_of(tmp_path, rows + conflicting)) == ["conflicting"]
    assert refused(corpus_of(tmp_path, rows + rows[10:])) == ["duplicate"]
    assert refused(corpus_of(tmp_path, rows + rows[10:], acknowledged=("duplicate",))) == []


def test_marks_that_give_the_label_away_count(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [(text + ("[怒]", "[赞]")[label], label) for text, label in sentences(400)])
    assert refused(corpus) == ["shortcut"]
    assert {found["token"] for found in corpus.facts["shortcuts"]["marks"]} == {"[怒]", "[赞]"}


def test_other_shares_of_the_labels_in_test_count(tmp_path: Path) -> None:
    rows = sentences(500)
    test = [row for row in sentences(400, seed=9) if row[1]]
    assert refused(corpus_of(tmp_path, rows, test)) == ["label_shift"]


def test_label_shift_is_the_total_variation_distance() -> None:
    first = [Example("a", label) for label in [0] * 60 + [1] * 40]
    second = [Example("a", label) for label in [0] * 30 + [1] * 50 + [2] * 20]
    assert label_shift(first, second) == pytest.approx(0.3)
    assert label_shift(first[:99], second) is None


def test_a_run_refuses_and_the_acknowledgement_lets_the_same_folder_go_on(tmp_path: Path) -> None:
    rows = sentences(100, seed=3)
    write_tsv(tmp_path / "train.tsv", rows + rows)
    with pytest.raises(DataRefused, match="duplicate: 5"):
        Job(small_config(tmp_path), tmp_path / "run").fit()
    config = small_config(tmp_path, gate={"acknowledged": ["duplicate"]})
    gate = {found["concern"]: found for found in Job(config, tmp_path / "run").corpus.facts["gate"]}
    assert (gate["duplicate"]["past"], gate["duplicate"]["acknowledged"]) == (True, True)


def test_a_refused_run_leaves_no_claim_on_the_rows(tmp_path: Path) -> None:
    rows = sentences(100, seed=3)
    write_tsv(tmp_path / "train.tsv", rows + rows)
    with pytest.raises(DataRefused):
        Job(small_config(tmp_path), tmp_path / "run").fit()
    write_tsv(tmp_path / "train.tsv", rows)
    assert Job(small_config(tmp_path), tmp_path / "run").corpus.train
