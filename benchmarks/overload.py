"""A service that is asked for ten times what it can do, with a flood of bulk beside single texts first.

    python benchmarks/overload.py [--seconds 60] [--times 10] [--bundle FOLDER]

Prints what became of each kind of request, how long those took that were answered and those that were refused, what
the probes took meanwhile, and the memory of the service before and after. The clients have the last core, the service
the others.
"""

import argparse
import asyncio
import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from load import Load, put
from machine import describe
from sentences import sentences, taker
from servers import Running, Server, running

from lengnuan.model.bundle import DEFAULT_BUNDLE

COMMAND = ("-m", "lengnuan.service", "--port", "{port}", "--bundle", "{bundle}", "--device", "cpu")
SERVER = Server("overload", "", COMMAND, "", (), route="/v1/classify")
LIST = 16  # texts of a request: what is measured is the queue, not how fast requests are read
PROBES = ("/livez", "/readyz")
PROBE_EVERY_S = 0.05


class Observed:
    """Seconds of the requests of each kind, by status."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, int], list[float]] = defaultdict(list)

    async def ask(self, port: int, kind: str, head: str, body: bytes = b"") -> None:
        """One request on a connection of its own; 0 is the status of one that got no answer."""
        begin, status = time.perf_counter(), 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
            writer.write(f"{head} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n".encode() + body)
            status = int((await reader.read()).split(b" ", 2)[1])
            writer.close()
        self.seconds[kind, status].append(time.perf_counter() - begin)

    def table(self) -> str:
        """A line a kind and status."""
        lines = [f"{'request':>24}{'status':>8}{'count':>8}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}"]
        for (kind, status), seconds in sorted(self.seconds.items()):
            quantiles = [1000 * float(np.quantile(seconds, share)) for share in (0.5, 0.99, 1.0)]
            lines.append(f"{kind:>24}{status:8d}{len(seconds):8d}" + "".join(f"{ms:10.1f}" for ms in quantiles))
        return "\n".join(lines)


def classify(texts: Sequence[str], priority: str) -> tuple[str, bytes]:
    """Head and body of a request."""
    body = json.dumps({"input": list(texts), "priority": priority}, ensure_ascii=False).encode()
    return "POST /v1/classify", body


@contextlib.asynccontextmanager
async def beside(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something without end while the block runs."""
    tasks = [asyncio.create_task(work) for work in endless]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send(rate: float, seconds: float, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Requests at random moments, so many a second whatever becomes of them; waits for the last."""
    chance = np.random.default_rng(0)
    end, due = time.perf_counter() + seconds, time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(ask())
            due += chance.exponential(1 / rate)


async def measure(server: Running, seconds: float, times: float) -> None:
    """Three phases: what it can do, bulk beside single texts, far too much."""
    take, port = taker(sentences()), server.port

    def request(size: int) -> tuple[Sequence[str], bytes]:
        texts = take(size)
        return texts, SERVER.request(texts)

    rate = LIST * (await put(port, Load(8, LIST, 1.0, 3.0), request)).requests_s
    print(f"\n{rate:.0f} texts a second in lists of {LIST}; {server.resident_mb():.0f} MB")

    async def probing(observed: Observed) -> None:
        while True:
            for path in PROBES:
                await observed.ask(port, path, f"GET {path}")
            await asyncio.sleep(PROBE_EVERY_S)

    async def asking(observed: Observed, size: int) -> None:
        await observed.ask(port, f"texts: {size}", *classify(take(size), "interactive"))

    async def flooding(observed: Observed) -> None:
        while True:
            await observed.ask(port, "bulk texts: 256", *classify(take(256), "bulk"))

    single = rate / 4
    for floods in (0, 4):
        observed = Observed()
        async with beside(*(flooding(observed) for _ in range(floods))):
            await asyncio.sleep(1.0)
            await send(single, seconds / 4, partial(asking, observed, 1))
        print(f"\n{single:.0f} single texts a second, {floods} callers with bulk\n{observed.table()}")

    observed, memory = Observed(), [server.resident_mb()]
    async with beside(probing(observed)):
        for _ in range(4):
            await send(times * rate / LIST, seconds / 4, partial(asking, observed, LIST))
            memory.append(server.resident_mb())
    print(f"\n{times:g} times as much for {seconds:g} s\n{observed.table()}")
    print("resident MB before, after each quarter: " + ", ".join(f"{mb:.0f}" for mb in memory))


def main() -> None:
    """Start a service and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    arguments = parser.parse_args()
    print(describe())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    with running(SERVER, arguments.bundle, *(cores[:-1] or cores)) as server:
        asyncio.run(measure(server, arguments.seconds, arguments.times))


if __name__ == "__main__":
    main()
