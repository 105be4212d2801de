"""Labelled rows, by column: millions of them fit into memory."""

import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from lengnuan.training.splits import text_code
from lengnuan.training.texts import Positions, Texts


@dataclass(frozen=True)
class Example:
    """One labelled row. `label` is the index of the class, `domain` groups rows in reports."""

    text: str
    label: int
    domain: str = ""


@dataclass(frozen=True)
class _Columns:
    """Rows by column; labels and domains (numbers of `names`) int32 [N]."""

    texts: Texts
    labels: npt.NDArray[np.int32]
    domains: npt.NDArray[np.int32]
    names: tuple[str, ...]

    @cached_property
    def codes(self) -> npt.NDArray[np.uint64]:
        """Of all texts: uint64 [N], made once."""
        return np.fromiter(map(text_code, self.texts), dtype=np.uint64, count=len(self.texts))


class Examples(Sequence[Example]):
    """Labelled rows by column, so that millions fit into memory; each `Example` is made when it is looked at.

    Args:
        rows: read once.
    """

    def __init__(self, rows: Iterable[Example] = ()) -> None:
        labels, domains, names = array("i"), array("i"), dict[str, int]()

        def texts() -> Iterator[str]:
            for row in rows:
                labels.append(row.label)
                domains.append(names.setdefault(row.domain, len(names)))
                yield row.text

        columns = (Texts(texts()), np.array(labels, dtype=np.int32), np.array(domains, dtype=np.int32), tuple(names))
        self._columns = _Columns(*columns)
        self._chosen = np.arange(len(labels))

    @classmethod
    def of(cls, rows: Sequence[Example]) -> "Examples":
        """`rows`, by column if they are not yet."""
        return rows if isinstance(rows, Examples) else cls(rows)

    @property
    def texts(self) -> Texts:
        """Of every row."""
        return self._columns.texts.take(self._chosen)

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """Int32 [N]."""
        return self._columns.labels[self._chosen]

    @property
    def domains(self) -> list[str]:
        """Of every row."""
        return [self._columns.names[number] for number in self._columns.domains[self._chosen]]

    @property
    def codes(self) -> npt.NDArray[np.uint64]:
        """Uint64 [N], the `text_code` of every row."""
        return self._columns.codes[self._chosen]

    def take(self, positions: Positions) -> "Examples":
        """The rows at these positions, in that order, or those that are flagged; they share what they are made of."""
        part = Examples.__new__(Examples)
        part._columns, part._chosen = self._columns, self._chosen[positions]
        return part

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> "Examples": ...
    def __getitem__(self, place: int | slice) -> "Example | Examples":
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        row, columns = int(self._chosen[place]), self._columns
        return Example(columns.texts[row], int(columns.labels[row]), columns.names[columns.domains[row]])

    def __iter__(self) -> Iterator[Example]:
        domains = self._columns.domains[self._chosen]
        for text, label, domain in zip(self.texts, self.labels, domains, strict=True):
            yield Example(text, int(label), self._columns.names[domain])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]
