"""Going on with the output of an interrupted `lengnuan-classify`."""

import itertools
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lengnuan.model.rows import Line
from lengnuan.service.offline import Answering, Item, Tally, UsageError, json_line


@dataclass
class _Kept:
    """The whole chunks at the head of an output: what they count, and where the last of them lies in the file."""

    tally: Tally = field(default_factory=Tally)
    start: int = 0
    end: int = 0


def resume(output: Path, rows: Iterator[Line], answering: Answering, chunk_rows: int) -> Tally:
    """Cut `output` back to whole chunks and skip the rows that they answer.

    A chunk is always scored as a whole, so the finished file is that of a run that was never interrupted. The last
    chunk that is kept is answered again and must come out the same, byte for byte: another input or another bundle
    would go on in a file that holds the answers of both.

    Raises:
        UsageError: it came out otherwise, or the file is not this command's. The file is as it was.
    """
    kept = _whole_chunks(output, chunk_rows)
    if kept.tally.rows:
        first = kept.tally.rows - chunk_rows
        deque(itertools.islice(rows, first), maxlen=0)
        again = answering.items(list(itertools.islice(rows, chunk_rows)), first)
        with output.open("rb") as file:
            file.seek(kept.start)
            same = file.read(kept.end - kept.start) == "".join(map(json_line, again)).encode()
        if not same:
            raise UsageError(
                f"{output}: its rows {first + 1} to {kept.tally.rows} are not what this --input and --bundle give with "
                "these options; go on with those of the first run, or leave out --resume to write the file anew"
            )
    os.truncate(output, kept.end)
    return kept.tally


def _whole_chunks(output: Path, chunk_rows: int) -> _Kept:
    kept, found, position = _Kept(), Tally(), 0
    with output.open("rb") as file:
        for line in itertools.takewhile(lambda line: line.endswith(b"\n"), file):
            found.add(_read_back(output, line, found.rows))
            position += len(line)
            if found.rows % chunk_rows == 0:
                kept = _Kept(found.copy(), kept.end, position)
    return kept


def _read_back(output: Path, line: bytes, index: int) -> Item:
    try:
        item = json.loads(line)
        if item["index"] == index and isinstance(item["line"], int):
            return dict(item)
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{output}: line {index + 1} is not an answer of this command; --resume needs its own output")
