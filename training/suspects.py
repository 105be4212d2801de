"""`data suspect`: which labels are most likely wrong, as a queue for people to check.

What a model that has not seen a row believes about it, from the out-of-fold file, is compared with its label by
confident learning (Northcutt et al. 2021, arXiv:1911.00068), in the authors' own library, cleanlab. One item a text:
texts that stand in several rows are asked about once. An item carries the label it has, not the model's, so that
whoever only leafs through changes nothing; what the model would say, and where the rows stand, goes beside it.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.training.annotations import write_item
from lengnuan.training.convert import Fields
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text
from lengnuan.training.out_of_fold import OutOfFold
from lengnuan.training.tables import write_table


@dataclass(frozen=True)
class Suspect:
    """One text of the queue.

    Args:
        text: as it stands.
        label: that of its most doubtful row.
        suggested: what the model believes.
        quality: from 0, surely wrong, to 1: cleanlab's normalised margin.
        rows: places of all rows with this text.
        issue: cleanlab counts it among the rows whose label is wrong.
    """

    text: str
    label: str
    suggested: str
    quality: float
    rows: Sequence[str]
    issue: bool


def rank(found: OutOfFold) -> list[Suspect]:
    """Every text, the most doubtful label first.

    Raises:
        UsageError: a class has no row, so nothing is known about it.
    """
    missing = [name for index, name in enumerate(found.names) if index not in found.labels]
    if missing:
        raise UsageError(f"no row has the label {missing[0]!r}: leave it out of the probabilities")
    quality, issues = label_quality(found.labels, found.probabilities)
    rows_of: dict[str, list[int]] = {}
    for row in np.argsort(quality, kind="stable"):
        rows_of.setdefault(found.texts[row], []).append(int(row))
    return [
        Suspect(
            text,
            found.names[found.labels[rows[0]]],
            found.names[int(found.probabilities[rows[0]].argmax())],
            float(quality[rows[0]]),
            [str(found.places[row]) for row in sorted(rows)],
            bool(issues[rows].any()),
        )
        for text, rows in rows_of.items()
    ]


def label_quality(
    labels: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Judge every label by cleanlab.

    Args:
        labels: int64 [N], each class at least once.
        probabilities: float64 [N, K], of models that have not seen the rows.

    Returns:
        quality: float64 [N], 0 for surely wrong; issues: bool [N], those that it estimates to be wrong.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what importing it, and pandas under it, has to say about themselves
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    quality = get_label_quality_scores(labels, probabilities, method="normalized_margin")
    return quality, find_label_issues(labels, probabilities, min_examples_per_class=0, n_jobs=1)


def write_queue(suspects: Sequence[Suspect], path: Path, file_format: str, fields: Fields) -> None:
    """Write the queue in a form that the tool imports; the order is that of the list.

    Raises:
        UsageError: there is something already, or a text that a table can't hold.
    """
    if path.exists():
        raise UsageError(f"{path} is there already: choose another --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    if file_format == "table":
        rows = [{fields.label: one.label, fields.text: one.text, **_flat(_beside(one))} for one in suspects]
        columns = [fields.label, fields.text, "suggested", "quality", "rows"]
        write_table(path, columns, rows, fields.text, spreadsheet=True)
        return
    items = [_item(file_format, number, one, fields) for number, one in enumerate(suspects, start=1)]
    if file_format == "doccano" or path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
    else:
        write_text(path, json.dumps(items, ensure_ascii=False, indent=1) + "\n")


def _item(tool: str, number: int, one: Suspect, fields: Fields) -> dict[str, Any]:
    item = write_item(tool, number, one.text, one.label, (fields.text, fields.label))
    if tool == "label-studio":  # a prediction is shown, and does not count as somebody's answer
        (annotation,) = item["annotations"]
        item |= {"annotations": [], "predictions": [annotation]}
        item["data"] |= _beside(one)
    elif tool == "argilla":
        item["metadata"] |= _beside(one)
    else:
        item |= _beside(one)
    return item


def _beside(one: Suspect) -> dict[str, Any]:
    return {"suggested": one.suggested, "quality": round(one.quality, 4), "rows": list(one.rows)}


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"rows": " ".join(content["rows"])}
