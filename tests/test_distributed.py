"""How work is dealt out to processes; what they do to each other is in integration/test_distributed.py."""

from itertools import chain

import numpy as np
import pytest

from lengnuan.training import distributed
from lengnuan.training.batches import draw_seed
from lengnuan.training.distributed import anywhere, from_first, joined, own_part, rounds, sum_gradients, world
from lengnuan.training.errors import UsageError

STEP = [np.arange(5), np.arange(5, 6), np.arange(6, 14)]


def as_process(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world", lambda: world)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_every_row_of_a_step_is_trained_on_by_one_process(
    monkeypatch: pytest.MonkeyPatch, processes: int, whole: bool
) -> None:
    parts = []
    for rank in range(processes):
        as_process(monkeypatch, rank, processes)
        parts.append(own_part(STEP, whole=whole))
    rows = [row for part in parts for batch in part for row in batch.tolist()]
    assert sorted(rows) == list(range(14))
    if whole:
        assert all(any(batch is one for one in STEP) for part in parts for batch in part)
    assert all(len(batch) for part in parts for batch in part)


@pytest.mark.parametrize("items", [0, 1, 4, 5])
def test_every_process_has_the_same_number_of_rounds(monkeypatch: pytest.MonkeyPatch, items: int) -> None:
    dealt = []
    for rank in range(3):
        as_process(monkeypatch, rank, 3)
        dealt.append(rounds(range(items)))
    assert len(set(map(len, dealt))) == 1
    assert [item for item in chain(*zip(*dealt, strict=True)) if item is not None] == list(range(items))


def test_a_single_process_is_left_as_it_is() -> None:
    with joined():
        assert world() == 1
        assert from_first(lambda: 7) == 7
        assert [anywhere(True), anywhere(False)] == [True, False]
        assert sum_gradients([], 0.5) == 0.5
        assert own_part(STEP, whole=True) == STEP


def test_what_the_first_process_raises_is_raised() -> None:
    def refuse() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        from_first(refuse)


def test_draws_depend_on_seed_step_and_first_row() -> None:
    seeds = {draw_seed(seed, step, np.array([row, 9])) for seed in (1, 2) for step in (0, 1) for row in (0, 5)}
    assert len(seeds) == 8
    assert draw_seed(1, 2, np.array([3, 4])) == draw_seed(1, 2, np.array([3, 8]))
