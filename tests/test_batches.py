"""Batches: every row once, in an order that (seed, epoch) alone decides, within the token budget."""

import numpy as np
import pytest
import torch

from lengnuan.model.tokenizer import PAD_ID
from lengnuan.training.batches import Collator, Ragged, cut_by_tokens, training_order

BUDGET = 256
LENGTHS = np.random.default_rng(0).integers(1, 100, 1000)


def test_every_row_comes_once() -> None:
    order = training_order(LENGTHS, BUDGET, seed=1, epoch=0)
    assert sorted(np.concatenate(order)) == list(range(len(LENGTHS)))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def rows(seed: int, epoch: int) -> list[int]:
        return np.concatenate(training_order(LENGTHS, BUDGET, seed=seed, epoch=epoch)).tolist()

    assert rows(1, 2) == rows(1, 2)
    assert rows(1, 2) != rows(1, 3)
    assert rows(1, 2) != rows(2, 2)
    assert rows(1, 2) != rows(2, 1)


def test_no_batch_is_over_the_budget() -> None:
    for batch in training_order(LENGTHS, BUDGET, seed=1, epoch=0):
        assert len(batch) * LENGTHS[batch].max() <= BUDGET


def test_little_is_padded() -> None:
    order = training_order(LENGTHS, BUDGET, seed=1, epoch=0)
    padded = sum(len(batch) * LENGTHS[batch].max() for batch in order)
    assert LENGTHS.sum() / padded > 0.9


def test_batches_do_not_come_by_length() -> None:
    longest = [LENGTHS[batch].max() for batch in training_order(LENGTHS, BUDGET, seed=1, epoch=0)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_a_file_sorted_by_label_is_mixed() -> None:
    labels = np.repeat([0, 1], 500)
    order = training_order(np.full(1000, 8), BUDGET, seed=1, epoch=0)  # 32 rows a batch
    shares = [labels[batch].mean() for batch in order]
    assert all(0.1 < share < 0.9 for share in shares)


def test_fewer_rows_than_a_batch_are_one_batch() -> None:
    order = training_order(np.array([3, 1, 2]), BUDGET, seed=1, epoch=0)
    assert [sorted(batch) for batch in order] == [[0, 1, 2]]


def test_a_row_over_the_budget_is_a_batch_of_its_own() -> None:
    lengths = np.array([5, 300, 5])
    assert [batch.tolist() for batch in cut_by_tokens(np.arange(3), lengths, BUDGET)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [([], []), ([4], [[0]]), ([4, 4, 4], [[0, 1], [2]]), ([2, 2, 4, 1], [[0, 1], [2, 3]])],
)
def test_consecutive_rows_are_cut_where_the_padded_size_would_be_too_large(
    lengths: list[int], batches: list[list[int]]
) -> None:
    rows = np.arange(len(lengths))
    assert [batch.tolist() for batch in cut_by_tokens(rows, np.array(lengths, dtype=np.int64), 8)] == batches


def test_ragged_gives_back_its_rows() -> None:
    rows = [[5, 6, 7], [], [8], [9, 5]]
    ragged = Ragged(iter(rows))
    assert len(ragged) == 4
    assert [ragged[i].tolist() for i in range(4)] == rows
    assert ragged.lengths.tolist() == [3, 0, 1, 2]
    assert ragged.distinct().tolist() == [5, 6, 7, 8, 9]


def test_ragged_without_rows() -> None:
    assert len(Ragged([])) == 0
    assert Ragged([]).distinct().tolist() == []


def test_a_batch_is_the_asked_rows_padded_with_their_targets() -> None:
    collate = Collator(Ragged([[5, 6, 7], [8], [9, 5]]), np.eye(3, dtype=np.float32), torch.device("cpu"))
    batch = collate(np.array([1, 0]))
    assert batch.token_ids.tolist() == [[8, PAD_ID, PAD_ID], [5, 6, 7]]
    assert batch.mask.tolist() == [[True, False, False], [True, True, True]]
    assert batch.targets.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert (batch.token_ids.dtype, batch.mask.dtype, batch.targets.dtype) == (torch.int64, torch.bool, torch.float32)
    assert batch.tokens == 4


def test_a_batch_without_targets() -> None:
    assert len(Collator(Ragged([[5]]), None, torch.device("cpu"))(np.array([0])).targets) == 0
