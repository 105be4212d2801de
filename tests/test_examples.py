"""Texts in one buffer, rows by column: what comes out is what went in, and millions fit into memory."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from lengnuan.training.examples import Example, Examples
from lengnuan.training.splits import drop_repeats, text_code, without
from lengnuan.training.texts import CHUNK, Texts

ODD = ["好", "", "a\nb\tc", "😭" * 3, "\ud800", "很好" * 500, "ﬁ ℃ é"]
ROWS = [Example(text, number % 3, "ab"[number % 2]) for number, text in enumerate(ODD)]


def test_texts_come_back_as_they_were() -> None:
    texts = Texts(ODD)
    assert list(texts) == ODD
    assert [texts[place] for place in range(len(ODD))] == ODD
    assert (texts[-1], len(texts), len(Texts())) == (ODD[-1], len(ODD), 0)
    with pytest.raises(IndexError):
        texts[len(ODD)]


def test_more_than_a_chunk_is_gone_through_in_order() -> None:
    assert [int(text) for text in Texts(map(str, range(2 * CHUNK + 1)))] == list(range(2 * CHUNK + 1))


def test_a_part_of_a_part_is_the_right_one() -> None:
    part = Texts(ODD)[1:6].take(np.array([4, 0, 2]))
    assert list(part) == [ODD[5], ODD[1], ODD[3]]
    assert list(part.take(np.array([False, True, True]))) == [ODD[1], ODD[3]]
    assert list(part + Texts(["x"])) == [ODD[5], ODD[1], ODD[3], "x"]


def test_rows_come_back_as_they_were() -> None:
    examples = Examples(ROWS)
    assert list(examples) == ROWS
    assert examples == ROWS
    assert examples[2] == ROWS[2]
    assert examples != ROWS[1:]
    assert examples[::-2] == ROWS[::-2]
    assert pickle.loads(pickle.dumps(examples[1:4])) == ROWS[1:4]  # noqa: S301


def test_the_columns_of_a_part_are_its_own() -> None:
    part = Examples(ROWS).take(np.array([3, 1]))
    assert list(part.texts) == [ODD[3], ODD[1]]
    assert part.labels.tolist() == [0, 1]
    assert part.codes.tolist() == [text_code(ODD[3]), text_code(ODD[1])]


def test_rows_that_are_by_column_already_are_not_copied() -> None:
    examples = Examples(ROWS)
    assert Examples.of(examples) is examples
    assert Examples.of(ROWS) == ROWS


def plainly(rows: list[Example]) -> tuple[list[Example], int, int]:
    """`drop_repeats` row by row."""
    labels: dict[int, set[int]] = {}
    for row in rows:
        labels.setdefault(text_code(row.text), set()).add(row.label)
    kept, seen, conflicts = [], set(), 0
    for row in rows:
        code = text_code(row.text)
        conflicts += len(labels[code]) > 1
        if len(labels[code]) == 1 and code not in seen:
            seen.add(code)
            kept.append(row)
    return kept, len(rows) - len(kept) - conflicts, conflicts


def test_repeats_and_conflicts_are_those_of_a_comparison_row_by_row() -> None:
    draw = random.Random(0)
    texts = [draw.choice("甲乙丙丁戊己庚辛") * draw.randint(1, 9) for _ in range(90)]
    rows = [Example(text, len(text) % 2 ^ (draw.random() < 0.1)) for text in texts]
    assert drop_repeats(Examples(rows)) == plainly(rows)
    assert min(plainly(rows)[1:]) > 3, "there is something to drop"


def test_rows_are_left_out_by_the_code_of_their_text() -> None:
    codes = np.array([text_code("好！"), text_code("别的")], dtype=np.uint64)
    assert without(Examples(ROWS), codes) == ROWS[1:]


PROGRAM = """
import resource
from lengnuan.training.examples import Example, Examples
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
rows = Examples(Example(f"第{number:06}条评论写得很好", number % 2) for number in range(300_000))
print((peak() - before) / len(rows))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")
def test_a_row_takes_little_more_than_its_text() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 120, "36 bytes of text; an object for each took over 250"
