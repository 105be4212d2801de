"""A full batch that waits is handed to the engine before the one in progress ends."""

import asyncio
import threading

from batcher_fixtures import started, submit
from service_fixtures import FakeEngine, async_test, eventually, value


class SteppedEngine(FakeEngine):
    """Ends one batch for each `step`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = threading.Semaphore(0)

    def run(self, token_ids, mask):
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
        await eventually(lambda: len(batcher.waiting) == 10)
        engine.steps.release()
        await eventually(lambda: len(batcher.waiting) == 2)
        assert len(engine.shapes) == 1, "8 rows are with the engine, which has ended only the first batch"
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
        tasks += [submit(batcher, [6, n]) for n in range(8)]
        await eventually(lambda: len(batcher.waiting) == 8)
        engine.steps.release()
        await eventually(lambda: not batcher.waiting)
        await batcher.stop()
        answers = [answer for [answer] in await asyncio.gather(*tasks)]
        engine.steps.release(2)
    assert [getattr(answer, "code", "answered") for answer in answers] == ["answered", *["not_ready"] * 8]
