"""Dealing rows into folds, and what the model of a fold may see. The networks are in integration/test_folds.py."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.training.corpus import Corpus
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example
from lengnuan.training.folds import Beliefs, deal, ngram_beliefs, run_folds
from lengnuan.training.job import Job
from lengnuan.training.out_of_fold import OutOfFold, read_out_of_fold
from lengnuan.training.splits import text_key

LONG = "这家酒店的位置很好，离地铁站只有几步路，房间也干净，就是早餐的种类少了一点，下次还会再来住的"


def examples(rows: int) -> list[Example]:
    return [Example(text, label) for text, label in sentences(rows)]


class Watched:
    """A predictor that notes what each fold's model is given to learn from and to judge."""

    def __init__(self) -> None:
        self.learnt: list[Corpus] = []
        self.judged: list[list[str]] = []

    def __call__(self, job: Job, name: str, corpus: Corpus, texts: list[str]) -> tuple[Beliefs, float]:
        self.learnt.append(corpus)
        self.judged.append(list(texts))
        return np.full((len(texts), 2), 0.5), 0.5 + len(self.learnt) / 100


def watched(root: Path, rows: list[tuple[str, int]], folds: int = 3, **sections: object) -> tuple[Watched, OutOfFold]:
    write_tsv(root / "train.tsv", rows)
    config = small_config(root, gate={"acknowledged": ["conflicting", "duplicate", "leaked"]}, **sections)
    predictor = Watched()
    run_folds(Job(config, root / "run"), folds, predictor, "folds")
    return predictor, read_out_of_fold(root / "run" / "folds" / "out-of-fold.jsonl")


def test_every_fold_has_its_share_of_every_class() -> None:
    rows = [Example(f"{number}", int(number % 10 == 0)) for number in range(200)]
    fold_of = deal(rows, 4, seed=1)
    counts = Counter((int(fold), row.label) for fold, row in zip(fold_of, rows, strict=True))
    assert counts == {(fold, label): (45, 5)[label] for fold in (1, 2, 3, 4) for label in (0, 1)}


def test_repeats_and_near_copies_fall_into_one_fold() -> None:
    copies = [Example(text, label) for label, text in enumerate([LONG, LONG.replace("，", ","), LONG + "！！谢谢"])]
    fold_of = deal([*examples(60), *copies], 5, seed=1)
    assert len(set(fold_of[-3:].tolist())) == 1


def test_the_seed_decides_and_the_order_does_not() -> None:
    rows = examples(80)
    by_text = dict(zip((row.text for row in rows), deal(rows, 4, seed=1), strict=True))
    turned = rows[::-1]
    assert {row.text: fold for row, fold in zip(turned, deal(turned, 4, seed=1), strict=True)} == by_text
    assert {row.text: fold for row, fold in zip(rows, deal(rows, 4, seed=2), strict=True)} != by_text


def test_every_row_that_is_not_held_out_is_judged_once_and_has_its_place(tmp_path: Path) -> None:
    rows = sentences(100)
    rows += [rows[0], (rows[1][0], 1 - rows[1][1])]  # a repeat, and a text with two labels, which training leaves out
    predictor, found = watched(tmp_path, rows)
    held_out = predictor.learnt[0].held_out_keys()
    expected = [number for number, (text, _) in enumerate(rows) if text_key(text) not in held_out]
    assert [place.line - 2 for place in found.places] == expected
    assert [(text, int(label)) for text, label in zip(found.texts, found.labels, strict=True)] == [
        rows[n] for n in expected
    ]
    assert Counter(found.texts) == Counter(text for texts in predictor.judged for text in texts)


def test_no_model_learns_from_a_text_that_it_judges(tmp_path: Path) -> None:
    predictor, _ = watched(tmp_path, sentences(120))
    for corpus, texts in zip(predictor.learnt, predictor.judged, strict=True):
        assert not corpus.train_keys() & {text_key(text) for text in texts}
        assert corpus.dev == predictor.learnt[0].dev


def test_noisy_copies_of_a_fold_s_rows_are_not_learnt_either(tmp_path: Path) -> None:
    predictor, _ = watched(tmp_path, sentences(60), augment={"noise_share": 1.0})
    for corpus in predictor.learnt:
        assert 0 < len(corpus.synthetic) <= len(corpus.train)
    assert len({json.dumps(corpus.facts["identity"]) for corpus in predictor.learnt}) == 3


def test_the_figures_have_the_spread_over_the_folds(tmp_path: Path) -> None:
    watched(tmp_path, sentences(100))
    found = json.loads((tmp_path / "run" / "folds" / "folds.json").read_text(encoding="utf-8"))
    assert found["dev"].pop("scores") == [0.51, 0.52, 0.53]
    assert found["dev"] == pytest.approx({"mean": 0.52, "sd": 0.01, "min": 0.51})
    assert sum(found["rows"]) == found["out_of_fold"]["rows"]


def test_a_fold_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    watched(tmp_path, sentences(60))
    before = (tmp_path / "run" / "folds" / "out-of-fold.jsonl").read_bytes()
    (tmp_path / "run" / "folds" / "fold-2" / "out-of-fold.safetensors").unlink()
    predictor, _ = watched(tmp_path, sentences(60))
    assert len(predictor.learnt) == 1
    assert (tmp_path / "run" / "folds" / "out-of-fold.jsonl").read_bytes() == before


def test_beliefs_about_other_rows_are_refused(tmp_path: Path) -> None:
    rows = sentences(60)
    watched(tmp_path, rows)
    with pytest.raises(UsageError, match="of other rows"):
        watched(tmp_path, [*rows, *rows])  # the repeats change nothing that training sees, but are rows to judge


@pytest.mark.parametrize(("folds", "error"), [(1, UsageError), (0, UsageError)])
def test_fewer_than_two_folds_are_a_usage_error(tmp_path: Path, folds: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="2 or more"):
        watched(tmp_path, sentences(60), folds)


def test_a_class_that_one_fold_holds_alone_is_refused(tmp_path: Path) -> None:
    rows = [row for row in sentences(80) if row[1] == 0] + [("很好，满意", 1)]
    write_tsv(tmp_path / "dev.tsv", sentences(20, seed=5))
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "dev": {"d": "dev.tsv"}, "test_share": 0.0}
    with pytest.raises(DataRefused, match="class 'positive' has no row"):
        watched(tmp_path, rows, data=data, folds=2)


def test_n_grams_judge_too(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(200))
    figures = run_folds(Job(small_config(tmp_path), tmp_path / "run"), 2, ngram_beliefs, "folds")
    assert figures["out_of_fold"]["accuracy"] > 0.9
