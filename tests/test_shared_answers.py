"""Texts that come twice, at once or later, are run once."""

import asyncio

import pytest
from batcher_fixtures import POISON_ID, soon, started, submit
from service_fixtures import FakeEngine, async_test, eventually, logits_of, value

from lengnuan.service.batching import Scored
from lengnuan.service.errors import EngineFailed, Overloaded


@async_test
async def test_equal_rows_are_run_once_for_all_who_wait() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, metrics):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        late, others = submit(batcher, [5]), [submit(batcher, [6, 7]) for _ in range(9)]
        await eventually(lambda: len(batcher.waiting) == 10)
        engine.gate.set()
        answers = [answer for [answer] in await asyncio.gather(running, late, *others)]
    assert engine.rows == [[5], [6, 7]]
    wanted = [logits_of([5])] * 2 + [logits_of([6, 7])] * 9
    assert [answer.logits.tolist() for answer in answers] == [pytest.approx(logits) for logits in wanted]
    assert all(answer.queue_s >= 0 for answer in answers)
    assert value(metrics.registry, "shared_answers_total") == 9


@async_test
async def test_a_caller_who_leaves_takes_no_answer_from_those_with_the_same_row() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        leaving = submit(batcher, [5])
        await engine.wait_entered()
        staying = submit(batcher, [5])
        await eventually(lambda: len(batcher.waiting) == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        engine.gate.set()
        [answer] = await staying
    assert isinstance(answer, Scored)
    assert engine.rows == [[5]]


@async_test
async def test_equal_rows_fail_alike() -> None:
    async with started(FakeEngine(poison=POISON_ID)) as (batcher, metrics):
        answers = await batcher.score([[POISON_ID], [POISON_ID], [5]], soon())
    assert [type(answer) for answer in answers] == [EngineFailed, EngineFailed, Scored]
    assert value(metrics.registry, "backend_errors_total", kind="runtime") == 1


@async_test
async def test_an_answer_that_is_kept_needs_no_engine_and_no_room() -> None:
    engine = FakeEngine()
    async with started(engine, cache_size=2) as (batcher, metrics):
        [before] = await batcher.score([[5, 6]], soon())
        engine.gate.clear()
        [after] = await batcher.score([[5, 6]], soon())
        with pytest.raises(Overloaded):
            await batcher.score([[5, 6], *([n] for n in range(17))], soon())
        engine.gate.set()
    assert engine.rows == [[5, 6]]
    assert after.logits.tolist() == before.logits.tolist()
    assert value(metrics.registry, "cache_lookups_total", result="hit") == 1
    assert value(metrics.registry, "cache_lookups_total", result="miss") == 1


@async_test
async def test_failures_are_not_kept() -> None:
    engine = FakeEngine(poison=POISON_ID)
    async with started(engine, cache_size=9) as (batcher, _):
        await batcher.score([[POISON_ID]], soon())
        engine.poison = None
        [answer] = await batcher.score([[POISON_ID]], soon())
    assert isinstance(answer, Scored)
