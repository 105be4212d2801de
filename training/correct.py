"""`data correct`: labels that people have checked, put into the training file they came from.

A reviewed text is found by itself, white space aside: it does not matter which numbers and extra fields a tool keeps.
Every row with that text gets the label; all other rows and columns stay as they are.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengnuan.model.rows import Row
from lengnuan.training.config import DataConfig
from lengnuan.training.data import Accounting, LabelSet, check_rejected, clean_label, read_rows_of, source_of
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example
from lengnuan.training.tables import write_table

log = logging.getLogger(__name__)


@dataclass
class Corrected:
    """What became of every row of the file and of every reviewed text.

    Rows: changed + confirmed + dropped + untouched = accepted. Texts: found + elsewhere + disagreed = reviewed.
    """

    account: Accounting
    changed: Counter[tuple[str, str]] = field(default_factory=Counter)  # (before, after), names of labels
    confirmed: int = 0
    dropped: int = 0
    untouched: int = 0
    found: int = 0
    elsewhere: int = 0
    disagreed: int = 0

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "rows": self.account.accepted,
            "rejected_lines": self.account.rejected,
            "changed": self.changed.total(),
            "changes": {f"{before} -> {after}": rows for (before, after), rows in sorted(self.changed.items())},
            "confirmed": self.confirmed,
            "dropped": self.dropped,
            "untouched": self.untouched,
            "reviewed_texts": self.found + self.elsewhere + self.disagreed,
            "reviewed_texts_in_the_file": self.found,
            "reviewed_texts_not_in_the_file": self.elsewhere,
            "reviewed_texts_with_two_answers": self.disagreed,
        }

    def __str__(self) -> str:
        changes = "".join(f"\n  {before} -> {after}: {n:,}" for (before, after), n in sorted(self.changed.items()))
        return (
            f"{self.account.accepted:,} rows: {self.changed.total():,} changed, {self.confirmed:,} confirmed, "
            f"{self.dropped:,} dropped, {self.untouched:,} not reviewed; {self.account.rejected:,} lines rejected"
            f"{changes}\n{self.found + self.elsewhere + self.disagreed:,} reviewed texts: {self.found:,} in the file, "
            f"{self.elsewhere:,} not, {self.disagreed:,} with two answers, which change nothing"
        )


def correct_file(
    path: Path, reviewed: Iterable[tuple[str, str]], output: Path, data: DataConfig, labels: LabelSet, *, drop: str = ""
) -> Corrected:
    """Write the rows of `path` to `output` with the labels of `reviewed`.

    Args:
        path: the training file.
        reviewed: (text, name or spelling of a label), as people have answered.
        output: a new table; Parquet is written as another kind.
        data: the columns of both, and how many lines may be rejected.
        labels: the classes.
        drop: rows of texts with this answer are left out.

    Raises:
        UsageError: the file can't be read, or the output is there already.
        DataRefused: an answer is no label, too many lines are rejected, or no reviewed text is in the file.
    """
    if output.exists():
        raise UsageError(f"{output} is there already: choose another --output")
    account = Accounting(str(path))
    rows = list(read_rows_of(source_of(path, data), labels, data, "", account))
    check_rejected(account, data.max_rejected_share)
    result = Corrected(account)
    answers = _answers(reviewed, labels, clean_label(drop), result)
    spelling = _spellings(rows, labels, data.label_column)
    kept = []
    met = set()
    for example, row in rows:
        key = text_of(example.text)
        if key not in answers:
            result.untouched += 1
            kept.append(row.fields)
            continue
        met.add(key)
        answer = answers[key]
        if answer is None:
            result.dropped += 1
        elif answer == example.label:
            result.confirmed += 1
            kept.append(row.fields)
        else:
            result.changed[labels.names[example.label], labels.names[answer]] += 1
            kept.append({**row.fields, data.label_column: spelling[answer]})
    result.found, result.elsewhere = len(met), len(answers.keys() - met)
    if not met:
        raise DataRefused(f"{path}: none of the {len(answers):,} reviewed texts is in it; nothing was written")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(output, list(rows[0][1].fields), kept, data.text_column)
    return result


def text_of(text: str) -> str:
    """What makes a reviewed text and a row the same: all but the white space, which tools trim and change."""
    return " ".join(text.split())


def _answers(
    reviewed: Iterable[tuple[str, str]], labels: LabelSet, drop: str, result: Corrected
) -> dict[str, int | None]:
    """The class of every reviewed text, None for those to drop; without texts that have two answers."""
    found: dict[str, set[int | None]] = {}
    unknown: Counter[str] = Counter()
    for text, label in reviewed:
        index = labels.index(label)
        if index is None and not (drop and clean_label(label) == drop):
            unknown[label] += 1
        else:
            found.setdefault(text_of(text), set()).add(index)
    if unknown:
        some = ", ".join(f"{label!r} ({rows:,})" for label, rows in unknown.most_common(5))
        raise DataRefused(
            f"reviewed labels that are none of {list(labels.names)}: {some}; --config knows the names of [labels], "
            "--drop NAME leaves the rows with that answer out"
        )
    result.disagreed = sum(len(indices) > 1 for indices in found.values())
    return {text: next(iter(indices)) for text, indices in found.items() if len(indices) == 1}


def _spellings(rows: Sequence[tuple[Example, Row]], labels: LabelSet, label_column: str) -> list[Any]:
    """How the file writes each class most often; its name where it has no row."""
    counts: list[Counter[Any]] = [Counter() for _ in labels.names]
    for example, row in rows:
        counts[example.label][row.fields[label_column]] += 1
    return [found.most_common(1)[0][0] if found else name for name, found in zip(labels.names, counts, strict=True)]
