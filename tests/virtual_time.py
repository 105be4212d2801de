"""Minutes of a queue in a moment: an event loop that never sleeps, and an engine that takes time on its clock only."""

import asyncio
import dataclasses
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Limits
from lengnuan.service.cache import LogitsCache
from lengnuan.service.metrics import Metrics, ModelMetrics


class _NoSleep(selectors.DefaultSelector):
    """Where a loop would sleep, its clock is put forward."""

    now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout is None:
            raise AssertionError("everything waits and nothing will ever happen")
        if not found and timeout > 0:
            self.now += timeout
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoSleep()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def virtual_test(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run a coroutine test without arguments in a loop whose clock is also `time.monotonic`."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
            monkeypatch.setattr(time, "monotonic", runner.get_loop().time)
            runner.run(function())
            monkeypatch.undo()

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


class TimedEngine:
    """Takes `batch_s` and `token_s` for each padded token; keeps what it ran."""

    runtime, provider, precision, threads = "fake", "cpu", "float32", 1

    def __init__(self, batch_s: float, token_s: float, workers: int = 1) -> None:
        self.batch_s, self.token_s, self.workers = batch_s, token_s, workers
        self.shapes: list[tuple[int, int]] = []
        self.rows: list[list[int]] = []
        self.took_s = 0.0

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self.shapes.append(token_ids.shape)
        self.rows += [ids[real].tolist() for ids, real in zip(token_ids, mask, strict=True)]
        self.took_s += self.batch_s + self.token_s * token_ids.size
        return np.zeros((len(token_ids), 2), dtype=np.float32)


class VirtualThreads:
    """In place of `EngineThreads`: as many calls at once as the engine has workers, the others behind them."""

    def __init__(self, engine: TimedEngine) -> None:
        self._engine = engine
        self._free = asyncio.Semaphore(engine.workers)

    def run(self, function: Callable[..., Any], *arguments: object) -> "asyncio.Task[Any]":
        async def work() -> Any:
            async with self._free:
                self._engine.took_s = 0.0
                ran = function(*arguments)
                took_s = self._engine.took_s
                await asyncio.sleep(took_s)
                return dataclasses.replace(ran, seconds=took_s)

        return asyncio.create_task(work())


@asynccontextmanager
async def simulated(engine: TimedEngine, limits: Limits) -> AsyncIterator[tuple[Batcher, ModelMetrics]]:
    """A running batcher in virtual time."""
    metrics = Metrics().default
    batcher = Batcher(engine, limits, metrics, VirtualThreads(engine), LogitsCache(0))
    batcher.start()
    try:
        yield batcher, metrics
    finally:
        await batcher.stop()
