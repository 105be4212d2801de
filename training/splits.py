"""Which texts are the same, and on which side of a split each falls."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from lengnuan.model.text import normalise
from lengnuan.training.data import Example


def text_key(text: str) -> str:
    """What makes two texts the same: the normalised text, letters and digits only (all of it if there are none).

    Deliberately coarse: 好! and 好😊 are one text, because a copy of a test row with another emoji is still a leak.
    """
    return letters_of(normalise(text))


def letters_of(normal: str) -> str:
    """`text_key` of a text that is normalised already."""
    return "".join(filter(str.isalnum, normal)) or normal


def share_of(key: str, seed: int) -> float:
    """A number in [0, 1) that depends on the key and seed alone: where a text falls when a file is split."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_by_text(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """(rest, part): `part` gets about `share` of the rows, and some. Equal texts always fall on the same side."""
    place = {key: share_of(key, seed) for key in {text_key(example.text) for example in examples}}
    chosen = {key for key, at in place.items() if at < share} or _one_a_class(examples, place)
    rest: list[Example] = []
    part: list[Example] = []
    for example in examples:
        (part if text_key(example.text) in chosen else rest).append(example)
    return rest, part


def _one_a_class(examples: Sequence[Example], place: Mapping[str, float]) -> set[str]:
    """For few rows, where chance may choose none: the lowest text of each class that can spare one."""
    by_label: dict[int, set[str]] = {}
    for example in examples:
        by_label.setdefault(example.label, set()).add(text_key(example.text))
    return {min(keys, key=lambda key: place[key]) for keys in by_label.values() if len(keys) > 1}


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


def without(examples: Sequence[Example], keys: set[str]) -> list[Example]:
    """The rows whose text has none of these keys."""
    return [example for example in examples if text_key(example.text) not in keys]


def keys_of(sources: Iterable[Sequence[Example]]) -> set[str]:
    """The keys of all rows of all sources."""
    return {text_key(example.text) for rows in sources for example in rows}


def identity_of(examples: Iterable[Example]) -> str:
    """Hash of labels and texts in their order: two lists with the same one are the same data."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.label}\t{example.text}\n".encode())
    return digest.hexdigest()[:16]
