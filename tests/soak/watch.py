"""What the service says of itself while it works: its metrics at every scrape, its memory, its log afterwards."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from soak.client import Connection, Message

SCRAPE_EVERY_S = 0.5
# What the service's memory may grow by over the second half of a run. A request object that is kept for ever would
# make it hundreds of bytes each.
GROWTH_MB, GROWTH_BYTES_A_REQUEST = 8.0, 50.0


@dataclass
class Watch:
    """Scrapes: how many, the memory at each against the requests done by then, and what was wrong."""

    scrapes: int = 0
    memory: list[tuple[int, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def scrape(self, connection: Connection) -> dict[str, float]:
        """Look once; the sum of received texts has to be that of all outcomes and of those under way."""
        reply = await connection.ask(Message("/metrics", [b""], ""), f"scrape-{self.scrapes}")
        samples: Counter[str] = Counter()
        for family in text_string_to_metric_families(reply.body.decode()):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    samples[sample.name] += sample.value
        self.scrapes += 1
        received = samples["lengnuan_items_received_total"]
        accounted = samples["lengnuan_items_total"] + samples["lengnuan_items_in_flight"]
        if received != accounted:
            self.faults.append(f"scrape {self.scrapes}: {received:g} texts received, {accounted:g} accounted for")
        return samples

    async def follow(self, connection: Connection, done: Callable[[], int]) -> None:
        """Scrape again and again, until cancelled."""
        while True:
            samples = await self.scrape(connection)
            self.memory.append((done(), samples["process_resident_memory_bytes"]))
            await asyncio.sleep(SCRAPE_EVERY_S)

    async def until_idle(self, connection: Connection) -> None:
        """Wait until nothing is under way but the scrape itself.

        Raises:
            TimeoutError: something stays under way.
        """
        async with asyncio.timeout(60):
            while True:
                samples = await self.scrape(connection)
                if (samples["lengnuan_items_in_flight"], samples["lengnuan_http_requests_in_flight"]) == (0, 1):
                    return
                await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Growth:
    """Memory in MB: at the middle of a run, and what a line through its second half grows by."""

    middle: float
    growth: float
    bound: float


def growth(memory: Sequence[tuple[int, float]]) -> Growth:
    """From requests done and bytes resident at some moments, at least four."""
    half = memory[len(memory) // 2 :]
    done, resident = np.array(half, dtype=np.float64).T
    requests = done[-1] - done[0]
    slope = float(np.polyfit(done, resident, 1)[0]) if requests else 0.0
    bound = max(GROWTH_MB, GROWTH_BYTES_A_REQUEST * requests / 1e6)
    return Growth(float(np.median(resident)) / 1e6, slope * requests / 1e6, bound)


def logged(file: Path) -> Counter[str]:
    """How often each request id stands in the log as answered."""
    with file.open(encoding="utf-8") as lines:
        entries = (json.loads(line) for line in lines)
        return Counter(entry["request_id"] for entry in entries if entry["message"] == "request")
