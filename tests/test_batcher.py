"""The promises of the queue: to those who wait in it, and of what it runs."""

import asyncio
import gc
import time
import weakref
from dataclasses import replace

import pytest
from batcher_fixtures import LIMITS, NAN_ID, POISON_ID, soon, started, submit
from service_fixtures import FakeEngine, async_test, eventually, logits_of, value

from lengnuan.service import batcher as batcher_module
from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Scored
from lengnuan.service.errors import DeadlineExceeded, EngineFailed, NotReady, Overloaded


@async_test
async def test_each_row_gets_its_own_logits_in_order() -> None:
    rows = [[n] * (n % 7 + 1) for n in range(3, 19)]
    async with started(FakeEngine()) as (batcher, _):
        scored = await batcher.score(rows, soon())
    assert [score.logits.tolist() for score in scored] == [pytest.approx(logits_of(row)) for row in rows]


@async_test
async def test_concurrent_callers_get_their_own_logits() -> None:
    rows = [[300 + n, n] for n in range(500)]
    async with started(FakeEngine(), replace(LIMITS, queue_items=600, queue_tokens=2000)) as (batcher, _):
        scored = await asyncio.gather(*(batcher.score([row], soon()) for row in rows))
    assert [score.logits.tolist() for [score] in scored] == [pytest.approx(logits_of(row)) for row in rows]


@async_test
async def test_an_idle_batcher_runs_one_row_at_once_and_alone() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        await batcher.score([[5, 6]], soon())
    assert engine.shapes == [(1, 2)]


@async_test
async def test_a_batch_forms_while_the_engine_is_busy() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, metrics):
        engine.gate.clear()
        first = submit(batcher, [5])
        await engine.wait_entered()
        others = [submit(batcher, [n]) for n in (6, 7, 8)]
        await eventually(lambda: len(batcher.waiting) == 3)
        engine.gate.set()
        await asyncio.gather(first, *others)
    assert engine.shapes == [(1, 1), (3, 1)]
    assert value(metrics.registry, "batch_rows_count") == 2


@async_test
async def test_no_executed_batch_passes_a_limit() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        await batcher.score([[9] * (n % 9 + 1) for n in range(16)], soon())
    assert all(rows <= LIMITS.max_rows and rows * tokens <= LIMITS.max_tokens for rows, tokens in engine.shapes)


@async_test
async def test_a_request_is_admitted_whole_or_not_at_all() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        queued = submit(batcher, *[[6]] * 10)
        await eventually(lambda: len(batcher.waiting) == 10)
        with pytest.raises(Overloaded) as refusal:
            await batcher.score([[7]] * 7, soon())
        assert len(batcher.waiting) == 10
        assert (refusal.value.limit, refusal.value.actual) == (16, 17)
        engine.gate.set()
        await asyncio.gather(running, queued)
    assert [7] not in engine.rows


@async_test
async def test_tokens_are_bounded_too() -> None:
    async with started(FakeEngine()) as (batcher, _):
        with pytest.raises(Overloaded, match="tokens") as refusal:
            await batcher.score([[7] * 30] * 7, soon())
    assert (refusal.value.limit, refusal.value.actual) == (200, 210)


@async_test
async def test_retry_after_is_a_whole_number_of_seconds() -> None:
    async with started(FakeEngine()) as (batcher, _):
        with pytest.raises(Overloaded) as refusal:
            await batcher.score([[7]] * 17, soon())
    assert int(refusal.value.headers["Retry-After"]) >= 1


@async_test
async def test_the_deadline_passes_while_the_engine_is_stuck() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = asyncio.create_task(batcher.score([[5]], time.monotonic() + 0.05))
        await engine.wait_entered()
        [queued] = await batcher.score([[6]], time.monotonic() + 0.05)
        [stuck] = await running
        assert not engine.gate.is_set()
        assert isinstance(queued, DeadlineExceeded)
        assert queued.stage == "queue"
        assert isinstance(stuck, DeadlineExceeded)
        assert stuck.stage == "infer"
        assert not batcher.waiting
        engine.gate.set()
        await batcher.score([[7]], soon())
    assert [6] not in engine.rows


