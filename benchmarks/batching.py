"""The queue alone: closed-loop callers over an engine that sleeps as long as a real one computes.

    python benchmarks/batching.py [--seconds 3]

Two engines: one like a CPU core (a batch costs 2.8 ms and 117 microseconds a padded token: the embedded bundle in
bfloat16 on an AMD EPYC with AVX512-BF16), one like a GPU (4 ms and 3 microseconds a token). Rows are as long as texts
are: 20 tokens at the median, one in twenty over 75. Callers begin one after the other and think for 0.5 to 3.5 ms
between an answer and the next row. On the CPU each load is run twice: with batches that keep to one width, and with
`enough_tokens` out of reach.
"""

import argparse
import asyncio
import math
import random
import statistics
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from machine import describe

from lengnuan.model.bundle import ComputeType
from lengnuan.model.engine import WIDTH_STEP
from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Limits
from lengnuan.service.cache import LogitsCache
from lengnuan.service.metrics import Metrics
from lengnuan.service.slots import ENOUGH_TOKENS
from lengnuan.service.threads import EngineThreads

LIMITS = Limits(
    max_rows=64, max_tokens=2048, max_padding_share=0.5, enough_tokens=2048, queue_items=4096, queue_tokens=1 << 20
)
LOADS = (("cpu", 4), ("cpu", 16), ("cpu", 64), ("cpu", 256), ("gpu", 64), ("gpu", 256))
ENOUGH = {"cpu": (ENOUGH_TOKENS, LIMITS.max_tokens), "gpu": (LIMITS.max_tokens,)}
THINKING_S = (0.0005, 0.0035)  # the network, and the client
LENGTH = (math.log(18.0), 0.86)  # mean and deviation of its logarithm
LONGEST = 256
ROUNDS = 3


@dataclass
class SleepingEngine:
    """Takes `batch_s` + `token_s` a token of a batch that is widened to whole steps; counts what it ran."""

    batch_s: float
    token_s: float
    batches: int = 0
    rows: int = 0
    runtime: str = "none"
    provider: str = "cpu"
    precision: ComputeType = "float32"
    threads: int = 1
    workers: int = 1

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """See `lengnuan.model.engine.Engine.run`."""
        self.batches += 1
        self.rows += len(token_ids)
        width = -(-mask.shape[1] // WIDTH_STEP) * WIDTH_STEP
        time.sleep(self.batch_s + self.token_s * len(mask) * width)
        return np.zeros((len(token_ids), 2), dtype=np.float32)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    print(describe())
    print(f"{'engine':>7}{'clients':>9}{'enough':>8}{'rows/s':>8}{'rows a batch':>14}{'p50 ms':>8}{'p99 ms':>8}")
    for kind, clients in LOADS:
        for enough in ENOUGH[kind]:
            limits = replace(LIMITS, enough_tokens=enough)
            rounds = [asyncio.run(_measure(kind, clients, limits, seconds / ROUNDS)) for _ in range(ROUNDS)]
            rate, size, p50, p99 = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{kind:>7}{clients:9d}{enough:8d}{rate:8.0f}{size:14.1f}{p50:8.1f}{p99:8.1f}")


async def _measure(kind: str, clients: int, limits: Limits, seconds: float) -> tuple[float, float, float, float]:
    """Rows a second, rows a batch, and the latency at its median and 99th percentile in milliseconds."""
    engine = SleepingEngine(0.0028, 117e-6) if kind == "cpu" else SleepingEngine(0.004, 3e-6)
    threads = EngineThreads()
    batcher = Batcher(engine, limits, Metrics().default, threads, LogitsCache(0))
    batcher.start()
    latencies: list[float] = []
    stop = time.monotonic() + seconds

    async def caller(number: int) -> None:
        draw, turn = random.Random(number), 0
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        while (begin := time.monotonic()) < stop:
            length = min(LONGEST, 2 + int(draw.lognormvariate(*LENGTH)))
            await batcher.score([[number, turn, *range(length - 2)]], begin + 60)  # no row twice
            latencies.append(time.monotonic() - begin)
            turn += 1
            await asyncio.sleep(draw.uniform(*THINKING_S))

    await asyncio.gather(*(caller(number) for number in range(clients)))
    await batcher.stop()
    threads.stop()
    p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
    return len(latencies) / seconds, engine.rows / engine.batches, float(p50), float(p99)


if __name__ == "__main__":
    main()
