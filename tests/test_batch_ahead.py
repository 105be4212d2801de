"""As many batches run at once as the engine takes, and a full one that waits is handed over ahead of time."""

import asyncio
import threading
import time

from batcher_fixtures import started, submit
from service_fixtures import FakeEngine, async_test, eventually, value


class SteppedEngine(FakeEngine):
    """Ends one batch for each `step`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = threading.Semaphore(0)
        self.begun = 0

    def run(self, token_ids, mask):
        self.begun += 1
        self.entered.set()
        assert self.steps.acquire(timeout=30), "the test forgot a step"
        return super().run(token_ids, mask)


@async_test
async def test_a_full_batch_is_handed_over_before_the_one_in_progress_ends() -> None:
    engine = SteppedEngine()
    async with started(engine) as (batcher, metrics):
        tasks = [submit(batcher, [5])]
        await engine.wait_entered()
        tasks += [submit(batcher, [6, n]) for n in range(10)]
        await eventually(lambda: len(batcher.waiting) == 6)
        assert not engine.shapes, "4 of the 10 rows are with the engine, which has ended nothing"
        engine.steps.release()
        await eventually(lambda: len(batcher.waiting) == 2)
        assert len(engine.shapes) == 1
        engine.steps.release(3)
        await asyncio.gather(*tasks)
    assert [rows for rows, _ in engine.shapes] == [1, 4, 4, 2]
    assert value(metrics.registry, "batch_rows_sum") == 11


@async_test
async def test_rows_that_were_handed_over_are_answered_when_the_batcher_stops() -> None:
    engine = SteppedEngine()
    async with started(engine) as (batcher, _):
        tasks = [submit(batcher, [5])]
        await engine.wait_entered()
        tasks += [submit(batcher, [6, n]) for n in range(4)]
        await eventually(lambda: len(tasks) == 5 and not batcher.waiting)
        await batcher.stop()
        answers = [answer for [answer] in await asyncio.gather(*tasks)]
        engine.steps.release()
        await eventually(lambda: len(engine.rows) == 1)
    assert [answer.code for answer in answers] == ["not_ready"] * 5
    assert engine.begun == 1, "what had not begun never does"


@async_test
async def test_as_many_batches_run_at_once_as_the_engine_takes() -> None:
    engine = SteppedEngine()
    engine.workers = 3
    async with started(engine) as (batcher, _):
        tasks = []
        for n in range(4):
            tasks.append(submit(batcher, [5, n]))
            await eventually(lambda started=n: engine.begun == min(started + 1, 3))
        await eventually(lambda: len(batcher.waiting) == 1)  # no full batch, so it waits for the next to end
        assert batcher.running_since is not None
        engine.steps.release(4)
        await asyncio.gather(*tasks)
    assert sorted(engine.rows) == [[5, n] for n in range(4)]
    assert batcher.running_since is None


@async_test
async def test_rows_whose_callers_left_while_they_stood_behind_another_batch_are_not_run() -> None:
    engine = SteppedEngine()
    async with started(engine) as (batcher, metrics):
        first = submit(batcher, [5])
        await engine.wait_entered()
        leaving, staying = submit(batcher, [6], [7], [8]), submit(batcher, [9])
        await eventually(lambda: not batcher.waiting)
        leaving.cancel()
        await asyncio.wait([leaving])
        engine.steps.release(2)
        await asyncio.gather(first, staying)
    assert engine.rows == [[5], [9]]
    assert value(metrics.registry, "batch_rows_sum") == 2


@async_test
async def test_a_batch_that_nobody_waits_for_any_more_is_not_run_at_all() -> None:
    engine = SteppedEngine()
    async with started(engine) as (batcher, _):
        first = submit(batcher, [5])
        await engine.wait_entered()
        leaving = submit(batcher, [6], [7], [8], [9])
        await eventually(lambda: not batcher.waiting)
        late = submit(batcher, [6])  # equal to one of those, and still wanted
        await eventually(lambda: len(batcher.waiting) == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        engine.steps.release(2)
        await asyncio.gather(first, late)
    assert engine.rows == [[5], [6]]


@async_test
async def test_time_behind_another_batch_is_not_the_engine_s() -> None:
    engine = SteppedEngine()
    async with started(engine) as (batcher, _):
        tasks = [submit(batcher, [5])]
        await engine.wait_entered()
        began = batcher.running_since
        tasks.append(submit(batcher, *[[6, n] for n in range(4)]))
        await eventually(lambda: not batcher.waiting)
        handed_over = time.monotonic()
        assert batcher.running_since == began
        await asyncio.sleep(0.01)
        engine.steps.release()
        await tasks[0]
        await eventually(lambda: batcher.running_since != began)
        assert batcher.running_since > handed_over
        engine.steps.release()
        await asyncio.gather(*tasks)
