"""Synthetic rows: fixed by the seed, all different, and no word of theirs stands for a label."""

import random
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.text import normalise
from lengnuan.training.augment import generate
from lengnuan.training.corpus import read_corpus
from lengnuan.training.errors import UsageError
from lengnuan.training.examples import Example
from lengnuan.training.noise import perturb
from lengnuan.training.splits import text_key

CUES = ("不", "没", "没有", "虽然", "尽管", "但是", "不过", "比", "没想到", "除了", "谁", "早知道", "一点", "推荐")
SLANG = ("种草", "避雷", "破防", "拔草", "属实")
PRAISE = ("yyds", "绝绝子", "真香", "吹爆", "神仙", "天花板")
BLAME = ("踩雷", "智商税", "割韭菜", "拉胯", "翻车")


@cache
def rows() -> list[Example]:
    return generate(12_000, seed=3)


def positive_share(word: str) -> float:
    return float(np.mean([row.label for row in rows() if word in row.text]))


def test_the_seed_decides_the_rows() -> None:
    assert generate(200, seed=1) == generate(200, seed=1)
    assert generate(200, seed=1) != generate(200, seed=2)
    assert generate(7, seed=1) == generate(200, seed=1)[:7]


def test_all_sentences_differ_and_stay_short() -> None:
    assert len({normalise(row.text) for row in rows()}) == 12_000
    assert {row.label for row in rows()} == {0, 1}
    assert max(len(row.text) for row in rows()) <= 80
    assert not [row.text for row in rows() if set("{}()|") & set(row.text)]


def test_labels_and_categories_come_equally_often() -> None:
    counts = Counter((row.domain, row.label) for row in rows())
    assert len(counts) == 30
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("cue", CUES)
def test_no_cue_word_stands_for_a_label(cue: str) -> None:
    assert 0.45 <= positive_share(cue) <= 0.55


@pytest.mark.parametrize("word", SLANG)
def test_no_slang_stands_for_a_label(word: str) -> None:
    assert 0.4 <= positive_share(word) <= 0.6


@pytest.mark.parametrize("word", [*PRAISE, *BLAME])
def test_slang_with_a_verdict_leans_its_way_and_can_be_turned(word: str) -> None:
    share = positive_share(word)
    assert 0.6 <= (share if word in PRAISE else 1 - share) <= 0.9


@pytest.mark.parametrize("noun", ["味道", "房间", "屏幕", "物流", "剧情", "文笔", "心情", "老师", "米饭", "界面"])
def test_no_noun_stands_for_a_label(noun: str) -> None:
    assert 0.45 <= positive_share(noun) <= 0.55


@pytest.mark.parametrize("text", ["味道很好吃，服务也不错！", "没有任何问题", "好", "!!!", "so good", "a\tb", "😊"])
def test_noise_leaves_a_text(text: str) -> None:
    for seed in range(50):
        noisy = perturb(text, random.Random(seed))
        assert normalise(noisy)
        assert noisy == perturb(text, random.Random(seed))


def test_noise_keeps_every_negation() -> None:
    for row in rows()[:500]:
        noisy = perturb(row.text, random.Random(1))
        assert noisy.count("不") >= row.text.count("不") - noisy.count("8") - noisy.count("4")


def test_off_by_default(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    corpus = read_corpus(small_config(tmp_path))
    assert corpus.synthetic == []
    assert corpus.facts["synthetic_rows"] == {"generated": 0, "noisy_copies": 0, "held_out_dropped": 0, "nonsense": 0}
    assert "synthetic" not in corpus.identity()


def test_rows_are_added_to_what_is_learnt_and_to_nothing_else(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(200))
    plain = read_corpus(small_config(tmp_path))
    corpus = read_corpus(small_config(tmp_path, augment={"rows": 100, "noise_share": 0.5}))
    assert (corpus.train, corpus.dev, corpus.test) == (plain.train, plain.dev, plain.test)
    counts = corpus.facts["synthetic_rows"]
    assert counts["generated"] == 100
    assert 0.3 < counts["noisy_copies"] / len(corpus.train) < 0.7
    assert len(corpus.synthetic) == counts["generated"] + counts["noisy_copies"]
    assert corpus.identity() != plain.identity()


def test_no_row_is_a_dev_or_test_text(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    made = generate(100, seed=1)
    write_tsv(tmp_path / "test.tsv", [(row.text + "！", row.label) for row in made[:40]])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "test": {"a": "test.tsv"}}
    corpus = read_corpus(small_config(tmp_path, data=data, augment={"rows": 100}))
    assert not {text_key(example.text) for example in corpus.synthetic} & corpus.held_out_keys()
    assert corpus.facts["synthetic_rows"]["held_out_dropped"] >= 40


@pytest.mark.parametrize(
    "labels", [{"positive": ["1"], "negative": ["0"]}, {"bad": ["0"], "good": ["1"]}, {"0": [], "1": []}]
)
def test_other_classes_are_refused(tmp_path: Path, labels: dict[str, list[str]]) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    with pytest.raises(UsageError, match=r"\[augment\] is for the classes"):
        read_corpus(small_config(tmp_path, labels=labels, augment={"rows": 10}))
