"""Texts that are nearly the same: pairs that share at least half of the shorter one's 16-character windows.

Every window of every text is hashed, and texts are counted as a pair for each window they share, so no text is compared
with all others. Work and memory grow with the number of windows; a pass over part of the hashes bounds the memory.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lengnuan.training.texts import Texts

WINDOW = 16  # characters of a key
SHARED = 0.5  # of the windows of the shorter text
# A text is paired with this many of the texts after it that have the same window. Where more have it, it is a stock
# phrase: pairs further apart may be missed, none is invented, and `groups` still joins what stands in a row.
REACH = 16
PASS_WINDOWS = 1 << 22
CHUNK_TEXTS = 1 << 16

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: Knuth, The Art of Computer Programming 3, section 6.4

Ints = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]
_Flags = npt.NDArray[np.bool_]


def near_pairs(keys: Sequence[str]) -> Ints:
    """Positions of the pairs of near copies, int64 [P, 2], the smaller one first.

    Args:
        keys: distinct texts, as `text_key` makes them; one shorter than a window is near nothing.
    """
    windows = sum(max(0, len(key) - WINDOW + 1) for key in keys)
    if not windows:
        return np.zeros((0, 2), dtype=np.int64)
    passes = 1 + windows // PASS_WINDOWS
    sizes = np.zeros(len(keys), dtype=np.int64)
    pairs, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for part in range(passes):
        found = [(pairs, counts)]
        texts, shared = _shared_windows(keys, part, passes, sizes)
        for step in range(1, REACH + 1):
            same = shared[step:] == shared[:-step]
            if not same.any():
                break
            found.append(np.unique(texts[:-step][same] << 32 | texts[step:][same], return_counts=True))
        pairs, counts = _added(found)
    first, second = pairs >> 32, pairs & 0xFFFFFFFF
    near = counts >= SHARED * np.minimum(sizes[first], sizes[second])
    return np.stack([first[near], second[near]], axis=1)


def groups(count: int, pairs: Ints) -> Ints:
    """The group of each of `count` texts, int64 [N]: texts that pairs connect, even over others, have the same one."""
    links = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    found: Ints = connected_components(links, directed=False)[1].astype(np.int64)
    return found


def seen_keys(keys: Iterable[str], known: Iterable[str]) -> set[str]:
    """Those of `keys` that are among the `known` ones, or near one of them."""
    both, asked, there = _merged(keys, known)
    found = asked & there
    pairs = near_pairs(both)
    for one, other in (pairs.T, pairs[:, ::-1].T):
        found[one[asked[one] & there[other]]] = True
    return set(both.take(found))


def _merged(keys: Iterable[str], known: Iterable[str]) -> tuple[Texts, _Flags, _Flags]:
    """The distinct ones of both, sorted; and which of them are among the keys, and among the known ones."""
    asked, there = bytearray(), bytearray()

    def distinct() -> Iterator[str]:
        # As UTF-8, which sorts as its characters do, in less memory.
        merged = heapq.merge(zip(sorted(map(_utf8, keys)), repeat(True)), zip(sorted(map(_utf8, known)), repeat(False)))
        for key, group in groupby(merged, key=itemgetter(0)):
            sides = {side for _, side in group}
            asked.append(True in sides)
            there.append(False in sides)
            yield key.decode("utf-8", "surrogatepass")

    both = Texts(distinct())
    return both, np.frombuffer(asked, dtype=np.bool_), np.frombuffer(there, dtype=np.bool_)


def _utf8(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _shared_windows(keys: Sequence[str], part: int, passes: int, sizes: Ints) -> tuple[Ints, _Hashes]:
    """(text, hash) of each distinct window of this pass that several texts have, sorted by hash, then text.

    Adds each text's number of distinct windows to `sizes`.
    """
    chunks = [_windows(keys, start, part, passes) for start in range(0, len(keys), CHUNK_TEXTS)]
    texts, hashes = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    order = np.argsort(hashes)
    texts, hashes = texts[order], hashes[order]
    again = np.zeros(len(texts), dtype=bool)
    again[1:] = hashes[1:] == hashes[:-1]
    again[:-1] |= again[1:]
    sizes += np.bincount(texts[~again], minlength=len(sizes))
    texts, hashes = texts[again], hashes[again]
    order = np.lexsort((texts, hashes))
    texts, hashes = texts[order], hashes[order]
    new = np.ones(len(texts), dtype=bool)
    new[1:] = (texts[1:] != texts[:-1]) | (hashes[1:] != hashes[:-1])
    texts, hashes = texts[new], hashes[new]
    sizes += np.bincount(texts, minlength=len(sizes))
    return texts, hashes


def _windows(keys: Sequence[str], start: int, part: int, passes: int) -> tuple[Ints, _Hashes]:
    """(text, hash) of every window of the texts of one chunk that belongs to this pass."""
    chosen = keys[start : start + CHUNK_TEXTS]
    lengths = np.array([len(key) for key in chosen], dtype=np.int64)
    hashes = np.frombuffer("".join(chosen).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    hashes *= np.uint64(_MULTIPLIER)
    hashes ^= hashes >> np.uint64(29)
    factor, width = _MULTIPLIER, 1
    while width < WINDOW and len(hashes) > width:  # hashes of 2, 4, 8, 16 characters from those of half as many
        hashes = hashes[:-width] * np.uint64(factor) + hashes[width:]
        factor, width = factor * factor % 2**64, 2 * width
    texts = np.repeat(np.arange(len(chosen)), lengths)
    whole = np.cumsum(lengths)[texts] - np.arange(len(texts)) >= WINDOW
    texts, hashes = texts[whole], hashes[whole[: len(hashes)]]
    mine = (hashes >> np.uint64(40)) % np.uint64(passes) == part
    return texts[mine] + start, hashes[mine]


def _added(found: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Counts of the same pairs added up."""
    pairs, where = np.unique(np.concatenate([part[0] for part in found]), return_inverse=True)
    counts = np.bincount(where, weights=np.concatenate([part[1] for part in found]), minlength=len(pairs))
    return pairs, counts.astype(np.int64)
