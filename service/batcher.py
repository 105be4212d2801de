"""The queue and the loop that runs it. Only ids come in and only logits go out: nothing here knows a text or a label.

A batch forms while the engine is busy with those before, so an idle service adds no wait. When a full one waits, it is
handed over before the engine is free, so that a fast device isn't idle while answers go out. Rows with the same ids
are run once: those that wait when the answer comes get it too, and later ones, for a while, from the cache.

A batch is of one priority. Interactive rows go first; bulk rows run when none of them waits, in batches that are soon
over, and now and then even if some do.
"""

import asyncio
import copy
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lengnuan.model.engine import Engine, Logits
from lengnuan.service.batching import Batch, Limits, Pending, Priority, Scored, take_batch
from lengnuan.service.budget import Budget
from lengnuan.service.cache import LogitsCache
from lengnuan.service.errors import DeadlineExceeded, NotReady, Overloaded, ServiceError
from lengnuan.service.metrics import ModelMetrics
from lengnuan.service.running import Ran, Runner
from lengnuan.service.threads import EngineThreads
from lengnuan.service.waiting import Waiting

log = logging.getLogger(__name__)

LONGEST_RETRY_S = 60


@dataclass
class _Call:
    """A batch that was handed over, and since when it is the engine's turn; not yet, while it stands behind another."""

    batch: Batch
    since: float | None
    tokens: int  # of its rows, without padding


