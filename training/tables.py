"""Writing tables that `lengnuan.model.rows` reads back unchanged: TSV, CSV and JSONL."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text

TABLES = (".tsv", ".csv", ".jsonl")


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    text_column: str,
    *,
    spreadsheet: bool = False,
) -> None:
    """Write rows under these columns; the ending of `path` decides the form.

    Args:
        path: where to.
        columns: of TSV and CSV; in JSONL each row names its own.
        rows: by column.
        text_column: where TSV may hold tabs.
        spreadsheet: begin a CSV with a byte-order mark, without which Excel takes UTF-8 for the machine's own encoding.

    Raises:
        UsageError: another ending, or a row that such a table can't hold.
    """
    writers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in writers:
        raise UsageError(f"{path}: a table must end in {', '.join(TABLES)}")
    mark = "\ufeff" if spreadsheet and path.suffix == ".csv" else ""
    write_text(path, mark + "".join(line + "\n" for line in writers[path.suffix](columns, rows, text_column)))


def _tsv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], text_column: str) -> Iterator[str]:
    yield "\t".join(columns)
    for number, row in enumerate(rows, start=1):
        cells = {column: _cell(row.get(column)) for column in columns}
        broken = [c for c, cell in cells.items() if "\n" in cell or "\r" in cell or ("\t" in cell and c != text_column)]
        if broken:
            raise UsageError(f"row {number}: {broken[0]!r} holds a line break or tab: write .jsonl instead of .tsv")
        yield "\t".join(cells.values())


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], text_column: str) -> Iterator[str]:
    del text_column  # every cell is quoted
    yield ",".join(map(_quoted, columns))
    for number, row in enumerate(rows, start=1):
        cells = [_cell(row.get(column)) for column in columns]
        if any("\r" in cell for cell in cells):
            raise UsageError(f"row {number} holds a carriage return: write .jsonl instead of .csv")
        yield ",".join(map(_quoted, cells))


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def _jsonl(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], text_column: str) -> Iterator[str]:
    del columns, text_column  # each row names its own
    for row in rows:
        yield json.dumps(row, ensure_ascii=False, default=str)


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
