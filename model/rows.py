"""Reading tables of text: TSV, CSV, JSONL, Parquet and plain lines, gzipped or not, with every line accounted for.

Each input line comes back as exactly one `Row`, `Blank` or `Rejected` (a CSV record that runs over several lines
counts the later ones in `Row.extra_lines`), so a caller can prove that nothing was lost. Tabs split TSV and nothing
else does: quotes there are plain text, because a quoting reader glues rows of review data together in silence.

Encodings and gzip are `lengnuan.model.decoding`'s business: a line that does not decode is rejected by number.
"""

import itertools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lengnuan.model.decoding import BadLine, BrokenStream, TextLine, decoded_lines, stream_lines

FORMATS = ("tsv", "csv", "jsonl", "parquet", "txt")
# An opening quote that is not closed within this many lines is a typing error, not a long field.
MAX_RECORD_LINES = 200


class UnreadableFile(ValueError):
    """A file that can't be read at all: unknown format, no such column, no header, broken compression."""


@dataclass(frozen=True)
class Row:
    """One record. `line` is 1-based; in Parquet it is the row number."""

    line: int
    fields: dict[str, Any]
    extra_lines: int = 0


@dataclass(frozen=True)
class Blank:
    """A line with nothing on it."""

    line: int


@dataclass(frozen=True)
class Rejected:
    """A line that is no record, and why. `extra_lines` as in `Row`."""

    line: int
    reason: str
    extra_lines: int = 0


Line = Row | Blank | Rejected


@dataclass(frozen=True)
class Source:
    """A file and how to read it.

    Args:
        path: the file; its format is read off the name (`reviews.tsv.gz`) unless `file_format` says it.
        text_column: extra tabs of a TSV line belong to this column.
        columns: names of the columns of a TSV or CSV file without a header line; empty when it has one.
        file_format: one of `FORMATS`, or empty.
    """

    path: Path
    text_column: str = "text"
    columns: Sequence[str] = field(default=())
    file_format: str = ""


def read_rows(source: Source) -> Iterator[Line]:
    """Every line of the file, in order; a header line is not among them.

    Raises:
        UnreadableFile: unknown format, `text_column` is not a column, or the file is cut off or damaged.
        OSError: the file can't be opened.
    """
    file_format = _format_of(source)
    if file_format == "parquet":
        yield from _read_parquet(source)
        return
    try:
        yield from _read_lines(source, file_format)
    except BrokenStream as error:
        raise UnreadableFile(str(error)) from error


def _read_lines(source: Source, file_format: str) -> Iterator[Line]:
    lines = decoded_lines(source.path)
    columns = _columns(source, lines, file_format) if file_format in ("tsv", "csv") else []
    if file_format == "csv":
        yield from _csv_rows(lines, columns)
        return
    for line in lines:
        if file_format == "txt" or isinstance(line, BadLine) or not line.text.strip():
            yield _text_row(line, source.text_column)
        elif file_format == "tsv":
            yield _tsv_row(line, columns, columns.index(source.text_column))
        else:
            yield _json_row(line)


def _text_row(line: TextLine | BadLine, text_column: str) -> Line:
    if isinstance(line, BadLine):
        return Rejected(line.number, line.reason)
    return Row(line.number, {text_column: line.text}) if line.text.strip() else Blank(line.number)


def read_stream(stream: BinaryIO, text_column: str = "text") -> Iterator[Line]:
    """Every line of an open UTF-8 stream as one text, each as soon as it is there."""
    return (_text_row(line, text_column) for line in stream_lines(stream))


def has_header(source: Source) -> bool:
    """True when the first line of the file names the columns."""
    return _format_of(source) in ("tsv", "csv") and not source.columns


def _format_of(source: Source) -> str:
    suffixes = [suffix[1:].lower() for suffix in source.path.suffixes if suffix.lower() != ".gz"]
    name = source.file_format or (suffixes[-1] if suffixes else "")
    name = {"ndjson": "jsonl", "tab": "tsv"}.get(name, name)
    if name in FORMATS:
        return name
    if source.file_format:
        raise UnreadableFile(f"{source.path}: format {name!r} is none of {FORMATS}")
    raise UnreadableFile(
        f"{source.path}: can't tell the format from the name; it must end in one of {FORMATS} (or .gz)"
    )


