"""Which texts are the same, and on which side of a split each falls."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lengnuan.model.text import normalise

if TYPE_CHECKING:
    from lengnuan.training.examples import Example, Examples

Codes = npt.NDArray[np.uint64]


def text_key(text: str) -> str:
    """What makes two texts the same: the normalised text, letters and digits only (all of it if there are none).

    Deliberately coarse: 好! and 好😊 are one text, because a copy of a test row with another emoji is still a leak.
    """
    return letters_of(normalise(text))


def letters_of(normal: str) -> str:
    """`text_key` of a text that is normalised already."""
    return "".join(filter(str.isalnum, normal)) or normal


def text_code(text: str) -> int:
    """64 bits of the text's key, for comparing many: two keys have the same by one chance in 2^64 a pair."""
    return code_of(text_key(text))


def code_of(key: str) -> int:
    """`text_code` of a text whose key it is."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def share_of(key: str, seed: int) -> float:
    """A number in [0, 1) that depends on the key and seed alone: where a text falls when a file is split."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_by_text(examples: "Examples", share: float, seed: int) -> tuple["Examples", "Examples"]:
    """(rest, part): `part` gets about `share` of the rows, and some. Equal texts always fall on the same side."""
    place = np.fromiter((share_of(text_key(text), seed) for text in examples.texts), np.float64, len(examples))
    chosen = place < share
    if not chosen.any():
        chosen = np.isin(examples.codes, _one_a_class(examples, place))
    return examples.take(~chosen), examples.take(chosen)


def _one_a_class(examples: "Examples", place: npt.NDArray[np.float64]) -> Codes:
    """For few rows, where chance may choose none: the lowest text of each class that can spare one."""
    codes, labels = examples.codes, examples.labels
    found = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(np.unique(codes[rows])) > 1:
            found.append(codes[rows[place[rows].argmin()]])
    return np.array(found, dtype=np.uint64)


def drop_repeats(examples: "Examples") -> tuple["Examples", int, int]:
    """(kept, repeats, conflicts): one row a text; a text with two labels is dropped altogether."""
    _, first, text = np.unique(examples.codes, return_index=True, return_inverse=True)
    labels = examples.labels
    differs = labels != labels[first][text]
    conflicting = np.bincount(text[differs], minlength=len(first))[text] > 0
    keep = np.zeros(len(examples), dtype=bool)
    keep[first] = True
    keep &= ~conflicting
    conflicts = int(conflicting.sum())
    return examples.take(keep), len(examples) - int(keep.sum()) - conflicts, conflicts


def without(examples: "Examples", codes: Codes) -> "Examples":
    """The rows whose text has none of these codes."""
    return examples.take(~np.isin(examples.codes, codes))


def codes_of(sources: Iterable["Examples"]) -> Codes:
    """The codes of the texts of all rows of all sources: distinct, sorted."""
    return np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *(rows.codes for rows in sources)]))


def identity_of(examples: Iterable["Example"]) -> str:
    """Hash of labels and texts in their order: two lists with the same one are the same data."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.label}\t{example.text}\n".encode())
    return digest.hexdigest()[:16]
