"""`data convert`: labelled rows from and to annotation tools, folders of texts, and tables.

Every item is accounted for: accepted, without a label, or rejected with its number and the reason. Labels are names,
never ids. Halves of surrogate pairs, which no file in UTF-8 can hold, become U+FFFD and are counted.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengnuan.model.decoding import open_binary, sniff_encoding
from lengnuan.model.rows import Blank, Rejected, Row, Source
from lengnuan.training.annotations import SUGGESTED, Annotated, read_item, write_item
from lengnuan.training.data import Accounting, clean_label, read_lines
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.files import write_text
from lengnuan.training.tables import write_table

log = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Fields:
    """Names of the text and of the label: columns of a table, or a tool's field and question."""

    text: str = "text"
    label: str = "label"


@dataclass
class Converted:
    """The rows, (text, name of the label) in order, and what became of every item."""

    account: Accounting
    rows: list[tuple[str, str]] = field(default_factory=list)
    suggested: int = 0
    surrogates: int = 0
    unconfirmed: int = 0  # suggestions that were left out

    def facts(self) -> str:
        """One line for a person."""
        account = self.account
        counts = f"{account.accepted:,} rows, {account.blank:,} without a label, {account.rejected:,} rejected"
        more = f", {self.suggested:,} labels that nobody confirmed" if self.suggested else ""
        more += f", {self.unconfirmed:,} that nobody has answered left out" if self.unconfirmed else ""
        return counts + more + (f", {self.surrogates:,} lone surrogates replaced" if self.surrogates else "")


def read_annotated(
    path: Path, file_format: str, fields: Fields, names: Mapping[str, str], *, confirmed: bool = False
) -> Converted:
    """Every row of a file or folder that has one text and one label.

    Args:
        path: what the tool exported; for `folders`, a folder with one folder of text files a label.
        file_format: one of `FORMATS`.
        fields: names of text and label.
        names: names of labels by id, for exports that carry ids alone.
        confirmed: leave out items where a program has suggested a label and nobody has answered.

    Raises:
        UsageError: it can't be read.
        DataRefused: no row has a text and a label.
    """
    found = Converted(Accounting(str(path)))
    for number, item in enumerate(_items(path, file_format, fields), start=1):
        if isinstance(item, Rejected):
            found.account.reject(item)
        elif isinstance(item.text, str) and not item.labels:
            found.account.blank += 1
        elif confirmed and item.source == SUGGESTED:
            found.unconfirmed += 1
        else:
            _accept(found, number, item, names)
    log.info("%s: %s", path, found.facts())
    for line, reason in found.account.first_rejected:
        log.warning("  %d: %s", line, reason)
    if not found.rows:
        raise DataRefused(f"{path}: no row with a text and a label in {file_format} form: {found.facts()}")
    return found


