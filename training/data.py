"""Labelled rows: read, clean the labels, account for every line."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengnuan.model.bundle import label_problem
from lengnuan.model.rows import Blank, Rejected, Row, Source, UnreadableFile, has_header, read_rows
from lengnuan.model.text import has_lone_surrogate, normalise
from lengnuan.training.config import DataConfig
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example, Examples

log = logging.getLogger(__name__)

REASONS_KEPT = 20  # rejected lines that a report quotes by number


@dataclass
class Accounting:
    """What became of the lines of one file: header + accepted + blank + rejected + continued = lines."""

    path: str
    header: int = 0
    accepted: int = 0
    blank: int = 0
    rejected: int = 0
    continued: int = 0  # later lines of a CSV record that runs over several
    reasons: Counter[str] = field(default_factory=Counter)
    first_rejected: list[tuple[int, str]] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return self.header + self.accepted + self.blank + self.rejected + self.continued

    def reject(self, line: Rejected) -> None:
        """Count a line that is not used."""
        self.rejected += 1
        self.continued += line.extra_lines
        self.reasons[line.reason] += 1
        if len(self.first_rejected) < REASONS_KEPT:
            self.first_rejected.append((line.line, line.reason))

    def __str__(self) -> str:
        counts = f"{self.accepted:,} accepted, {self.blank:,} blank, {self.rejected:,} rejected of {self.lines:,} lines"
        where = "".join(f"\n  line {number}: {reason}" for number, reason in self.first_rejected)
        more = self.rejected - len(self.first_rejected)
        return f"{self.path}: {counts}{where}" + (f"\n  and {more:,} more" if more else "")


def clean_label(value: Any) -> str:
    """The form in which labels are compared: a string, NFKC (full-width digits), ends stripped; empty = no label."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFKC", str(value)).strip()


class LabelSet:
    """The classes in the order of the network's outputs, and every spelling that means each."""

    def __init__(self, names: Sequence[str], spellings: Mapping[str, Iterable[str]]) -> None:
        self.names = tuple(names)
        problem = label_problem(self.names)
        if problem:
            raise DataRefused(f"{problem}; list them under [labels]")
        self._index: dict[str, int] = {}
        for index, name in enumerate(self.names):
            for spelling in (name, *spellings.get(name, ())):
                if self._index.setdefault(clean_label(spelling), index) != index:
                    raise UsageError(f"labels: {spelling!r} is given to two classes")

    def index(self, value: Any) -> int | None:
        """Class of a label as it stands in a file; None when no class has that spelling."""
        return self._index.get(clean_label(value))

    @classmethod
    def infer(cls, values: Iterable[Any]) -> "LabelSet":
        """The distinct labels that occur: by number if all are integers, else by code point.

        Raises:
            DataRefused: fewer than two; or two that differ by case alone, or numbers among names, which would
                silently be classes of their own.
        """
        found = {clean_label(value) for value in values} - {""}
        folded: dict[str, str] = {}
        for label in sorted(found):
            twin = folded.setdefault(label.casefold(), label)
            if twin != label:
                raise DataRefused(f"labels {twin!r} and {label!r} differ by case alone: list both under [labels]")
        numbers = {label for label in found if re.fullmatch(r"-?\d+", label)}
        if numbers and numbers != found:
            some = f"{min(numbers)!r} and {min(found - numbers)!r}"
            raise DataRefused(f"labels are numbers and names, such as {some}: list under [labels] which are the same")
        return cls(sorted(found, key=int) if numbers else sorted(found), {})


def read_examples(source: Source, labels: LabelSet, data: DataConfig, domain: str) -> tuple[Examples, Accounting]:
    """Rows of one file that can be used, in order, and what became of the rest.

    Args:
        source: the file.
        labels: the classes.
        data: names of the label and domain columns.
        domain: the domain of rows that name none.

    Raises:
        UsageError: the file can't be read.
    """
    account = Accounting(str(source.path))
    return Examples(example for example, _ in read_rows_of(source, labels, data, domain, account)), account


def read_rows_of(
    source: Source, labels: LabelSet, data: DataConfig, domain: str, account: Accounting
) -> Iterator[tuple[Example, Row]]:
    """Rows of one file that can be used, each with the record it is made from; `account` is filled on the way.

    Raises:
        UsageError: the file can't be read.
    """
    for line in read_lines(source):
        if isinstance(line, Blank):
            account.blank += 1
            continue
        if isinstance(line, Rejected):
            account.reject(line)
            continue
        found = _example(line, labels, data, domain)
        if isinstance(found, Rejected):
            account.reject(found)
            continue
        account.accepted += 1
        account.continued += line.extra_lines
        yield found, line
    account.header = int(has_header(source))


def check_rejected(account: Accounting, max_share: float) -> None:
    """Say what became of a file's lines.

    Raises:
        DataRefused: more than `max_share` of them were rejected.
    """
    log.info("%s", account)
    share = account.rejected / max(1, account.lines - account.header)
    if share > max_share:
        raise DataRefused(
            f"{account}\n{share:.1%} of the lines were rejected, the limit (max_rejected_share) is {max_share:.1%}: "
            "mend the file, name its columns and labels, or raise the limit"
        )


def read_labels(source: Source, label_column: str) -> Iterator[Any]:
    """Every label of a file as it stands there, for `LabelSet.infer`.

    Raises:
        UsageError: no row has such a column.
    """
    columns: list[str] = []
    found = False
    for line in read_lines(source):
        if isinstance(line, Row):
            columns = columns or list(line.fields)
            found = found or label_column in line.fields
            yield line.fields.get(label_column)
    if columns and not found:
        raise UsageError(f"{source.path}: no column {label_column!r}; it has {columns}: set data.label_column")


def read_texts(source: Source) -> Iterator[str]:
    """Every text of a file, labelled or not; what is no valid text is left out.

    Raises:
        UsageError: the file can't be read.
    """
    for line in read_lines(source):
        text = line.fields.get(source.text_column) if isinstance(line, Row) else None
        if isinstance(text, str) and not has_lone_surrogate(text):
            yield text


def read_lines(source: Source) -> Iterable[Row | Blank | Rejected]:
    """Every line of a file.

    Raises:
        UsageError: it can't be read.
    """
    try:
        yield from read_rows(source)
    except UnreadableFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{source.path}: {error}") from error


def _example(row: Row, labels: LabelSet, data: DataConfig, domain: str) -> Example | Rejected:
    def rejected(reason: str) -> Rejected:
        return Rejected(row.line, reason, row.extra_lines)

    text, value = row.fields.get(data.text_column), row.fields.get(data.label_column)
    if text is not None and not isinstance(text, str):
        return rejected(f"the text is a {type(text).__name__}, not a string")
    if not text or has_lone_surrogate(text) or not normalise(text):
        return rejected("invalid Unicode in the text" if text and has_lone_surrogate(text) else "empty text")
    if data.label_column not in row.fields:
        return rejected(f"no column {data.label_column!r}")
    label = labels.index(value)
    if label is None:
        return rejected(f"unknown label {clean_label(value)[:20]!r}" if clean_label(value) else "empty label")
    return Example(text, label, str(row.fields.get(data.domain_column) or domain))


def source_of(path: Path, data: DataConfig) -> Source:
    """How to read a file of this config."""
    return Source(Path(data.root, path), data.text_column, data.columns)
