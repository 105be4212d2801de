"""Interactive rows first, bulk all the same."""

import asyncio
import contextlib
import random
from dataclasses import replace

import numpy as np
import pytest
from batcher_fixtures import soon, started, submit
from service_fixtures import FakeEngine, async_test, eventually
from virtual_time import TimedEngine, simulated, virtual_test

from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Limits
from lengnuan.service.errors import Overloaded

# Of a CPU core and the settings as they come.
CPU = {"batch_s": 0.001, "token_s": 0.00015}
SERVED = Limits(
    max_rows=64,
    max_tokens=2048,
    max_padding_share=0.5,
    enough_tokens=128,
    queue_items=4096,
    queue_tokens=1 << 19,
    queue_wait_s=5.0,
    bulk_run_s=0.01,
    bulk_wait_s=0.25,
)
SECONDS = 10.0


INTERACTIVE, BULK = 1, 2  # first token of a row


def text(draw: random.Random, first: int) -> list[int]:
    return [first, *(draw.randrange(3, 20_000) for _ in range(draw.randrange(8, 40)))]


async def interactive(batcher: Batcher, rate: float) -> list[float]:
    """Latencies of single rows that come at random, so many a second."""
    draw, loop = random.Random(1), asyncio.get_running_loop()
    latencies: list[float] = []

    async def ask() -> None:
        begin = loop.time()
        with contextlib.suppress(Overloaded):
            await batcher.score([text(draw, INTERACTIVE)], begin + 10.0)
            latencies.append(loop.time() - begin)

    end = loop.time() + SECONDS
    async with asyncio.TaskGroup() as tasks:
        while loop.time() < end:
            tasks.create_task(ask())
            await asyncio.sleep(draw.expovariate(rate))
    return latencies


async def flood(batcher: Batcher, number: int) -> None:
    """A caller who asks for many bulk rows at a time, again and again."""
    draw, loop = random.Random(number), asyncio.get_running_loop()
    while True:
        rows = [text(draw, BULK) for _ in range(128)]
        try:
            await batcher.score(rows, loop.time() + 60.0, "bulk")
        except Overloaded as error:
            await asyncio.sleep(float(error.headers["Retry-After"]))


async def measured(rate: float, floods: int) -> tuple[list[float], float]:
    """Latencies of interactive rows, and how many bulk rows were run a second."""
    engine = TimedEngine(**CPU)
    async with simulated(engine, SERVED) as (batcher, _):
        flooding = [asyncio.create_task(flood(batcher, number)) for number in range(floods)]
        latencies = await interactive(batcher, rate)
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
    return latencies, [row[0] for row in engine.rows].count(BULK) / SECONDS


@virtual_test
async def test_a_flood_of_bulk_leaves_interactive_rows_within_twice_their_time_and_gets_on() -> None:
    alone, _ = await measured(rate=100.0, floods=0)
    beside, bulk = await measured(rate=100.0, floods=8)
    assert len(beside) == len(alone) > 900
    assert np.quantile(beside, 0.99) <= 2 * np.quantile(alone, 0.99)
    assert bulk > 80  # of about 250 rows a second that the engine makes


@virtual_test
async def test_bulk_gets_on_while_interactive_rows_alone_are_too_many() -> None:
    _, bulk = await measured(rate=600.0, floods=2)
    assert bulk > 3  # a batch every quarter of a second, and whatever the engine has begun before it


@async_test
async def test_interactive_rows_overtake_bulk() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        bulk = asyncio.create_task(batcher.score([[6], [7]], soon(), "bulk"))
        await eventually(lambda: batcher.waiting.items("bulk") == 2)
        later = submit(batcher, [8])
        await eventually(lambda: len(batcher.waiting) == 3)
        engine.gate.set()
        await asyncio.gather(running, bulk, later)
    assert engine.rows == [[5], [8], [6], [7]]


@virtual_test
async def test_bulk_that_has_waited_for_long_goes_first_but_only_once_in_a_while() -> None:
    engine = TimedEngine(batch_s=0.6, token_s=0.0)
    async with simulated(engine, replace(SERVED, max_rows=1, queue_wait_s=60.0, bulk_wait_s=1.0)) as (batcher, _):
        await asyncio.gather(
            batcher.score([[1, n] for n in range(5)], soon()), batcher.score([[2, n] for n in range(3)], soon(), "bulk")
        )
    assert [first for first, _ in engine.rows] == [1, 1, 1, 2, 1, 1, 2, 2]


@async_test
async def test_a_queue_full_of_bulk_refuses_bulk_only() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        bulk = asyncio.create_task(batcher.score([[6]] * 16, soon(), "bulk"))
        await eventually(lambda: len(batcher.waiting) == 16)
        with pytest.raises(Overloaded, match="texts"):
            await batcher.score([[7]], soon(), "bulk")
        later = submit(batcher, [8])
        await eventually(lambda: batcher.waiting.items("interactive") == 1)
        engine.gate.set()
        await asyncio.gather(running, bulk, later)


@async_test
async def test_a_row_that_runs_for_one_priority_answers_the_other_too() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = asyncio.create_task(batcher.score([[5]], soon(), "bulk"))
        await engine.wait_entered()
        later = submit(batcher, [5])
        await eventually(lambda: len(batcher.waiting) == 1)
        engine.gate.set()
        await asyncio.gather(running, later)
    assert engine.rows == [[5]]
