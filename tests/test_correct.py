import json
from pathlib import Path

import pytest

from lengnuan.training.commands import run

TRAIN = "类别\t内容\t店\n0\t房间很好\t甲\n1\t早餐 丰富\t乙\n１\t很脏\t丙\n1\t很脏\t丁\n\n0\t太差\t戊\n2\t坏行\t己\n"
CONFIG = """
name = "hotel"
[labels]
negative = ["0"]
positive = ["1"]
[data]
text_column = "内容"
label_column = "类别"
max_rejected_share = 0.5
train = {hotel = "train.tsv"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "hotel.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def correct(folder: Path, reviewed: list[tuple[str, str]], *options: str, config: bool = True) -> int:
    lines = (json.dumps({"text": text, "label": [label]}) + "\n" for text, label in reviewed)
    (folder / "reviewed.jsonl").write_text("".join(lines), encoding="utf-8")
    arguments = ["--reviewed", str(folder / "reviewed.jsonl"), "--from", "doccano"]
    arguments += ["--output", str(folder / "corrected.tsv"), "--json", str(folder / "counts.json")]
    arguments += ["--config", str(folder / "hotel.toml")] if config else []
    return run(["data", "correct", str(folder / "train.tsv"), *arguments, *options])


def rows(folder: Path) -> list[str]:
    return (folder / "corrected.tsv").read_text(encoding="utf-8").splitlines()


def counts(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    return found


def test_labels_change_in_the_file_s_own_spelling_and_nothing_else_does(folder: Path) -> None:
    assert correct(folder, [("房间很好", "positive"), ("很脏", "negative"), ("太差", "negative")]) == 0
    assert rows(folder) == [
        "类别\t内容\t店",
        "1\t房间很好\t甲",
        "1\t早餐 丰富\t乙",
        "0\t很脏\t丙",
        "0\t很脏\t丁",
        "0\t太差\t戊",
    ]


def test_every_row_and_every_text_is_accounted_for(folder: Path) -> None:
    reviewed = [("房间很好", "positive"), ("很脏", "negative"), ("太差", "negative"), ("别处的", "positive")]
    assert correct(folder, [*reviewed, ("早餐 丰富", "positive"), ("早餐 丰富", "negative")]) == 0
    assert counts(folder) == {
        "rows": 5,
        "rejected_lines": 1,
        "changed": 3,
        "changes": {"negative -> positive": 1, "positive -> negative": 2},
        "confirmed": 1,
        "dropped": 0,
        "untouched": 1,
        "reviewed_texts": 5,
        "reviewed_texts_in_the_file": 3,
        "reviewed_texts_not_in_the_file": 1,
        "reviewed_texts_with_two_answers": 1,
    }


def test_white_space_that_a_tool_has_changed_does_not_matter(folder: Path) -> None:
    assert correct(folder, [(" 早餐\n丰富", "negative")]) == 0
    assert rows(folder)[2] == "0\t早餐 丰富\t乙"


def test_rows_that_people_throw_out_are_left_out(folder: Path) -> None:
    assert correct(folder, [("很脏", "看不懂"), ("太差", "negative")], "--drop", "看不懂") == 0
    assert [line.split("\t")[2] for line in rows(folder)[1:]] == ["甲", "乙", "戊"]
    assert counts(folder)["dropped"] == 2


def test_without_a_config_the_labels_are_those_of_the_file(folder: Path) -> None:
    columns = ["--text-column", "内容", "--label-column", "类别"]
    assert correct(folder, [("房间很好", "1")], *columns, config=False) == 0
    assert rows(folder)[1] == "1\t房间很好\t甲"
    assert rows(folder)[-1] == "2\t坏行\t己"


def test_an_answer_that_is_no_label_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert correct(folder, [("房间很好", "中性"), ("太差", "negative")]) == 3
    assert "'中性' (1)" in caplog.text
    assert not (folder / "corrected.tsv").exists()


def test_answers_about_another_file_are_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert correct(folder, [("别处的", "positive")]) == 3
    assert "none of the 1 reviewed texts is in it" in caplog.text


def test_a_file_is_never_overwritten(folder: Path) -> None:
    (folder / "corrected.tsv").write_text("mine", encoding="utf-8")
    assert correct(folder, [("房间很好", "positive")]) == 2
    assert rows(folder) == ["mine"]
