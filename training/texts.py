"""Many texts in one buffer: their UTF-8 bytes and where each ends, in place of an object for each."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

CHUNK = 1 << 14  # texts that are looked up together when all are gone through

Positions = npt.NDArray[np.int64] | npt.NDArray[np.bool_]


class Texts(Sequence[str]):
    """Texts in their order, at eight bytes each beside their own UTF-8. A part of them shares the buffer.

    Args:
        texts: read once.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._content = bytearray()
        ends = array("q", [0])
        for text in texts:
            self._content += text.encode("utf-8", "surrogatepass")
            ends.append(len(self._content))
        self._ends = np.frombuffer(ends, dtype=np.int64)
        self._chosen: npt.NDArray[np.int64] | None = None  # of all texts in the buffer; None: each of them

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> "Texts": ...
    def __getitem__(self, place: int | slice) -> "str | Texts":
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        row = range(len(self))[place]
        row = row if self._chosen is None else int(self._chosen[row])
        return self._decoded(int(self._ends[row]), int(self._ends[row + 1]))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            places = np.arange(start, min(start + CHUNK, len(self)))
            rows = places if self._chosen is None else self._chosen[places]
            yield from map(self._decoded, self._ends[rows].tolist(), self._ends[rows + 1].tolist())

    def __add__(self, more: "Texts") -> "Texts":
        return Texts(text for part in (self, more) for text in part) if more else self

    def take(self, positions: Positions) -> "Texts":
        """Those at these positions, in that order, or those that are flagged."""
        part = Texts.__new__(Texts)
        part._content, part._ends = self._content, self._ends
        part._chosen = (np.arange(len(self)) if self._chosen is None else self._chosen)[positions]
        return part

    def _decoded(self, start: int, end: int) -> str:
        return self._content[start:end].decode("utf-8", "surrogatepass")
