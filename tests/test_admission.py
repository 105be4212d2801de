"""Who is let in, and how long those who are should have to wait."""

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
from batcher_fixtures import LIMITS, soon, started, submit
from service_fixtures import FakeEngine, async_test, eventually, value
from virtual_time import TimedEngine, simulated, virtual_test

from lengnuan.service.batching import Pending
from lengnuan.service.budget import CAUTION, Budget
from lengnuan.service.errors import Overloaded, ServiceError
from lengnuan.service.waiting import Waiting

SLOW = {"batch_s": 0.01, "token_s": 0.001}  # 32 tokens in 42 ms: about 760 a second


def waiting(*lengths: int, at: float = 0.0) -> Waiting:
    async def fill() -> Waiting:
        rows = Waiting(replace(LIMITS, queue_wait_s=5.0))
        loop = asyncio.get_running_loop()
        rows.add([Pending([7] * length, loop.create_future(), at, 100.0) for length in lengths])
        return rows

    return asyncio.run(fill())


@pytest.mark.parametrize(
    ("rows", "tokens", "now", "wait_s", "limit", "actual"),
    [
        (14, 14, 0.0, 0.0, None, None),
        (15, 15, 0.0, 0.0, 16, 17),
        (2, 190, 0.0, 0.0, None, None),
        (2, 191, 0.0, 0.0, 200, 201),
        (1, 1, 5.0, 0.0, None, None),
        (1, 1, 5.5, 0.0, 5000, 5500),
        (1, 1, 0.0, 5.0, None, None),
        (1, 1, 0.0, 6.0, 5000, 6000),
    ],
)
def test_what_keeps_rows_out(
    rows: int, tokens: int, now: float, wait_s: float, limit: int | None, actual: int | None
) -> None:
    full = waiting(4, 6).lack_of_room("interactive", rows, tokens, now, wait_s)
    assert (full and full.limit, full and full.actual) == (limit, actual)


def test_the_other_priority_s_rows_and_age_do_not_count() -> None:
    assert waiting(*[10] * 16).lack_of_room("bulk", 16, 200, 60.0, 60.0) is None


@async_test
async def test_a_text_that_has_waited_for_too_long_keeps_others_out() -> None:
    engine = FakeEngine()
    async with started(engine, replace(LIMITS, queue_wait_s=0.01)) as (batcher, _):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        queued = submit(batcher, [6])
        await eventually(lambda: len(batcher.waiting) == 1)
        await asyncio.sleep(0.02)
        with pytest.raises(Overloaded, match="milliseconds") as refusal:
            await batcher.score([[7]], soon())
        assert refusal.value.limit == 10
        engine.gate.set()
        await asyncio.gather(running, queued)
        await batcher.score([[7]], soon())


def test_the_pace_of_single_rows_refuses_nobody_but_that_of_full_batches_may() -> None:
    budget = Budget(LIMITS, workers=2)
    assert (budget.seconds_for(100), budget.wait_s(100)) == (None, 0.0)
    budget.ran(tokens=10, seconds=1.0, full=False)
    assert (budget.seconds_for(100), budget.wait_s(100)) == (5.0, 0.0)
    budget.ran(tokens=100, seconds=1.0, full=True)
    assert (budget.seconds_for(100), budget.wait_s(100)) == (0.5, CAUTION * 0.5)
    budget.ran(tokens=10, seconds=1.0, full=False)
    assert budget.wait_s(100) == CAUTION * 0.5


def test_the_pace_is_that_of_all_tokens_not_the_mean_of_the_batches() -> None:
    budget = Budget(LIMITS, workers=1)
    for _ in range(200):
        budget.ran(tokens=100, seconds=0.1, full=True)  # 1,000 a second
        budget.ran(tokens=100, seconds=0.4, full=True)  # 250 a second; together 400, not 625
    found = budget.seconds_for(400)
    assert found is not None
    assert abs(found - 1.0) < 0.05


def test_the_pace_forgets() -> None:
    budget = Budget(LIMITS, workers=1)
    budget.ran(tokens=1000, seconds=1.0, full=True)
    for _ in range(30):
        budget.ran(tokens=100, seconds=1.0, full=True)
    found = budget.seconds_for(100)
    assert found is not None
    assert abs(found - 1.0) < 0.05


def test_after_a_pause_small_batches_show_that_the_engine_is_as_fast_as_before() -> None:
    budget = Budget(LIMITS, workers=1)
    budget.ran(tokens=1000, seconds=60.0, full=True)  # the process was stopped meanwhile
    for _ in range(200):
        budget.ran(tokens=100, seconds=0.1, full=False)  # refusals leave too little for a full one
    found = budget.seconds_for(1000)
    assert found is not None
    assert found < 1.2


@virtual_test
async def test_time_between_batches_counts_as_the_engine_s() -> None:
    limits = replace(LIMITS, max_rows=1)
    async with simulated(TimedEngine(batch_s=0.1, token_s=0.0), limits) as (batcher, _):
        await batcher.score([[n] * 10 for n in range(3, 13)], asyncio.get_running_loop().time() + 10.0)
        now = asyncio.get_running_loop().time()
        assert batcher.budget.seconds_for(10) == pytest.approx(now / 10, rel=0.05)


@async_test
async def test_a_small_batch_beside_rows_of_other_lengths_says_nothing_of_the_pace() -> None:
    async with started(FakeEngine()) as (batcher, _):
        await batcher.score([[5], [6], [7] * 8], soon())
        assert batcher.budget.wait_s(1000) == 0.0
        await batcher.score([[n] for n in range(10, 15)], soon())
        assert batcher.budget.wait_s(1000) > 0.0


@virtual_test
async def test_at_ten_times_what_the_engine_makes_the_accepted_are_in_time_and_the_rest_is_refused_at_once() -> None:
    limits = replace(LIMITS, queue_items=400, queue_tokens=4000, queue_wait_s=1.0)
    draw, loop = random.Random(0), asyncio.get_running_loop()
    latencies: list[float] = []
    refusals: list[tuple[float, int]] = []
    longest = 0

    async with simulated(TimedEngine(**SLOW), limits) as (batcher, metrics):

        async def ask() -> None:
            begin = loop.time()
            try:
                [answer] = await batcher.score([[draw.randrange(3, 20_000) for _ in range(8)]], begin + 10.0)
                assert not isinstance(answer, ServiceError)
                latencies.append(loop.time() - begin)
            except Overloaded as error:
                refusals.append((loop.time() - begin, int(error.headers["Retry-After"])))

        async with asyncio.TaskGroup() as tasks:
            while loop.time() < 10.0:
                tasks.create_task(ask())
                await asyncio.sleep(draw.expovariate(950.0))
                longest = max(longest, len(batcher.waiting))
        executed = value(metrics.registry, "batch_rows_sum")
    service_s = 2 * (0.01 + 0.001 * 32)  # the batch in progress, and the one ahead of time
    assert np.quantile(latencies, 0.99) <= limits.queue_wait_s + service_s + 0.05
    assert executed == len(latencies) > 800
    assert len(refusals) > 8000
    assert {waited for waited, _ in refusals} == {0.0}
    assert {after for _, after in refusals} <= {1, 2}
    assert longest <= limits.queue_items
