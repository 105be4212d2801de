"""From the out-of-fold file to a queue, and from what people answered back to a training file."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.training.annotations import TOOLS
from lengnuan.training.commands import run
from lengnuan.training.convert import Fields, read_annotated
from lengnuan.training.errors import UsageError
from lengnuan.training.folds import ngram_beliefs, run_folds
from lengnuan.training.job import Job
from lengnuan.training.out_of_fold import OutOfFold, Place, read_out_of_fold, write_out_of_fold
from lengnuan.training.suspects import Suspect, rank, write_queue

NAMES = ("差", "好")
QUEUE = [
    Suspect("房间 很好", "差", "好", 0.01, ["a:3", "b:7"], True),
    Suspect("很脏\n", "好", "差", 0.2, ["a:9"], False),
]


def beliefs(texts: list[str], labels: list[int], right: list[float]) -> OutOfFold:
    """`right`: the probability of each row's own label."""
    rows = np.array([[p, 1 - p] if label == 0 else [1 - p, p] for p, label in zip(right, labels, strict=True)])
    places = [Place("a", number) for number in range(2, 2 + len(texts))]
    return OutOfFold(NAMES, places, texts, np.array(labels), np.ones(len(texts), dtype=np.int64), rows)


def test_the_most_doubtful_label_comes_first() -> None:
    found = rank(beliefs(["一", "二", "三", "四"], [0, 1, 0, 1], [0.9, 0.02, 0.3, 0.8]))
    assert [one.text for one in found] == ["二", "三", "四", "一"]
    assert (found[0].label, found[0].suggested) == ("好", "差")
    assert 0.0 <= found[0].quality < found[-1].quality <= 1.0


def test_a_text_in_several_rows_is_asked_about_once_with_its_most_doubtful_label() -> None:
    found = rank(beliefs(["一", "二", "一"], [0, 1, 1], [0.95, 0.9, 0.05]))
    assert [one.text for one in found] == ["一", "二"]
    assert found[0].label == "好"
    assert found[0].rows == ["a:2", "a:4"]


