"""Answers kept for texts that come again."""

import numpy as np

from lengnuan.service.cache import LogitsCache


def logits(number: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.array([number, -number], dtype=np.float32)


def test_what_was_put_is_found_and_nothing_else() -> None:
    cache = LogitsCache(2)
    cache.put(b"a", logits(1))
    assert cache.get(b"a").tolist() == [1, -1]
    assert cache.get(b"b") is None


def test_the_one_unused_for_longest_goes_first() -> None:
    cache = LogitsCache(2)
    cache.put(b"a", logits(1))
    cache.put(b"b", logits(2))
    cache.get(b"a")
    cache.put(b"c", logits(3))
    assert [cache.get(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert len(cache) == 2


def test_an_answer_put_again_counts_once() -> None:
    cache = LogitsCache(2)
    for _ in range(3):
        cache.put(b"a", logits(1))
    cache.put(b"b", logits(2))
    assert len(cache) == 2
    assert cache.get(b"a") is not None


def test_of_a_batch_only_the_row_is_kept() -> None:
    batch = np.ones((64, 2), dtype=np.float32)
    cache = LogitsCache(1)
    cache.put(b"a", batch[3])
    batch[3] = 7
    assert cache.get(b"a").tolist() == [1, 1]
    assert cache.get(b"a").base is None


def test_size_zero_keeps_nothing() -> None:
    cache = LogitsCache(0)
    cache.put(b"a", logits(1))
    assert cache.get(b"a") is None
    assert len(cache) == 0
