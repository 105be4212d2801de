"""The out-of-fold file: what a model that was trained without a row, and without its copies, believes about its label.

One JSON object a line and row: source, line (1-based in its file), text, label, fold, and a probability by label.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.model.rows import Row, Source
from lengnuan.training.data import read_lines
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text

SUM_TOLERANCE = 1e-3  # probabilities are written with six digits


@dataclass(frozen=True)
class Place:
    """Where a row stands. `line` is 1-based; in Parquet it is the row number."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(frozen=True)
class OutOfFold:
    """Rows and beliefs.

    Args:
        names: the labels, in the order of the columns.
        places: N places, each once.
        texts: N texts.
        labels: int64 [N], the labels they have.
        folds: int64 [N], 1-based: the fold whose model, which has not seen the row, was asked.
        probabilities: float64 [N, K], rows that sum to 1.
    """

    names: tuple[str, ...]
    places: Sequence[Place]
    texts: Sequence[str]
    labels: npt.NDArray[np.int64]
    folds: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]


def write_out_of_fold(found: OutOfFold, path: Path) -> None:
    """Write the file, whole or not at all."""
    lines = []
    for index, place in enumerate(found.places):
        beliefs = found.probabilities[index]
        row = {
            "source": place.source,
            "line": place.line,
            "text": found.texts[index],
            "label": found.names[found.labels[index]],
            "fold": int(found.folds[index]),
            "probabilities": {name: round(float(p), 6) for name, p in zip(found.names, beliefs, strict=True)},
        }
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def read_out_of_fold(path: Path) -> OutOfFold:
    """Read such a file, ours or another program's.

    Raises:
        UsageError: it can't be read, a line is not such a row, labels differ between lines, or a row is there twice.
    """
    rows = []
    for line in read_lines(Source(path, file_format="jsonl")):
        if not isinstance(line, Row):
            raise UsageError(f"{path}, line {line.line}: no row of an out-of-fold file: `fit --folds` writes one")
        rows.append((line.line, line.fields))
    if not rows:
        raise UsageError(f"{path}: no row: `fit --folds` writes such a file")
    try:
        names = tuple(rows[0][1]["probabilities"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}, line 1: no `probabilities` by label: `fit --folds` writes such a file") from error
    parsed = [_parsed(path, number, fields, names) for number, fields in rows]
    places = [place for place, *_ in parsed]
    if len(set(places)) < len(places):
        raise UsageError(f"{path}: a row of the same source and line is there twice")
    return OutOfFold(
        names,
        places,
        [text for _, text, *_ in parsed],
        np.array([label for _, _, label, *_ in parsed], dtype=np.int64),
        np.array([fold for *_, fold, _ in parsed], dtype=np.int64),
        np.array([beliefs for *_, beliefs in parsed], dtype=np.float64),
    )


def read_mean(paths: Sequence[Path]) -> OutOfFold:
    """The mean of what several kinds of models believe about the same rows; the folds are those of the first file.

    Raises:
        UsageError: a file can't be read, or its labels or rows are not those of the first.
    """
    first, *others = map(read_out_of_fold, paths)
    total = first.probabilities.copy()
    for path, other in zip(paths[1:], others, strict=True):
        if set(other.names) != set(first.names):
            raise UsageError(f"{path} has the labels {list(other.names)}, {paths[0]} has {list(first.names)}")
        at = {row: number for number, row in enumerate(_rows(other))}
        if at.keys() != set(_rows(first)):
            raise UsageError(f"{path} is not of the same rows as {paths[0]}: give files of the same train files")
        columns = [other.names.index(name) for name in first.names]
        total += other.probabilities[[at[row] for row in _rows(first)]][:, columns]
    return replace(first, probabilities=total / len(paths))


def _rows(found: OutOfFold) -> list[tuple[Place, str, str]]:
    """Place, text and label of each."""
    labels = [found.names[label] for label in found.labels]
    return list(zip(found.places, found.texts, labels, strict=True))


def _parsed(
    path: Path, number: int, fields: dict[str, Any], names: tuple[str, ...]
) -> tuple[Place, str, int, int, list[float]]:
    try:
        found = fields["probabilities"]
        if set(found) != set(names):
            raise ValueError(f"the labels are {list(found)}, in the first line {list(names)}")
        beliefs = [float(found[name]) for name in names]
        if not (min(beliefs) >= 0.0 and abs(sum(beliefs) - 1.0) <= SUM_TOLERANCE):
            raise ValueError("the probabilities are no shares that sum to 1")
        place = Place(str(fields["source"]), int(fields["line"]))
        return place, str(fields["text"]), names.index(fields["label"]), int(fields.get("fold", 0)), beliefs
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}, line {number}: no row of an out-of-fold file: {error}") from error