def test_a_queue_for_a_spreadsheet_says_that_it_is_utf_8(tmp_path: Path) -> None:
    write_queue(QUEUE, tmp_path / "queue.csv", "table", Fields())
    assert (tmp_path / "queue.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    found = read_annotated(tmp_path / "queue.csv", "table", Fields(), {})
    assert found.rows == [(one.text, one.label) for one in QUEUE]


def test_a_class_that_no_row_has_is_refused() -> None:
    with pytest.raises(UsageError, match="no row has the label '好'"):
        rank(beliefs(["一", "二"], [0, 0], [0.9, 0.1]))


def test_of_labels_flipped_on_purpose_most_are_in_the_first_tenth(tmp_path: Path) -> None:
    rows = sentences(500, seed=3)
    flipped = set(random.Random(0).sample(range(len(rows)), 50))
    noisy = [(text, 1 - label if number in flipped else label) for number, (text, label) in enumerate(rows)]
    write_tsv(tmp_path / "train.tsv", noisy)
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "dev_share": 0.1, "test_share": 0.0}
    config = small_config(tmp_path, data=data, gate={"acknowledged": ["conflicting"]})
    run_folds(Job(config, tmp_path / "run"), 5, ngram_beliefs, "folds")
    found = read_out_of_fold(tmp_path / "run" / "folds" / "out-of-fold.jsonl")
    ranked = rank(found)
    first = {place for one in ranked[: len(ranked) // 10] for place in one.rows}
    in_pool = {f"a:{number + 2}" for number in flipped} & {str(place) for place in found.places}
    assert len(in_pool) >= 40
    assert len(first & in_pool) >= 0.6 * len(in_pool)
    assert 0.05 < sum(one.issue for one in ranked) / len(ranked) < 0.2


# Files for tools


@pytest.mark.parametrize("form", [*TOOLS, "table"])
def test_a_queue_reads_back_as_its_texts_and_labels_in_its_order(tmp_path: Path, form: str) -> None:
    fields = Fields("内容", "情感")
    write_queue(QUEUE, tmp_path / "queue.jsonl", form, fields)
    found = read_annotated(tmp_path / "queue.jsonl", form, fields, {})
    assert found.rows == [("房间 很好", "差"), ("很脏\n", "好")]


@pytest.mark.parametrize("form", ["label-studio", "argilla"])
def test_what_nobody_has_answered_is_no_answer(tmp_path: Path, form: str) -> None:
    write_queue(QUEUE, tmp_path / "queue.json", form, Fields())
    items = json.loads((tmp_path / "queue.json").read_text(encoding="utf-8"))
    answer(items[0], form, "好")
    (tmp_path / "queue.json").write_text(json.dumps(items), encoding="utf-8")
    found = read_annotated(tmp_path / "queue.json", form, Fields(), {}, confirmed=True)
    assert found.rows == [("房间 很好", "好")]
    assert found.unconfirmed == 1


def answer(item: dict[str, Any], form: str, label: str) -> None:
    """As a person's answer stands in that tool's export."""
    if form == "doccano":
        item["label"] = [label]
    elif form == "label-studio":
        result = {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": [label]}}
        item["annotations"] = [{"result": [result]}]
    else:
        item["responses"] = {"label": [{"value": label, "user_id": "1"}]}


def test_each_tool_is_told_where_the_rows_stand_and_what_the_model_says(tmp_path: Path) -> None:
    beside = {"suggested": "好", "quality": 0.01, "rows": ["a:3", "b:7"]}
    inside = {
        "doccano": lambda item: item,
        "label-studio": lambda item: item["data"],
        "argilla": lambda i: i["metadata"],
    }
    for form, part in inside.items():
        write_queue(QUEUE, tmp_path / f"{form}.jsonl", form, Fields())
        first = json.loads((tmp_path / f"{form}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert {key: part(first)[key] for key in beside} == beside


def test_a_queue_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "queue.csv").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="there already"):
        write_queue(QUEUE, tmp_path / "queue.csv", "table", Fields())


# The command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    texts = [f"第{number}条" for number in range(40)]
    labels = [number % 2 for number in range(40)]
    right = [0.03 if number in (4, 9, 20) else 0.95 for number in range(40)]
    write_out_of_fold(beliefs(texts, labels, right), tmp_path / "out-of-fold.jsonl")
    return tmp_path / "out-of-fold.jsonl"


@pytest.mark.parametrize(("options", "rows"), [([], 3), (["--share", "0.25"], 10), (["--texts", "7"], 7)])
def test_the_queue_is_as_long_as_asked_for_or_as_many_labels_as_seem_wrong(
    file: Path, options: list[str], rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output = file.with_name("queue.csv")
    assert run(["data", "suspect", str(file), "--output", str(output), *options]) == 0
    assert len(output.read_text(encoding="utf-8").splitlines()) == 1 + rows
    assert f"the {rows} most doubtful of 40 texts; the labels of 3 (7.5%) seem wrong" in capsys.readouterr().out


def test_several_files_are_asked_together(file: Path, tmp_path: Path) -> None:
    texts, labels = [f"第{number}条" for number in range(40)], [number % 2 for number in range(40)]
    surer_of_one = [0.01 if number == 20 else 0.95 for number in range(40)]
    write_out_of_fold(beliefs(texts, labels, surer_of_one), tmp_path / "other.jsonl")
    output = tmp_path / "queue.jsonl"
    assert (
        run(["data", "suspect", str(file), str(tmp_path / "other.jsonl"), "--output", str(output), "--texts", "3"]) == 0
    )
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == ["第20条", "第4条", "第9条"]
    assert rows[0]["quality"] == pytest.approx(0.02, abs=1e-4)  # the mean of 0.03 and 0.01


def test_an_empty_queue_is_not_written(file: Path) -> None:
    assert run(["data", "suspect", str(file), "--output", str(file.with_name("q.csv")), "--texts", "0"]) == 2
    assert not file.with_name("q.csv").exists()
