"""Labelled rows: accounting, encodings, labels, splitting."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lengnuan.model.rows import Source
from lengnuan.training.config import DataConfig
from lengnuan.training.data import (
    REASONS_KEPT,
    Accounting,
    LabelSet,
    clean_label,
    read_examples,
    read_labels,
    source_of,
)
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.splits import drop_repeats, share_of, split_by_text, text_key

Read = Callable[..., tuple[Examples, Accounting]]

POLARITY = LabelSet(("negative", "positive"), {"negative": ["0"], "positive": ["1"]})
# Full-width digit, capital letter, traditional character, punctuation, spaces: one text in the eyes of the model.
SAME_TEXT = ("房间很干净ABC1", "房間很乾淨ＡＢＣ１", "房间，很干净! abc1", "  房间 很干净 Abc1。")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write `content` to `name` and read it back as examples."""

    def run(
        content: str | bytes, name: str = "rows.tsv", labels: LabelSet = POLARITY, **settings: object
    ) -> tuple[Examples, Accounting]:
        data = DataConfig.model_validate({"root": tmp_path} | settings)
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return read_examples(source_of(Path(name), data), labels, data, "here")

    return run


# Accounting


def test_every_line_is_accepted_blank_or_rejected(read: Read) -> None:
    examples, account = read('label\ttext\n1\t"好\n\n0\t差\t极了\n7\t谁\n1 \t\n缺了制表符\n0\t说"不"\n')
    assert [example.text for example in examples] == ['"好', "差\t极了", '说"不"']
    assert (account.header, account.accepted, account.blank, account.rejected, account.continued) == (1, 3, 1, 3, 0)
    assert account.lines == 8
    assert [number for number, _ in account.first_rejected] == [5, 6, 7]
    assert account.reasons["unknown label '7'"] == 1


def test_a_csv_record_over_several_lines_is_counted_by_line(read: Read) -> None:
    examples, account = read('label,text\n1,"两\n行"\n0,一行\n9,"也\n两行"\n', "rows.csv")
    assert [example.text for example in examples] == ["两\n行", "一行"]
    assert (account.accepted, account.rejected, account.continued, account.lines) == (2, 1, 2, 6)


