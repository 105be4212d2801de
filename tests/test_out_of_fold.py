import json
from pathlib import Path

import numpy as np
import pytest

from lengnuan.training.errors import UsageError
from lengnuan.training.out_of_fold import OutOfFold, Place, read_mean, read_out_of_fold, write_out_of_fold

LINE = {"source": "a", "line": 2, "text": "好", "label": "是", "fold": 1, "probabilities": {"否": 0.25, "是": 0.75}}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    beliefs = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    places = [Place("reviews", 2), Place("reviews", 9)]
    texts = ["两行\n的话\t", "“引号”\u2028"]
    written = OutOfFold(("差", "中", "好"), places, texts, np.array([2, 1]), np.array([1, 2]), beliefs)
    write_out_of_fold(written, tmp_path / "out-of-fold.jsonl")
    found = read_out_of_fold(tmp_path / "out-of-fold.jsonl")
    assert (found.names, found.places, found.texts) == (written.names, places, texts)
    assert found.labels.tolist() == [2, 1]
    assert found.folds.tolist() == [1, 2]
    assert np.abs(found.probabilities - beliefs).max() <= 1e-6


def test_another_program_s_file_needs_no_fold(tmp_path: Path) -> None:
    line = {key: value for key, value in LINE.items() if key != "fold"}
    assert read_out_of_fold(write(tmp_path / "f.jsonl", line)).folds.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probabilities": {"否": 0.5, "对": 0.5}}, r"line 2: .* the labels are \['否', '对'\]"),
        ({"probabilities": {"否": 0.5, "是": 0.6}}, "line 2: .* sum to 1"),
        ({"probabilities": {"否": -0.5, "是": 1.5}}, "line 2: .* sum to 1"),
        ({"probabilities": {"否": float("nan"), "是": 1.0}}, "line 2: no row of an out-of-fold file"),
        ({"probabilities": None}, "line 2: no row of an out-of-fold file"),
        ({"label": "别的"}, "line 2: no row of an out-of-fold file"),
        ({"line": "x"}, "line 2: no row of an out-of-fold file"),
        ({"line": 2}, "there twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = write(tmp_path / "f.jsonl", LINE, LINE | {"line": 3} | change)
    with pytest.raises(UsageError, match=message):
        read_out_of_fold(file)


@pytest.mark.parametrize("content", ["", "label\ttext\n1\t好\n", '{"text": "好", "label": "是"}\n', "\n\n"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "f.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="fit --folds"):
        read_out_of_fold(tmp_path / "f.jsonl")


# Several files


def test_the_mean_goes_by_row_and_label_whatever_their_order(tmp_path: Path) -> None:
    other = LINE | {"line": 3, "text": "坏", "label": "否", "fold": 2, "probabilities": {"否": 0.9, "是": 0.1}}
    one = write(tmp_path / "1.jsonl", LINE, other)
    two = write(
        tmp_path / "2.jsonl",
        other | {"probabilities": {"是": 0.3, "否": 0.7}},
        LINE | {"probabilities": {"是": 0.25, "否": 0.75}},
    )
    found = read_mean([one, two])
    assert found.names == ("否", "是")
    assert found.folds.tolist() == [1, 2]
    assert found.texts == ["好", "坏"]
    np.testing.assert_allclose(found.probabilities, [[0.5, 0.5], [0.8, 0.2]])


def test_of_one_file_the_mean_is_that_file(tmp_path: Path) -> None:
    found = read_mean([write(tmp_path / "1.jsonl", LINE)])
    assert found.probabilities.tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"line": 3}, "not of the same rows"),
        ({"text": "很好"}, "not of the same rows"),
        ({"label": "否"}, "not of the same rows"),
        ({"probabilities": {"不": 0.5, "是": 0.5}}, "the labels"),
    ],
)
def test_files_of_other_rows_or_labels_have_no_mean(tmp_path: Path, change: dict[str, object], message: str) -> None:
    one, two = write(tmp_path / "1.jsonl", LINE), write(tmp_path / "2.jsonl", LINE | change)
    with pytest.raises(UsageError, match=rf"2\.jsonl .*{message}"):
        read_mean([one, two])