class Batcher:
    """Runs waiting rows through one engine, as many batches at once as it takes.

    Args:
        engine: called in `threads` only.
        limits: what may run and wait.
        metrics: where queue, batches and failures are counted.
        threads: where the engine runs; stopped by whoever made it.
        cache: what the engine has answered before.

    Attributes:
        waiting: rows in the queue.
        budget: what the engine gets at once.
        failed_batches: batches without a single answer, in a row, up to now.
    """

    def __init__(
        self, engine: Engine, limits: Limits, metrics: ModelMetrics, threads: EngineThreads, cache: LogitsCache
    ) -> None:
        self._runner = Runner(engine, metrics)
        self._workers = engine.workers
        self._cache = cache
        self._limits = limits
        self._metrics = metrics
        self._news = asyncio.Event()  # a row has come, or a batch has run
        self._threads = threads
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Future[Ran], _Call] = {}
        self._ended: deque[float] = deque([-math.inf] * engine.workers, engine.workers)  # the last batches
        self._bulk_began = -math.inf
        self.waiting = Waiting(limits)
        self.budget = Budget(limits, engine.workers)
        self.failed_batches = 0

    @property
    def alive(self) -> bool:
        """False before `start`, after `stop`, and when the loop has died of a mistake."""
        return self._task is not None and not self._task.done()

    @property
    def running_since(self) -> float | None:
        """Since when the engine has had its oldest batch (`time.monotonic()`); None while it has none."""
        return min((call.since for call in self._calls.values() if call.since is not None), default=None)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.waiting and not self._calls

    def start(self) -> None:
        """Start the loop, and let a scrape see the queue as it is at that moment."""
        self.waiting.show(self._metrics)
        budget = self.budget  # the metrics stay, and are to keep no engine
        self._metrics.batch_limit_tokens.set_function(lambda: budget.tokens("interactive", time.monotonic()))
        self._metrics.cache_items.set_function(self._cache.__len__)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the loop; rows without an answer get `NotReady`. Doesn't wait for a call of the engine in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            # What it ended with leads back here, and would keep the engine until the garbage collector looks.
            self._task = None

    async def score(
        self, rows: Sequence[Sequence[int]], deadline: float, priority: Priority = "interactive"
    ) -> list[Scored | ServiceError]:
        """Logits of each row, in their order; the error in its place for a row that failed or came too late.

        Waits until the last row is answered, at most until `deadline`, even while the engine is stuck. Cancelling
        the call takes its rows out of the queue.

        Args:
            rows: at least one row of ids, each with 1 to `limits.max_tokens` of them.
            deadline: on the clock of `time.monotonic()`.
            priority: of all rows.

        Raises:
            Overloaded: the queue has no room for all of the rows; none was queued.
            NotReady: the loop isn't running.
        """
        pending = self._admit(rows, deadline, priority)
        timer = asyncio.get_running_loop().call_later(deadline - time.monotonic(), self._expire, pending)
        try:
            return [await item.future for item in pending]
        finally:
            timer.cancel()
            for item in pending:
                item.future.cancel()
                self.waiting.remove(item)

    def _admit(self, rows: Sequence[Sequence[int]], deadline: float, priority: Priority) -> list[Pending]:
        if not self.alive:
            raise NotReady("the model is not running")
        loop, now = asyncio.get_running_loop(), time.monotonic()
        pending = [Pending(ids, loop.create_future(), now, deadline, priority) for ids in rows]
        known = {item: logits for item in pending if (logits := self._cache.get(item.key)) is not None}
        unknown = [item for item in pending if item not in known]
        if unknown:
            self.check_room(len(unknown), sum(len(item.ids) for item in unknown), priority)
        for item, logits in known.items():
            item.settle(Scored(logits, queue_s=0.0, infer_s=0.0))
        self._metrics.observe_cache(hits=len(known), misses=len(unknown))
        self.waiting.add(unknown)
        self.budget.came(priority, now)
        self._news.set()
        return pending

    def check_room(self, rows: int, tokens: int, priority: Priority) -> None:
        """Refuse what has no room: so many rows, with so many tokens together.

        Raises:
            Overloaded: with when to come again.
        """
        ahead = self.waiting.tokens("interactive") + (self.waiting.tokens("bulk") if priority == "bulk" else 0)
        ahead += sum(call.tokens for call in self._calls.values())
        full = self.waiting.lack_of_room(priority, rows, tokens, time.monotonic(), self.budget.wait_s(ahead))
        if full is not None:
            wait_s = self.budget.seconds_for(ahead) or 0.0
            raise Overloaded(
                f"{full.reason}; none of this request was started",
                retry_after_s=min(LONGEST_RETRY_S, max(1, math.ceil(wait_s))),
                limit=full.limit,
                actual=full.actual,
            )

    def _expire(self, pending: Iterable[Pending]) -> None:
        running = set(self._running())
        for item in pending:
            self.waiting.remove(item)
            item.settle(DeadlineExceeded("infer" if item in running else "queue"))

    async def _run(self) -> None:
        """The loop. However it ends, nobody is left waiting."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                for done in [done for done in self._calls if done.done()]:
                    self._finish(self._calls.pop(done).batch, done.result())
                self._move_up()
                while self._begin():
                    pass
        except Exception:
            log.critical("the batch loop died; the service is not ready from now on", exc_info=True)
        finally:
            for item in [*self._running(), *self.waiting]:
                self.waiting.remove(item)
                item.settle(NotReady("the model has stopped"))
            for call in self._calls:
                call.cancel()

    def _running(self) -> list[Pending]:
        """The rows that were handed over and have no answer yet."""
        return [item for call in self._calls.values() for item in call.batch.rows]

    def _move_up(self) -> None:
        """What stood behind a batch that is over has the engine from now on."""
        for call in list(self._calls.values())[: self._workers]:
            if call.since is None:
                call.since = time.monotonic()

    def _begin(self) -> bool:
        """Give the engine a batch, if one can run at once, or a full one waits and none is ahead of time yet."""
        free, now = self._workers - len(self._calls), time.monotonic()
        if free < 0:
            return False
        for priority in self._turns(now):
            if not self.waiting.items(priority):
                continue
            limits = replace(self._limits, max_tokens=self.budget.tokens(priority, now))
            if free == 0 and not (self.budget.may_be_ahead(priority, now) and self._full(priority, limits)):
                return False
            batch = take_batch(self._not_running(priority), limits, now)
            self._hand_over(batch, priority, now if free > 0 else None)
            if batch.rows or batch.dropped:
                return True
        return False

    def _turns(self, now: float) -> tuple[Priority, Priority]:
        """Whose rows are looked at first: bulk's, when they have waited for `bulk_wait_s` and none began meanwhile."""
        since = self.waiting.since("bulk")
        overdue = since is not None and now - max(since, self._bulk_began) >= self._limits.bulk_wait_s
        return ("bulk", "interactive") if overdue else ("interactive", "bulk")

    def _not_running(self, priority: Priority) -> Iterator[Pending]:
        """What waits, oldest first, without the rows whose answer is already on its way."""
        running = {item.key for item in self._running()}
        return (item for item in self.waiting.rows(priority) if item.key not in running)

    def _full(self, priority: Priority, limits: Limits) -> bool:
        """Whether what waits would fill a batch."""
        rows, tokens = limits.max_rows, limits.max_tokens
        if self.waiting.items(priority) < rows and self.waiting.tokens(priority) < tokens:
            return False
        seen: set[bytes] = set()
        for item in self._not_running(priority):
            if item.key not in seen:
                seen.add(item.key)
                tokens -= len(item.ids)
                if len(seen) >= rows or tokens <= 0:
                    return True
        return False

    def _hand_over(self, batch: Batch, priority: Priority, since: float | None) -> None:
        """Take a batch out of the queue and give it to the engine."""
        for item in [*batch.dropped, *batch.rows]:
            self.waiting.remove(item)
        for item in batch.dropped:
            item.settle(DeadlineExceeded("queue"))
        if batch.rows:
            call = self._threads.run(self._runner.run, batch.rows)
            call.add_done_callback(lambda _: self._news.set())
            self._calls[call] = _Call(batch, since, sum(len(item.ids) for item in batch.rows))
            if priority == "bulk":
                self._bulk_began = time.monotonic()

    def _finish(self, batch: Batch, ran: Ran) -> None:
        """Answer a batch that has run."""
        for padded in ran.too_large:
            self.budget.ran_out_of_memory(padded, time.monotonic())
        if not ran.answers:
            return
        self._settle(ran.answers, ran)
        lengths = [len(item.ids) for item in ran.answers]
        self._metrics.observe_batch(lengths, batch.reason, ran.seconds)
        busy = batch.reason != "lengths" or max(lengths) * len(lengths) >= self._limits.enough_tokens
        self.budget.ran(sum(lengths), self._took(ran), full=busy and batch.reason != "idle")
        failed = all(isinstance(answer, ServiceError) for answer in ran.answers.values())
        self.failed_batches = self.failed_batches + 1 if failed else 0

    def _took(self, ran: Ran) -> float:
        """Seconds since the batch could have begun: its rows were there, and one of those before it was over."""
        ended = ran.began + ran.seconds
        oldest = min(item.enqueued_at for item in ran.answers)
        seconds = ended - max(self._ended[0], oldest)
        self._ended.append(ended)
        return seconds

    def _settle(self, answers: dict[Pending, Logits | ServiceError], ran: Ran) -> None:
        """Answer the rows that were run, and all that wait with the same ids, also if they came meanwhile."""
        by_key = {item.key: answer for item, answer in answers.items()}
        equal = [item for key in by_key for item in self.waiting.equal(key)]
        self._metrics.shared_answers.inc(len(equal))
        for item in [*answers, *equal]:
            self.waiting.remove(item)
            answer = by_key[item.key]
            queue_s = max(0.0, ran.began - item.enqueued_at)
            self._metrics.queue_seconds.observe(queue_s)
            # An error of one's own: the caller writes the place of the text into it, and may raise it.
            item.settle(copy.copy(answer) if isinstance(answer, ServiceError) else Scored(answer, queue_s, ran.seconds))
        for key, answer in by_key.items():
            if not isinstance(answer, ServiceError):
                self._cache.put(key, answer)