def test_many_rejected_lines_are_counted_and_the_first_are_quoted(read: Read) -> None:
    _, account = read("label\ttext\n" + "9\t谁\n" * 50)
    assert account.rejected == 50
    assert len(account.first_rejected) == REASONS_KEPT
    assert "line 2: unknown label '9'" in str(account)
    assert "and 30 more" in str(account)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.docx", b"x"),
        ("rows.tsv", b""),
        ("rows.tsv", b"label\treview\n1\tx\n"),
        ("rows.tsv.gz", b"not gzip"),
        ("rows.tsv.gz", gzip.compress(b"label\ttext\n" + b"1\tx\n" * 999)[:-12]),
    ],
    ids=["unknown format", "empty", "no text column", "no gzip", "gzip cut off"],
)
def test_a_file_that_cannot_be_read_is_named(read: Read, name: str, content: bytes) -> None:
    with pytest.raises(UsageError, match=name):
        read(content, name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    data = DataConfig(root=tmp_path)
    with pytest.raises(UsageError, match=r"absent\.tsv"):
        read_examples(source_of(Path("absent.tsv"), data), POLARITY, data, "here")


# Encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_encoding_and_line_break_change_nothing(read: Read, encoding: str, line_break: str) -> None:
    rows = [("1" if number % 2 else "0", f"第{number}条，房间很好€😀") for number in range(100)]
    content = line_break.join(["label\ttext", *("\t".join(row) for row in rows)]) + line_break
    examples, account = read(content.encode(encoding))
    assert examples == [Example(text, int(label), "here") for label, text in rows]
    assert account.rejected == 0


def test_chinese_column_names(read: Read) -> None:
    examples, _ = read("标签,内容\n1,好\n".encode("gb18030"), "rows.csv", text_column="内容", label_column="标签")
    assert examples == [Example("好", 1, "here")]


def test_bytes_in_no_encoding_are_rejected_by_line(read: Read) -> None:
    examples, account = read("label\ttext\n1\t很好\n0\t".encode() + b"\xff\xfe\xff\n" + "1\t不错\n".encode())
    assert [example.text for example in examples] == ["很好", "不错"]
    assert account.first_rejected == [(3, "not valid utf-8: byte 0xff at 2")]


# Texts


@pytest.mark.parametrize("text", ["", "   ", "\u3000", "\u200b\ufeff", "null"])
def test_a_text_with_nothing_to_see_is_rejected(read: Read, text: str) -> None:
    line = json.dumps({"label": 1, "text": None if text == "null" else text})
    examples, account = read(line + "\n", "rows.jsonl")
    assert examples == []
    assert account.reasons == {"empty text": 1}


@pytest.mark.parametrize("text", ["无", "None", "NA", "null", "nan", "0"])
def test_words_that_look_like_nothing_are_texts(read: Read, text: str) -> None:
    for name, content in (("rows.tsv", f"label\ttext\n1\t{text}\n"), ("rows.csv", f"label,text\n1,{text}\n")):
        assert read(content, name)[0] == [Example(text, 1, "here")]


def test_half_a_surrogate_pair_is_rejected(read: Read) -> None:
    examples, account = read('{"label": 1, "text": "好\\ud83d"}\n', "rows.jsonl")
    assert examples == []
    assert account.reasons == {"invalid Unicode in the text": 1}


def test_a_text_that_is_a_number_is_rejected(read: Read) -> None:
    _, account = read('{"label": 1, "text": 5}\n{"label": 1}\n', "rows.jsonl")
    assert account.reasons == {"the text is a int, not a string": 1, "empty text": 1}


def test_the_domain_column_wins_over_the_source(read: Read) -> None:
    examples, _ = read("label\ttext\tcat\n1\t好\t酒店\n1\t好\t\n", domain_column="cat")
    assert [example.domain for example in examples] == ["酒店", "here"]


def test_eight_short_rows_are_enough_to_read(read: Read) -> None:
    examples, account = read("label\ttext\n" + "1\t好\n0\t差\n" * 4)
    assert (len(examples), account.rejected) == (8, 0)


# Labels


@pytest.mark.parametrize(
    ("value", "clean"),
    [("正面 ", "正面"), ("１", "1"), (" １ ", "1"), (1, "1"), (1.0, "1"), (None, ""), (True, ""), ("\u3000", "")],
)
def test_labels_are_compared_clean(value: object, clean: str) -> None:
    assert clean_label(value) == clean


def test_labels_that_start_at_one_are_classes_in_number_order() -> None:
    assert LabelSet.infer(["2", "1", "10", 2]).names == ("1", "2", "10")


def test_stray_spaces_and_full_width_digits_make_no_class() -> None:
    assert LabelSet.infer(["正面 ", "正面", "负面"]).names == ("正面", "负面")
    assert LabelSet.infer(["１", "1", "0"]).names == ("0", "1")


def test_labels_that_only_look_like_numbers_do_not_crash() -> None:
    assert LabelSet.infer(["--1", "፩"]).names == ("--1", "፩")


def test_labels_that_differ_by_case_alone_are_refused() -> None:
    with pytest.raises(DataRefused, match="'Positive' and 'positive' differ by case alone"):
        LabelSet.infer(["positive", "Positive", "negative"])


def test_numbers_among_names_are_refused() -> None:
    with pytest.raises(DataRefused, match="'0' and '正面'"):
        LabelSet.infer(["正面", "0", "负面", "1"])


@pytest.mark.parametrize("values", [[], ["1"], ["1", "1 ", None]])
def test_one_class_is_refused(values: list[object]) -> None:
    with pytest.raises(DataRefused, match="at least two different names"):
        LabelSet.infer(values)


def test_an_explicit_mapping_joins_spellings_in_its_own_order(read: Read) -> None:
    labels = LabelSet(("正面", "负面"), {"正面": ["1", "Pos", "pos"], "负面": ["0"]})
    examples, account = read("label\ttext\nPos\t一\n1 \t二\n正面\t三\n０\t四\n中性\t五\n\t六\n", labels=labels)
    assert [example.label for example in examples] == [0, 0, 0, 1]
    assert account.reasons == {"unknown label '中性'": 1, "empty label": 1}


def test_a_spelling_of_two_classes_is_refused() -> None:
    with pytest.raises(UsageError, match="'1' is given to two classes"):
        LabelSet(("a", "b"), {"a": ["1"], "b": ["1"]})


def test_labels_are_read_for_inference(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"label": 2, "text": "a"}\n\n{"text": "b"}\n', encoding="utf-8")
    assert list(read_labels(Source(tmp_path / "rows.jsonl"), "label")) == [2, None]


def test_label_order_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from lengnuan.training.data import LabelSet; print(*LabelSet.infer(['疑', '喜', '怒', 'b', '哀', 'a']).names)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for hash_seed in ("0", "1")
    ]
    assert [run.communicate()[0].split() for run in runs] == [["a", "b", "哀", "喜", "怒", "疑"]] * 2


# Splitting


def test_equal_texts_have_one_key() -> None:
    assert len({text_key(text) for text in SAME_TEXT}) == 1
    assert text_key("！！") != text_key("？？"), "a text without letters is itself"


def test_equal_texts_fall_on_one_side() -> None:
    for seed in range(20):
        rest, part = split_by_text(Examples(Example(text, 1) for text in SAME_TEXT), 0.5, seed)
        assert not rest or not part


def test_the_share_is_about_right_and_nothing_is_lost() -> None:
    examples = Examples(Example(f"第{number}条", number % 2) for number in range(5000))
    rest, part = split_by_text(examples, 0.1, seed=1)
    assert set(rest) | set(part) == set(examples)
    assert len(rest) + len(part) == len(examples)
    assert 0.08 < len(part) / len(examples) < 0.12


def test_the_split_depends_on_text_and_seed_alone() -> None:
    examples = Examples(Example(f"第{number}条", number % 2) for number in range(300))
    part = split_by_text(examples, 0.2, seed=1)[1]
    backwards = split_by_text(Examples([*examples[::-1], Example("新的", 0)]), 0.2, seed=1)[1]
    assert {example.text for example in part} == {example.text for example in backwards} - {"新的"}
    assert part != split_by_text(examples, 0.2, seed=2)[1]


def test_where_a_text_falls_never_changes_between_releases() -> None:
    assert share_of("很好", 1) == pytest.approx(0.9115703453371532, abs=1e-15)


def test_repeats_and_conflicts_are_dropped_and_counted() -> None:
    rows = Examples(map(Example, ("很好", "很好！", "一般", "一般", "差"), (1, 1, 0, 1, 0)))
    assert drop_repeats(rows) == ([rows[0], rows[4]], 1, 2)
