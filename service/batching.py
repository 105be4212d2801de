"""What waits, and which of it runs next: the data of the queue and `take_batch`, a pure function over it."""

import asyncio
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

from lengnuan.model.engine import WIDTH_STEP, Logits
from lengnuan.service.errors import ServiceError

CloseReason = Literal["idle", "full_rows", "full_tokens", "lengths"]
# Somebody waits for an interactive text; bulk takes what they leave of the engine.
Priority = Literal["interactive", "bulk"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

# How far behind the oldest row to look for rows of its width, in full batches: so much may overtake a row. Beyond the
# first only as long as those of its width would fill less than this part of a batch (docs/decisions.md).
LOOK_AHEAD_BATCHES = 2
ENOUGH_ALIKE = 0.4


@dataclass(frozen=True)
class Limits:
    """How much may run together and how much may wait.

    Args:
        max_rows: rows in a batch.
        max_tokens: padded tokens in a batch: rows times the longest.
        max_padding_share: part of the padded tokens that may be padding.
        enough_tokens: from this many padded tokens on, a batch keeps to one width: a row that is wider or narrower by a
            `WIDTH_STEP` costs more as padding than it saves as company.
        queue_items: rows of one priority that may wait.
        queue_tokens: tokens of one priority that may wait, without padding.
        queue_wait_s: how long a row of one priority may have waited, or may be going to wait, for more to come in.
        bulk_run_s: what a batch of bulk rows should take at most, since an interactive row may have to wait for it.
        bulk_wait_s: while interactive rows wait, a batch of bulk rows runs this often all the same.
    """

    max_rows: int
    max_tokens: int
    max_padding_share: float
    enough_tokens: int
    queue_items: int
    queue_tokens: int
    queue_wait_s: float = math.inf
    bulk_run_s: float = math.inf
    bulk_wait_s: float = 1.0


@dataclass(frozen=True)
class Scored:
    """Logits of one row (float32 [K]), its seconds in the queue and the seconds of the batch it ran in."""

    logits: Logits
    queue_s: float
    infer_s: float


class Scorer(Protocol):
    """What turns rows of ids into logits: a batcher, or one in another process."""

    @property
    def alive(self) -> bool:
        """It takes rows."""
        ...

    @property
    def running_since(self) -> float | None:
        """Since when the engine has had its oldest batch (`time.monotonic()`); None while it has none."""
        ...

    @property
    def failed_batches(self) -> int:
        """Batches without a single answer, in a row, up to now."""
        ...

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        ...

    def start(self) -> None:
        """Take rows from now on."""

    async def stop(self) -> None:
        """Take no more; rows without an answer get `NotReady`."""

    def check_room(self, rows: int, tokens: int, priority: Priority) -> None:
        """Raise `Overloaded` for so many rows, with so many tokens together, if there is no room for them."""

    async def score(
        self, rows: Sequence[Sequence[int]], deadline: float, priority: Priority = "interactive"
    ) -> list[Scored | ServiceError]:
        """Logits of each row, in their order, or its error; see `Batcher.score`."""
        ...


def longest_wait(scores: Iterable[Scored | ServiceError]) -> tuple[float, float]:
    """Seconds in the queue and in the engine of the row that was answered last; zeros when none was."""
    waits = [(score.queue_s, score.infer_s) for score in scores if isinstance(score, Scored)]
    return max(waits, key=sum, default=(0.0, 0.0))


@dataclass(frozen=True, eq=False)
class Pending:
    """One waiting row. Times are `time.monotonic()`.

    An error is a result of the future, not its exception: nobody may be left to retrieve it.
    """

    ids: Sequence[int]
    future: "asyncio.Future[Scored | ServiceError]"
    enqueued_at: float
    deadline: float
    priority: Priority = "interactive"

    @cached_property
    def key(self) -> bytes:
        """The ids in another form: equal for equal texts, and only for those."""
        return array("i", self.ids).tobytes()

    def settle(self, outcome: Scored | ServiceError) -> None:
        """Give the caller an answer, unless there is one or the caller is gone."""
        if not self.future.done():
            self.future.set_result(outcome)


@dataclass(frozen=True)
class Batch:
    """What runs next, what was found dead on the way, and why the batch isn't larger."""

    rows: list[Pending]
    dropped: list[Pending]
    reason: CloseReason


def take_batch(pending: Iterable[Pending], limits: Limits, now: float) -> Batch:
    """Choose the rows that run next.

    The oldest always goes, so nothing starves; rows of similar length, oldest first among equals, fill up the batch:
    those of its width as many as fit, others only as long as there is too little for the engine to do.
    Of rows with the same ids one goes, for all of them. Rows whose caller is gone or whose deadline has passed are
    dropped, when they come up. Takes nothing out of `pending`.

    Args:
        pending: oldest first; no row is longer than `limits.max_tokens`.
        limits: what a batch may hold.
        now: `time.monotonic()`.
    """
    live, dropped = _in_sight(pending, limits, now)
    if not live:
        return Batch([], dropped, "idle")
    oldest, *others = live
    rows, longest, real = [oldest], len(oldest.ids), len(oldest.ids)
    keys = {oldest.key}
    reason: CloseReason = "idle"
    for item in sorted(others, key=lambda other: _distance(oldest, other)):
        if item.key in keys:
            continue
        if len(rows) == limits.max_rows:
            reason = "full_rows"
            break
        length = len(item.ids)
        padded = max(longest, length) * (len(rows) + 1)
        enough = longest * len(rows) >= limits.enough_tokens
        if padded > limits.max_tokens:
            reason = "full_tokens"
        elif padded - real - length > limits.max_padding_share * padded or (enough and _distance(oldest, item)[0]):
            reason = "lengths"
        else:
            rows.append(item)
            keys.add(item.key)
            longest, real = max(longest, length), real + length
    return Batch(rows, dropped, reason)


def _in_sight(pending: Iterable[Pending], limits: Limits, now: float) -> tuple[list[Pending], list[Pending]]:
    """The oldest live rows, as would fill one batch or up to `LOOK_AHEAD_BATCHES`, and the dead ones among them.

    The rest is not looked at: what a batch costs must not grow with what waits.
    """
    live: list[Pending] = []
    dropped: list[Pending] = []
    tokens = alike = 0
    keys: set[bytes] = set()
    for item in pending:
        if item.future.done() or item.deadline <= now:
            dropped.append(item)
            continue
        live.append(item)
        if item.key in keys:  # goes with another, and fills nothing
            continue
        keys.add(item.key)
        tokens += len(item.ids)
        if not _distance(live[0], item)[0]:
            alike += len(item.ids)
        batches = max(len(keys) / limits.max_rows, tokens / limits.max_tokens)
        if batches >= LOOK_AHEAD_BATCHES or (batches > 1 and alike >= ENOUGH_ALIKE * limits.max_tokens):
            break
    return live, dropped


def _distance(one: Pending, other: Pending) -> tuple[int, int]:
    """How far two rows are apart, in steps of width and then in tokens."""
    length, other_length = len(one.ids), len(other.ids)
    return abs(-(-length // WIDTH_STEP) + other_length // -WIDTH_STEP), abs(length - other_length)
