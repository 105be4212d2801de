"""Which of the waiting rows run next."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.service.batching import Limits, Pending, take_batch

LIMITS = Limits(max_rows=4, max_tokens=32, max_padding_share=0.5, enough_tokens=32, queue_items=16, queue_tokens=200)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def waiting(loop: asyncio.AbstractEventLoop, *lengths: int) -> list[Pending]:
    """Different rows of these lengths, oldest first, due at 100."""
    ids = ([*[7] * (length - 1), 1000 + age] for age, length in enumerate(lengths))
    return [Pending(row, loop.create_future(), float(age), 100.0) for age, row in enumerate(ids)]


def lengths(rows: list[Pending]) -> list[int]:
    return [len(row.ids) for row in rows]


def test_nothing_waiting_makes_an_empty_batch() -> None:
    assert take_batch([], LIMITS, 0.0).rows == []


def test_everything_goes_when_it_fits(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, 3, 4, 3), LIMITS, 0.0)
    assert lengths(batch.rows) == [3, 3, 4]
    assert batch.reason == "idle"


def test_rows_are_bounded(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, 1, 1, 1, 1, 1), LIMITS, 0.0)
    assert (len(batch.rows), batch.reason) == (4, "full_rows")


def test_padded_tokens_are_bounded_not_real_ones(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, 12, 8, 7), LIMITS, 0.0)
    assert lengths(batch.rows) == [12, 8]  # 27 real tokens, but 36 padded ones
    assert batch.reason == "full_tokens"


def test_the_oldest_goes_and_rows_of_its_length_with_it(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, 2, 20, 2, 20, 3), LIMITS, 0.0)
    assert lengths(batch.rows) == [2, 2, 3]
    assert batch.reason == "full_tokens"


def test_a_row_that_would_be_mostly_padding_waits(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, 1, 1, 8), LIMITS, 0.0)
    assert (lengths(batch.rows), batch.reason) == ([1, 1], "lengths")


def test_equal_lengths_go_oldest_first(loop: asyncio.AbstractEventLoop) -> None:
    batch = take_batch(waiting(loop, *[2] * 6), LIMITS, 0.0)
    assert [row.enqueued_at for row in batch.rows] == [0, 1, 2, 3]


def test_rows_of_a_caller_who_is_gone_are_dropped(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 2, 2)
    rows[0].future.cancel()
    batch = take_batch(rows, LIMITS, 0.0)
    assert (batch.rows, batch.dropped) == ([rows[1]], [rows[0]])


def test_rows_past_their_deadline_are_dropped(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 2, 2)
    late = replace(rows[0], deadline=5.0)
    batch = take_batch([late, rows[1]], LIMITS, 5.0)
    assert (batch.rows, batch.dropped) == ([rows[1]], [late])


def test_of_equal_rows_the_oldest_goes_alone(loop: asyncio.AbstractEventLoop) -> None:
    first, second, *others = waiting(loop, 2, 2, 2, 2, 2)
    others[1] = replace(others[1], ids=first.ids)
    assert take_batch([first, second, *others], LIMITS, 0.0).rows == [first, second, others[0], others[2]]


def test_what_waits_is_left_untouched(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 1, 9, 2, 8)
    before = list(rows)
    take_batch(rows, LIMITS, 0.0)
    assert rows == before


@given(st.lists(st.integers(1, 32), min_size=1, max_size=60), st.integers(1, 8))
def test_no_batch_passes_a_limit_and_nothing_starves(sizes: list[int], max_rows: int) -> None:
    loop = asyncio.new_event_loop()
    limits = replace(LIMITS, max_rows=max_rows)
    left = waiting(loop, *sizes)
    loop.close()
    for _ in range(len(sizes)):
        if not left:
            break
        rows = take_batch(left, limits, 0.0).rows
        assert left[0] in rows
        assert len(rows) <= max_rows
        assert max(lengths(rows)) * len(rows) <= limits.max_tokens
        left = [row for row in left if row not in rows]
    assert not left


def test_a_batch_with_enough_in_it_keeps_to_one_width(loop: asyncio.AbstractEventLoop) -> None:
    limits = replace(LIMITS, max_rows=64, max_tokens=4096, enough_tokens=128)
    batch = take_batch(waiting(loop, 30, 33, 31, 12, 29, 17, 30, 16), limits, 0.0)
    assert lengths(batch.rows) == [30, 30, 31, 29, 17]  # all of 17 to 32 tokens, none that would be padded to 48
    assert batch.reason == "lengths"


def test_a_batch_with_too_little_in_it_takes_rows_of_other_widths(loop: asyncio.AbstractEventLoop) -> None:
    limits = replace(LIMITS, max_rows=64, max_tokens=4096, enough_tokens=128)
    batch = take_batch(waiting(loop, 30, 33, 31), limits, 0.0)
    assert lengths(batch.rows) == [30, 31, 33]


def test_rows_of_the_oldest_rows_width_come_before_nearer_ones_of_another(loop: asyncio.AbstractEventLoop) -> None:
    limits = replace(LIMITS, max_rows=2, max_tokens=4096, enough_tokens=128)
    assert lengths(take_batch(waiting(loop, 32, 33, 25), limits, 0.0).rows) == [32, 25]


def test_a_row_is_overtaken_by_two_full_batches_at_most(loop: asyncio.AbstractEventLoop) -> None:
    assert lengths(take_batch(waiting(loop, 2, 20, 20, 20, 2), LIMITS, 0.0).rows) == [2, 2]
    assert lengths(take_batch(waiting(loop, 2, 20, 20, 20, 20, 2), LIMITS, 0.0).rows) == [2]


def test_beyond_a_full_batch_it_looks_only_for_want_of_rows_of_its_width(loop: asyncio.AbstractEventLoop) -> None:
    limits = replace(LIMITS, max_rows=64, max_tokens=64, enough_tokens=16)
    many, few = waiting(loop, 10, 10, 10, 20, 20, 10), waiting(loop, 10, 20, 20, 20, 10)
    assert lengths(take_batch(many, limits, 0.0).rows) == [10, 10, 10]  # the last one came after a full batch
    assert lengths(take_batch(few, limits, 0.0).rows) == [10, 10]
    assert take_batch(many, limits, 0.0).reason == "full_tokens"  # and not "idle": others stay behind


def test_rows_that_go_with_another_leave_the_others_in_sight(loop: asyncio.AbstractEventLoop) -> None:
    copies = [Pending([5] * 8, loop.create_future(), 0.0, 100.0) for _ in range(20)]
    batch = take_batch([*copies, *waiting(loop, 8, 8, 8, 8, 8)], LIMITS, 0.0)
    assert lengths(batch.rows) == [8, 8, 8, 8]
    assert batch.reason == "full_rows"
