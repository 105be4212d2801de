"""Repeats, contradictions and leaks: which rows of several splits have the same text, by four yardsticks.

verbatim    character for character
normalised  after `normalise`, white space aside
letters     by `text_key`: letters and digits only
near        by letters, or sharing half of the shorter text's 16-character windows

Each finds what the one before finds, and more.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.model.text import normalise
from lengnuan.training.examples import Example, Examples
from lengnuan.training.near import Ints, groups, near_pairs
from lengnuan.training.splits import letters_of, text_key
from lengnuan.training.texts import Texts

EXACT = ("verbatim", "normalised", "letters")
QUOTED = 5  # texts that a report shows of each kind
QUOTED_CHARACTERS = 40

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Rows:
    """The rows of one split.

    Args:
        examples: N of them.
        codes: by yardstick int64 [N], equal where the texts are (but for one chance in 2^64 a pair).
        places: int64 [N], the position of the row's key among all keys.
    """

    examples: Examples
    codes: Mapping[str, Ints]
    places: Ints


class Likeness:
    """The texts of several splits, indexed once.

    Args:
        splits: rows by name; `leaks` looks for the rows of each in those before it.
    """

    def __init__(self, splits: Mapping[str, Sequence[Example]]) -> None:
        found = {name: Examples.of(rows) for name, rows in splits.items()}
        codes = [_codes(rows) for rows in found.values()]
        borders = np.cumsum([len(rows) for rows in found.values()])[:-1]
        _, first, place = np.unique(
            np.concatenate([code["letters"] for code in codes]), return_index=True, return_inverse=True
        )
        places = np.split(np.argsort(np.argsort(first))[place], borders)  # keys are numbered as they come
        is_first = np.zeros(len(place), dtype=bool)
        is_first[first] = True
        new = [rows.take(flags).texts for rows, flags in zip(found.values(), np.split(is_first, borders), strict=True)]
        self._splits = dict(zip(found, map(_Rows, found.values(), codes, places), strict=True))
        self._pairs = near_pairs(Texts(text_key(text) for texts in new for text in texts))
        self._keys = len(first)

    def repeats(self) -> dict[str, dict[str, int]]:
        """By split: rows, how many of them repeat an earlier one by each yardstick, and near copies in groups."""
        grouped = groups(self._keys, self._pairs)
        found = {}
        for name, rows in self._splits.items():
            codes = {**rows.codes, "near": grouped[rows.places]}
            total = len(rows.examples)
            found[name] = {"rows": total, **{level: total - len(np.unique(code)) for level, code in codes.items()}}
        return found

    def conflicts(self) -> dict[str, dict[str, Any]]:
        """By split: texts with more than one label, the rows that have them, and a few of the texts."""
        found = {}
        for name, rows in self._splits.items():
            labels = rows.examples.labels
            by_level = {level: _contradicted(rows.codes[level], labels) for level in ("normalised", "letters")}
            found[name] = {
                "texts": len(np.unique(rows.codes["normalised"][by_level["normalised"]])),
                "rows": int(by_level["normalised"].sum()),
                "texts_by_letters": len(np.unique(rows.codes["letters"][by_level["letters"]])),
                "rows_by_letters": int(by_level["letters"].sum()),
                "examples": _quoted(rows, by_level["letters"]),
            }
        return found

    def leaks(self) -> list[dict[str, Any]]:
        """For each two splits: how many rows of the later one are in the earlier one, by each yardstick."""
        return [self._leak(first, second) for first, second in itertools.combinations(self._splits, 2)]

    def seen(self, first: str, second: str) -> _Flags:
        """Bool [N] over the rows of `second`: True where the text, or a near copy, is in `first`."""
        there = np.zeros(self._keys, dtype=bool)
        there[self._splits[first].places] = True
        near = there.copy()
        for one, other in ((0, 1), (1, 0)):
            near[self._pairs[:, one][there[self._pairs[:, other]]]] = True
        return near[self._splits[second].places]

    def _leak(self, first: str, second: str) -> dict[str, Any]:
        one, other = self._splits[first], self._splits[second]
        flags = {level: np.isin(other.codes[level], one.codes[level]) for level in EXACT}
        flags["near"] = self.seen(first, second)
        same_label = np.isin(_labelled(other, "normalised"), _labelled(one, "normalised"))
        counts = {level: int(found.sum()) for level, found in flags.items()}
        return {
            "rows_of": second,
            "also_in": first,
            "of": len(other.examples),
            **counts,
            "with_another_label": int((flags["normalised"] & ~same_label).sum()),
            "examples": _quoted(other, flags["near"]),
        }


def _codes(examples: Examples) -> dict[str, Ints]:
    """By yardstick int64 [N]."""
    codes = {level: np.zeros(len(examples), dtype=np.int64) for level in EXACT}
    for row, text in enumerate(examples.texts):
        normal = normalise(text)
        codes["verbatim"][row] = hash(text)
        codes["normalised"][row] = hash(normal.replace(" ", ""))
        codes["letters"][row] = hash(letters_of(normal))
    return codes


def _labelled(rows: _Rows, level: str) -> Ints:
    """Codes of text and label together."""
    pairs = zip(rows.codes[level].tolist(), rows.examples.labels.tolist(), strict=True)
    return np.fromiter(map(hash, pairs), dtype=np.int64, count=len(rows.examples))


def _contradicted(codes: Ints, labels: npt.NDArray[np.int32]) -> _Flags:
    """Bool [N]: True where the same text has another label elsewhere."""
    order = np.lexsort((labels, codes))
    same = codes[order][1:] == codes[order][:-1]
    differs = labels[order][1:] != labels[order][:-1]
    return np.isin(codes, codes[order][1:][same & differs])


def _quoted(rows: _Rows, chosen: _Flags) -> list[str]:
    texts = dict.fromkeys(rows.examples[row].text for row in np.flatnonzero(chosen)[: 10 * QUOTED])
    return [f"{text[:QUOTED_CHARACTERS]}{'…' * (len(text) > QUOTED_CHARACTERS)}" for text in list(texts)[:QUOTED]]
