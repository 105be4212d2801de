"""The rows that wait, by priority, oldest first; and whether there is room for more."""

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lengnuan.service.batching import PRIORITIES, Limits, Pending, Priority
from lengnuan.service.metrics import ModelMetrics


@dataclass(frozen=True)
class Full:
    """Why there is no room: a limit, and what is or would be there instead."""

    reason: str
    limit: int
    actual: int


class Waiting:
    """Two queues, one a priority: each has all of the limits, so that a flood of bulk shuts no interactive row out.

    Args:
        limits: what may wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Dicts, for their order and for removal from the middle.
        self._rows: dict[Priority, dict[Pending, None]] = {priority: {} for priority in PRIORITIES}
        self._equal: dict[bytes, dict[Pending, None]] = {}  # by their ids
        self._tokens: dict[Priority, int] = dict.fromkeys(PRIORITIES, 0)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[Pending]:
        for rows in self._rows.values():
            yield from rows

    def rows(self, priority: Priority) -> Iterable[Pending]:
        """Those of one priority, oldest first."""
        return self._rows[priority]

    def equal(self, key: bytes) -> Sequence[Pending]:
        """Those with these ids, of any priority."""
        return tuple(self._equal.get(key, ()))

    def items(self, priority: Priority) -> int:
        """How many of one priority wait."""
        return len(self._rows[priority])

    def tokens(self, priority: Priority) -> int:
        """Their lengths together, without padding."""
        return self._tokens[priority]

    def since(self, priority: Priority) -> float | None:
        """When the oldest of one priority came (`time.monotonic()`); None without any."""
        oldest = next(iter(self._rows[priority]), None)
        return None if oldest is None else oldest.enqueued_at

    def age_s(self, priority: Priority) -> float:
        """How long the oldest of one priority has waited until now; 0 without any."""
        since = self.since(priority)
        return 0.0 if since is None else time.monotonic() - since

    def show(self, metrics: ModelMetrics) -> None:
        """Let a scrape see what waits at that moment."""
        for priority in PRIORITIES:
            metrics.queue_items.labels(priority).set_function(functools.partial(self.items, priority))
            metrics.queue_tokens.labels(priority).set_function(functools.partial(self.tokens, priority))
            metrics.queue_oldest_seconds.labels(priority).set_function(functools.partial(self.age_s, priority))

    def lack_of_room(self, priority: Priority, rows: int, tokens: int, now: float, wait_s: float) -> Full | None:
        """What keeps so many more rows out; None when they may all come.

        Args:
            priority: of the rows.
            rows: how many.
            tokens: their lengths together.
            now: `time.monotonic()`.
            wait_s: how long those that are here should take; 0 if unknown.
        """
        since = self.since(priority)
        longest_s = 0.0 if since is None else max(wait_s, now - since)
        if longest_s > self._limits.queue_wait_s:
            limit, actual = int(1000 * self._limits.queue_wait_s), int(1000 * longest_s)
            return Full("texts wait for too many milliseconds", limit, actual)
        for full in (
            Full("too many texts are waiting", self._limits.queue_items, self.items(priority) + rows),
            Full("too many tokens are waiting", self._limits.queue_tokens, self.tokens(priority) + tokens),
        ):
            if full.actual > full.limit:
                return full
        return None

    def add(self, rows: Iterable[Pending]) -> None:
        """Put rows behind those of their priority."""
        for row in rows:
            self._rows[row.priority][row] = None
            self._equal.setdefault(row.key, {})[row] = None
            self._tokens[row.priority] += len(row.ids)

    def remove(self, row: Pending) -> None:
        """Take a row out, wherever it stands; no matter if it isn't here."""
        rows = self._rows[row.priority]
        if row in rows:
            del rows[row]
            same = self._equal[row.key]
            del same[row]
            if not same:
                del self._equal[row.key]
            self._tokens[row.priority] -= len(row.ids)
