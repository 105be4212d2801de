"""Labelled rows: read, clean the labels, account for every line, split by text."""

import hashlib
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengnuan.model.rows import Blank, Rejected, Row, Source, UnreadableFile, has_header, read_rows
from lengnuan.model.text import has_lone_surrogate, normalise
from lengnuan.training.config import DataConfig
from lengnuan.training.errors import DataRefused, UsageError

REASONS_KEPT = 20  # rejected lines that a report quotes by number


@dataclass(frozen=True)
class Example:
    """One labelled row. `label` is the index of the class, `domain` groups rows in reports."""

    text: str
    label: int
    domain: str = ""


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
        self._index: dict[str, int] = {}
        for index, name in enumerate(self.names):
            for spelling in (name, *spellings.get(name, ())):
                if self._index.setdefault(clean_label(spelling), index) != index:
                    raise UsageError(f"labels: {spelling!r} is given to two classes")
        if len(self.names) < 2:
            raise DataRefused(f"labels: at least two classes are needed, found {list(self.names)}")

    def index(self, value: Any) -> int | None:
        """Class of a label as it stands in a file; None when no class has that spelling."""
        return self._index.get(clean_label(value))

    @classmethod
    def infer(cls, values: Iterable[Any]) -> "LabelSet":
        """The distinct labels that occur: by number if all are integers, else by code point.

        Raises:
            DataRefused: fewer than two, or two that differ by case alone (they would silently be two classes).
        """
        found = {clean_label(value) for value in values} - {""}
        folded: dict[str, str] = {}
        for label in sorted(found):
            twin = folded.setdefault(label.casefold(), label)
            if twin != label:
                raise DataRefused(f"labels {twin!r} and {label!r} differ by case alone: list both under [labels]")
        numeric = all(re.fullmatch(r"-?\d+", label) for label in found)
        return cls(sorted(found, key=int) if numeric else sorted(found), {})


def read_examples(source: Source, labels: LabelSet, data: DataConfig, domain: str) -> tuple[list[Example], Accounting]:
    """Rows of one file that can be used, in order, and what became of the rest.

    Args:
        source: the file.
        labels: the classes.
        data: names of the label and domain columns.
        domain: the domain of rows that name none.
    """
    account = Accounting(str(source.path))
    examples: list[Example] = []
    for line in _lines(source):
        if isinstance(line, Blank):
            account.blank += 1
            continue
        found = line if isinstance(line, Rejected) else _example(line, labels, source.text_column, data, domain)
        if isinstance(found, Rejected):
            account.reject(found)
            continue
        examples.append(found)
        account.accepted += 1
        account.continued += line.extra_lines
    account.header = int(has_header(source))
    return examples, account


def read_labels(source: Source, label_column: str) -> list[Any]:
    """Every label of a file as it stands there, for `LabelSet.infer`."""
    return [line.fields.get(label_column) for line in _lines(source) if isinstance(line, Row)]


def _lines(source: Source) -> Iterable[Row | Blank | Rejected]:
    try:
        yield from read_rows(source)
    except UnreadableFile as error:
        raise UsageError(str(error)) from error
    except (OSError, EOFError, zlib.error) as error:  # the last two: a gzip stream that is cut off or damaged
        raise UsageError(f"{source.path}: {error}") from error


def _example(row: Row, labels: LabelSet, text_column: str, data: DataConfig, domain: str) -> Example | Rejected:
    def rejected(reason: str) -> Rejected:
        return Rejected(row.line, reason, row.extra_lines)

    text, value = row.fields.get(text_column), row.fields.get(data.label_column)
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


def text_key(text: str) -> str:
    """What makes two texts the same: the normalised text, letters and digits only (all of it if there are none)."""
    normal = normalise(text)
    return "".join(char for char in normal if char.isalnum()) or normal


def share_of(key: str, seed: int) -> float:
    """A number in [0, 1) that depends on the key and seed alone: where a text falls when a file is split."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_by_text(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """(rest, part): `part` gets about `share` of the rows. Equal texts always fall on the same side."""
    rest: list[Example] = []
    part: list[Example] = []
    for example in examples:
        (part if share_of(text_key(example.text), seed) < share else rest).append(example)
    return rest, part


def drop_repeats(examples: Sequence[Example]) -> tuple[list[Example], int, int]:
    """(kept, repeats, conflicts): one row a text; a text with two labels is dropped altogether."""
    labels_of: dict[str, set[int]] = {}
    for example in examples:
        labels_of.setdefault(text_key(example.text), set()).add(example.label)
    kept: list[Example] = []
    seen: set[str] = set()
    conflicts = 0
    for example in examples:
        key = text_key(example.text)
        if len(labels_of[key]) > 1:
            conflicts += 1
        elif key not in seen:
            seen.add(key)
            kept.append(example)
    return kept, len(examples) - len(kept) - conflicts, conflicts


def source_of(path: Path, data: DataConfig) -> Source:
    """How to read a file of this config."""
    return Source(data.root / path, data.text_column, data.columns)
