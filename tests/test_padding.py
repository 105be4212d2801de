import numpy as np
import pytest

from lengnuan.model.padding import pad


def test_rows_are_padded_on_the_right_to_the_longest() -> None:
    token_ids, mask = pad([[5, 6, 7], [8]], pad_id=9)
    assert token_ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_types() -> None:
    token_ids, mask = pad([[1]], pad_id=0)
    assert (token_ids.dtype, mask.dtype) == (np.int64, np.bool_)


def test_an_empty_row_is_all_padding() -> None:
    token_ids, mask = pad([[], [4, 5]], pad_id=0)
    assert token_ids.tolist() == [[0, 0], [4, 5]]
    assert mask.tolist() == [[False, False], [True, True]]


def test_empty_rows_alone_still_have_one_column() -> None:
    token_ids, mask = pad([[], []], pad_id=3)
    assert token_ids.tolist() == [[3], [3]]
    assert not mask.any()


def test_the_pad_id_inside_a_row_is_a_real_token() -> None:
    _, mask = pad([[0, 0], [1, 2]], pad_id=0)
    assert mask.all()


def test_arguments_are_not_changed() -> None:
    rows = [[1, 2], [3]]
    pad(rows, pad_id=0)
    assert rows == [[1, 2], [3]]


def test_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        pad([], pad_id=0)
