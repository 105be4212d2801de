"""A running batcher over a fake engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service_fixtures import FakeEngine

from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Limits
from lengnuan.service.cache import LogitsCache
from lengnuan.service.metrics import Metrics, ModelMetrics
from lengnuan.service.threads import EngineThreads

LIMITS = Limits(max_rows=4, max_tokens=32, max_padding_share=0.5, enough_tokens=32, queue_items=16, queue_tokens=200)
POISON_ID, NAN_ID = 200, 201


@asynccontextmanager
async def started(
    engine: FakeEngine, limits: Limits = LIMITS, cache_size: int = 0
) -> AsyncIterator[tuple[Batcher, ModelMetrics]]:
    metrics, threads = Metrics().default, EngineThreads()
    threads.set_workers(engine.workers)
    batcher = Batcher(engine, limits, metrics, threads, LogitsCache(cache_size))
    batcher.start()
    try:
        yield batcher, metrics
    finally:
        engine.gate.set()
        await batcher.stop()
        threads.stop()


def soon() -> float:
    return time.monotonic() + 60


def submit(batcher: Batcher, *rows: list[int]) -> "asyncio.Task[list[object]]":
    return asyncio.create_task(batcher.score(rows, soon()))