@async_test
async def test_rows_of_a_cancelled_caller_are_never_run() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running = submit(batcher, [5])
        await engine.wait_entered()
        leaving = submit(batcher, [6], [6, 6])
        await eventually(lambda: len(batcher.waiting) == 2)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert (len(batcher.waiting), batcher.waiting.tokens("interactive")) == (0, 0)
        engine.gate.set()
        await running
    assert engine.rows == [[5]]


@async_test
async def test_a_caller_cancelled_while_its_row_runs_harms_nobody() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        leaving = submit(batcher, [5])
        await engine.wait_entered()
        leaving.cancel()
        await asyncio.wait([leaving])
        engine.gate.set()
        [scored] = await batcher.score([[6]], soon())
    assert isinstance(scored, Scored)


@async_test
async def test_only_the_poisoned_row_fails() -> None:
    rows = [[5], [6], [POISON_ID], [7]]
    async with started(FakeEngine(poison=POISON_ID)) as (batcher, metrics):
        scored = await batcher.score(rows, soon())
        [after] = await batcher.score([[8]], soon())
    assert [isinstance(score, EngineFailed) for score in scored] == [False, False, True, False]
    assert isinstance(after, Scored)
    assert value(metrics.registry, "backend_errors_total", kind="runtime") == 1


@async_test
async def test_logits_that_are_not_finite_fail_their_own_row() -> None:
    async with started(FakeEngine(nan=NAN_ID)) as (batcher, metrics):
        good, bad = await batcher.score([[5], [NAN_ID]], soon())
    assert isinstance(good, Scored)
    assert isinstance(bad, EngineFailed)
    assert value(metrics.registry, "backend_errors_total", kind="not_finite") == 1


@async_test
async def test_failed_batches_in_a_row_are_counted_and_forgotten_after_a_success() -> None:
    async with started(FakeEngine(poison=POISON_ID)) as (batcher, _):
        for _ in range(3):
            await batcher.score([[POISON_ID]], soon())
        assert batcher.failed_batches == 3
        await batcher.score([[5], [POISON_ID]], soon())
        assert batcher.failed_batches == 0


@async_test
async def test_a_loop_that_dies_fails_its_callers_and_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with started(FakeEngine()) as (batcher, _):
        monkeypatch.setattr(batcher_module, "take_batch", broken)
        [answer] = await batcher.score([[5]], soon())
        assert isinstance(answer, NotReady)
        assert not batcher.alive
        with pytest.raises(NotReady):
            await batcher.score([[6]], soon())


@async_test
async def test_stopping_fails_whoever_waits() -> None:
    engine = FakeEngine()
    async with started(engine) as (batcher, _):
        engine.gate.clear()
        running, queued = submit(batcher, [5]), submit(batcher, [6] * 32)
        await engine.wait_entered()
        await batcher.stop()
        assert [type(score) for score in [*await running, *await queued]] == [NotReady, NotReady]


@async_test
async def test_a_stopped_batcher_does_not_leave_its_engine_to_the_garbage_collector() -> None:
    engine = FakeEngine()
    kept = weakref.ref(engine)
    gc.disable()
    try:
        async with started(engine) as (batcher, _):
            await batcher.score([[5]], soon())
        del engine, batcher
        await eventually(lambda: kept() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_random_cancels_leave_nothing_behind(rounds: int) -> None:
    @async_test
    async def run() -> None:
        async with started(FakeEngine(), replace(LIMITS, queue_items=2000, queue_tokens=9000)) as (batcher, _):
            for _ in range(rounds):
                await cancel_two_of_three(batcher)
            assert (len(batcher.waiting), batcher.waiting.tokens("interactive")) == (0, 0)
            after = await batcher.score([[n] for n in range(3, 19)], soon())
            assert all(isinstance(answer, Scored) for answer in after)
            assert (batcher.running_since, batcher._calls, batcher._threads.busy) == (None, {}, False)

    run()


async def cancel_two_of_three(batcher: Batcher) -> None:
    """Callers, some of whom leave at once and some while their rows wait or run."""
    callers = [submit(batcher, [n % 50 + 3] * (n % 5 + 1)) for n in range(1500)]
    for number, caller in enumerate(callers):
        if number % 3:
            caller.cancel()
        if number % 10 == 0:
            await asyncio.sleep(0)
    answers = await asyncio.gather(*callers, return_exceptions=True)
    answered = [answer for answer in answers if isinstance(answer, list)]
    assert len(answered) >= 500
    assert all(isinstance(answer[0], Scored) for answer in answered)
