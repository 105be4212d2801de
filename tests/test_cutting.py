"""Which tokens of a long text are read: every rule keeps the limit, and windows miss nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.cutting import SHARED, Cutting, parts
from lengnuan.model.tokenizer import cut

CUTTINGS: tuple[Cutting, ...] = ("truncate", "head", "tail", "window")


@pytest.mark.parametrize("cutting", CUTTINGS)
def test_a_text_that_fits_stays_whole(cutting: Cutting) -> None:
    assert parts(range(8), 8, cutting, enclosed=False) == [list(range(8))]


def test_truncate_is_what_the_model_was_trained_with() -> None:
    assert parts(range(20), 7, "truncate", enclosed=True) == [cut(range(20), 7)]


@pytest.mark.parametrize(
    ("cutting", "enclosed", "expected"),
    [
        ("head", False, [0, 1, 2, 3]),
        ("tail", False, [6, 7, 8, 9]),
        ("head", True, [0, 1, 2, 9]),
        ("tail", True, [0, 7, 8, 9]),
    ],
)
def test_head_and_tail_keep_the_ends_of_an_enclosed_text(cutting: Cutting, enclosed: bool, expected: list[int]) -> None:
    assert parts(range(10), 4, cutting, enclosed) == [expected]


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from(CUTTINGS), st.booleans())
def test_no_part_is_longer_than_the_model_reads(length: int, limit: int, cutting: Cutting, enclosed: bool) -> None:
    assert all(1 <= len(part) <= limit for part in parts(range(length), limit, cutting, enclosed))


@given(st.integers(1, 300), st.integers(1, 40))
def test_windows_read_every_token_in_order_and_overlap(length: int, limit: int) -> None:
    windows = parts(range(length), limit, "window", enclosed=False)
    assert sorted({token for window in windows for token in window}) == list(range(length))
    assert all(window == list(range(window[0], window[-1] + 1)) for window in windows)
    shared = [earlier[-1] - later[0] + 1 for earlier, later in itertools.pairwise(windows)]
    assert all(tokens >= int(SHARED * limit) for tokens in shared)


@given(st.integers(4, 300), st.integers(3, 40))
def test_every_window_of_an_enclosed_text_is_enclosed(length: int, limit: int) -> None:
    windows = parts(range(length), limit, "window", enclosed=True)
    assert all((window[0], window[-1]) == (0, length - 1) for window in windows)
    assert {token for window in windows for token in window} == set(range(length))