def _json_row(line: TextLine) -> Line:
    try:
        value = json.loads(line.text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Rejected(line.number, f"not JSON: {str(error)[:80]}")
    return Row(line.number, value) if isinstance(value, dict) else Rejected(line.number, "not a JSON object")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _columns(source: Source, lines: Iterator[TextLine | BadLine], file_format: str) -> list[str]:
    """The names of the columns: given, or taken from the first line."""
    columns = list(source.columns) or _header(source.path, next(lines, None), file_format)
    if source.text_column not in columns:
        raise UnreadableFile(f"{source.path}: no column {source.text_column!r}; it has {columns}")
    if len(set(columns)) != len(columns):
        raise UnreadableFile(f"{source.path}: a column name stands twice: {columns}")
    return columns


def _header(path: Path, first: TextLine | BadLine | None, file_format: str) -> list[str]:
    if first is None:
        raise UnreadableFile(f"{path}: the file is empty")
    if isinstance(first, BadLine):
        raise UnreadableFile(f"{path}: line 1 {first.reason}")
    cells = first.text.split("\t") if file_format == "tsv" else _csv_cells(first.text)
    return [cell.strip() for cell in cells]


def _tsv_row(line: TextLine, columns: list[str], text_at: int) -> Line:
    cells = line.text.split("\t")
    extra = len(cells) - len(columns)
    if extra < 0:
        return Rejected(line.number, f"{len(cells)} cells, {len(columns)} needed (spaces in place of a tab?)")
    cells[text_at : text_at + extra + 1] = ["\t".join(cells[text_at : text_at + extra + 1])]
    return Row(line.number, dict(zip(columns, cells, strict=True)))


# RFC 4180, except that a quote inside a cell that does not begin with one is plain text. The standard library's
# reader is not used: it also splits at \r and other line breaks inside a cell, and refuses cells over 128 KiB.
_OPEN_CELL = r'"[^"]*(?:""[^"]*)*'
_CELL = rf'(?:{_OPEN_CELL}"|[^",][^,]*|)'
_WHOLE_RECORD = re.compile(rf"{_CELL}(?:,{_CELL})*")
_OPEN_RECORD = re.compile(rf"(?:{_CELL},)*{_OPEN_CELL}")
_EACH_CELL = re.compile(rf"(?:\A|,)({_CELL})")


def _csv_rows(lines: Iterator[TextLine | BadLine], columns: list[str]) -> Iterator[Line]:
    """Records that may run over several lines; a quote that is never closed costs its own line only."""
    ahead: deque[TextLine | BadLine] = deque()  # lines that were read in search of a closing quote and not used yet
    while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
        if isinstance(line, BadLine):
            yield Rejected(line.number, line.reason)
            continue
        record = _record_lines(line.text, _look_ahead(lines, ahead))
        for _ in record[1:]:
            ahead.popleft()
        if record:
            yield _csv_row(line.number, "\n".join(record), columns, extra_lines=len(record) - 1)
        else:
            yield Rejected(line.number, "a quote is opened and not closed, or text follows a closing quote")


def _look_ahead(lines: Iterator[TextLine | BadLine], ahead: deque[TextLine | BadLine]) -> Iterator[TextLine | BadLine]:
    """The lines that come next, all of them kept in `ahead`."""
    yield from tuple(ahead)
    for line in lines:
        ahead.append(line)
        yield line


def _record_lines(first: str, following: Iterable[TextLine | BadLine]) -> list[str]:
    """The lines of the record that begins with `first`; none when it has no proper end."""
    if _WHOLE_RECORD.fullmatch(first):
        return [first]
    if not _OPEN_RECORD.fullmatch(first):
        return []
    record = [first]
    for line in itertools.islice(following, MAX_RECORD_LINES):
        if isinstance(line, BadLine):
            break
        record.append(line.text)
        if '"' not in record[-1]:  # nothing else can close the quote
            continue
        text = "\n".join(record)
        if _WHOLE_RECORD.fullmatch(text):
            return record
        if not _OPEN_RECORD.fullmatch(text):
            break
    return []


def _csv_row(number: int, text: str, columns: list[str], extra_lines: int) -> Line:
    if not text.strip():
        return Blank(number)
    cells = _csv_cells(text)
    if len(cells) != len(columns):
        return Rejected(number, f"{len(cells)} cells, {len(columns)} needed", extra_lines)
    return Row(number, dict(zip(columns, cells, strict=True)), extra_lines)


def _csv_cells(record: str) -> list[str]:
    cells = _EACH_CELL.findall(record)
    return [cell[1:-1].replace('""', '"') if cell.startswith('"') else cell for cell in cells]


def _read_parquet(source: Source) -> Iterator[Line]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnreadableFile(f"{source.path}: reading Parquet needs `pip install lengnuan[parquet]`") from error
    try:
        with pyarrow.parquet.ParquetFile(source.path) as table:
            names = table.schema_arrow.names
            if source.text_column not in names:
                raise UnreadableFile(f"{source.path}: no column {source.text_column!r}; it has {names}")
            batches = (batch.to_pylist() for batch in table.iter_batches(batch_size=1024))
            for number, fields in enumerate(itertools.chain.from_iterable(batches), start=1):
                yield Row(number, fields)
    except pyarrow.ArrowException as error:
        raise UnreadableFile(f"{source.path}: not a whole Parquet file: {error}") from error
