"""A file's bytes to numbered lines of text, gzipped or not.

UTF-8 with or without a byte-order mark, UTF-16 with one, GB18030 (so GBK and GB2312 too). Lines end at LF or CRLF
and nowhere else. A line that does not decode is reported by number, never repaired.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from lengnuan.model.text import has_lone_surrogate

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class BrokenStream(ValueError):
    """A gzip stream that is cut off or damaged."""


@dataclass(frozen=True)
class TextLine:
    """A line without its line break; `number` is 1-based."""

    number: int
    text: str


@dataclass(frozen=True)
class BadLine:
    """A line whose bytes are not in the file's encoding, and where."""

    number: int
    reason: str


def decoded_lines(path: Path) -> Iterator[TextLine | BadLine]:
    """Every line of the file, in order.

    Raises:
        BrokenStream: the file is gzipped and damaged.
        OSError: the file can't be opened.
    """
    try:
        encoding = sniff_encoding(path)
        with open_binary(path) as raw:
            yield from _utf16_lines(raw.read()) if encoding == "utf-16" else stream_lines(raw, encoding)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BrokenStream(f"{path}: broken gzip stream: {error}") from error


def open_binary(path: Path) -> BinaryIO:
    """The bytes of `path`, decompressed when its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def sniff_encoding(path: Path) -> str:
    """`utf-16`, `utf-8` or `gb18030`, by byte-order mark or by which one most of the non-ASCII lines are valid in."""
    utf8 = not_utf8 = 0
    with open_binary(path) as raw:
        for number, data in enumerate(raw):
            if number == 0 and data.startswith(_UTF16_MARKS):
                return "utf-16"
            if number == 0 and data.startswith(_UTF8_MARK):
                return "utf-8"
            if data.isascii():
                continue
            try:
                data.decode("utf-8")
                utf8 += 1
            except UnicodeDecodeError:
                not_utf8 += 1
    return "gb18030" if not_utf8 > utf8 else "utf-8"


def stream_lines(raw: BinaryIO, encoding: str = "utf-8") -> Iterator[TextLine | BadLine]:
    """Every line of an open stream, each as soon as it is there; `encoding` has one byte for a line feed."""
    for number, data in enumerate(raw, start=1):
        if number == 1:
            data = data.removeprefix(_UTF8_MARK)  # noqa: PLW2901
        try:
            yield TextLine(number, data.decode(encoding).removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            yield BadLine(number, f"not valid {encoding}: byte {data[error.start]:#04x} at {error.start}")


def _utf16_lines(data: bytes) -> Iterator[TextLine | BadLine]:
    """A line break is two bytes here, so all of `data` is decoded before it is split."""
    odd = len(data) % 2
    lines = data[: len(data) - odd].decode("utf-16", "surrogatepass").split("\n")
    if not (lines[-1] or odd):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if has_lone_surrogate(line) or (odd and number == len(lines)):
            yield BadLine(number, "not valid utf-16: half a character")
        else:
            yield TextLine(number, line.removesuffix("\r"))