def write_annotated(rows: Sequence[tuple[str, str]], path: Path, file_format: str, fields: Fields) -> None:
    """Write rows in a form that the tool imports; `read_annotated` reads the same rows back.

    Raises:
        UsageError: there is something already, or a row can't be written in that form.
    """
    if path.exists():
        raise UsageError(f"{path} is there already: choose another --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    if file_format == "folders":
        _write_folders(rows, path)
    elif file_format == "table":
        content = ({fields.label: label, fields.text: text} for text, label in rows)
        write_table(path, (fields.label, fields.text), content, fields.text)
    else:
        names = fields.text, fields.label
        items = [write_item(file_format, number, *row, names) for number, row in enumerate(rows, start=1)]
        if file_format == "doccano" or path.suffix == ".jsonl":
            write_text(path, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
        else:
            write_text(path, json.dumps(items, ensure_ascii=False, indent=1) + "\n")


def read_names(path: Path) -> dict[str, str]:
    """Names of labels by id: `{"1": "正面"}`, or doccano's list of `{"id", "text"}`.

    Raises:
        UsageError: it is neither.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(content, list):
            content = {item["id"]: item.get("text", item.get("name")) for item in content}
        return {str(number): clean_label(name) for number, name in content.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f'{path}: not names by id: write {{"1": "正面", "2": "负面"}}') from error


def _accept(found: Converted, number: int, item: Annotated, names: Mapping[str, str]) -> None:
    labels = list(dict.fromkeys(_name(label, names) for label in item.labels))
    reason = ""
    if not isinstance(item.text, str) or not item.text.strip():
        reason = "empty text" if item.text is None or isinstance(item.text, str) else "the text is no string"
    elif len(labels) > 1:
        reason = f"{len(labels)} labels that differ"
    elif labels[0] is None:
        reason = f"label {item.labels[0]!r} is an id without a name: give --label-names"
    elif not labels[0]:
        reason = "empty label"
    if reason:
        found.account.reject(Rejected(number, reason))
        return
    text, lost = _SURROGATE.subn("\ufffd", item.text)
    label, lost_in_label = _SURROGATE.subn("\ufffd", str(labels[0]))
    found.rows.append((text, label))
    found.account.accepted += 1
    found.suggested += item.source == SUGGESTED
    found.surrogates += lost + lost_in_label


def _name(label: Any, names: Mapping[str, str]) -> str | None:
    """The name of a label; None for an id without one."""
    if clean_label(label) in names:
        return names[clean_label(label)]
    return clean_label(label) if isinstance(label, str) else None


def _items(path: Path, file_format: str, fields: Fields) -> Iterator[Annotated | Rejected]:
    if file_format == "folders":
        yield from _folders(path)
    elif file_format == "table":
        yield from _table_items(path, fields)
    else:
        for number, item in enumerate(_json_items(path), start=1):
            try:
                yield read_item(file_format, item, fields.text, fields.label)
            except ValueError as error:
                yield Rejected(number, str(error))


def _json_items(path: Path) -> Iterable[Any]:
    """The items of a JSON list or of JSON lines, whichever it is."""
    try:
        with open_binary(path) as raw:
            content = raw.read().decode(sniff_encoding(path)).removeprefix("\ufeff")
        return json.loads(content) if content.lstrip().startswith("[") else _json_lines(content)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: not JSON, nor JSON lines: {error}") from error


def _json_lines(content: str) -> list[Any]:
    return [json.loads(line) for line in content.split("\n") if line.strip()]


def _table_items(path: Path, fields: Fields) -> Iterator[Annotated | Rejected]:
    for line in read_lines(Source(path, fields.text)):
        if isinstance(line, Row):
            label = line.fields.get(fields.label)
            named = [] if label is None or label == "" else [clean_label(label)]  # a number is a name in a table
            yield Annotated(line.fields.get(fields.text), tuple(named))
        elif not isinstance(line, Blank):
            yield line


def _folders(path: Path) -> Iterator[Annotated | Rejected]:
    if not path.is_dir():
        raise UsageError(f"{path} is no folder: it must hold one folder a label, with a text in each file")
    files = sorted(file for folder in path.iterdir() if folder.is_dir() for file in folder.iterdir())
    for number, file in enumerate((f for f in files if f.is_file() and not f.name.startswith(".")), start=1):
        try:
            text = file.read_bytes().decode(sniff_encoding(file)).removeprefix("\ufeff")
            yield Annotated(text, (file.parent.name,))
        except UnicodeDecodeError as error:
            yield Rejected(number, f"{file.parent.name}/{file.name}: not valid {error.encoding}")


def _write_folders(rows: Sequence[tuple[str, str]], path: Path) -> None:
    names = {label for _, label in rows}
    bad = sorted(name for name in names if "/" in name or "\\" in name or "\0" in name or name.startswith("."))
    if bad:
        raise UsageError(f"no folder can be called {bad[0]!r}: choose another form")
    width = len(str(len(rows)))
    for name in names:
        (path / name).mkdir(parents=True)
    for number, (text, label) in enumerate(rows, start=1):
        (path / label / f"{number:0{width}}.txt").write_bytes(text.encode("utf-8"))
