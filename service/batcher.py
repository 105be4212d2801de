"""The queue and the loop that runs it. Only ids come in and only logits go out: nothing here knows a text or a label.

A batch forms while the engine is busy with those before, so an idle service adds no wait. When a full one waits, it is
handed over before the engine is free, so that a fast device isn't idle while answers go out. Rows with the same ids
are run once: those that wait when the answer comes get it too, and later ones, for a while, from the cache.
"""

import asyncio
import copy
import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lengnuan.model.engine import Engine, Logits
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.service.batching import Batch, Limits, Pending, Scored, take_batch
from lengnuan.service.cache import LogitsCache
from lengnuan.service.errors import DeadlineExceeded, EngineFailed, NotReady, Overloaded, ServiceError
from lengnuan.service.metrics import Metrics
from lengnuan.service.threads import EngineThreads

log = logging.getLogger(__name__)

LONGEST_RETRY_S = 60
# Weight of the newest batch in the running throughput: about the last five batches count.
THROUGHPUT_WEIGHT = 0.2


@dataclass(frozen=True)
class _Ran:
    """What the engine's thread gives back: an answer a row, when it began (`time.monotonic()`), and its seconds."""

    answers: list[Logits | ServiceError]
    began: float
    seconds: float


class Batcher:
    """Runs waiting rows through one engine, as many batches at once as it takes.

    Args:
        engine: called in `threads` only.
        limits: what may run and wait.
        metrics: where queue, batches and failures are counted.
        threads: where the engine runs; stopped by whoever made it.
        cache: what the engine has answered before.

    Attributes:
        waiting: rows in the queue, oldest first.
        waiting_tokens: the sum of their lengths.
        failed_batches: batches without a single answer, in a row, up to now.
    """

    def __init__(
        self, engine: Engine, limits: Limits, metrics: Metrics, threads: EngineThreads, cache: LogitsCache
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._limits = limits
        self._metrics = metrics
        self._news = asyncio.Event()  # a row has come, or a batch has run
        self._threads = threads
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Future[_Ran], tuple[Batch, float]] = {}  # and when each was handed over
        self._tokens_per_s = 0.0
        self.waiting: dict[Pending, None] = {}  # a dict, for its order and its removal from the middle
        self.waiting_tokens = 0
        self.failed_batches = 0

    @property
    def alive(self) -> bool:
        """False before `start`, after `stop`, and when the loop has died of a mistake."""
        return self._task is not None and not self._task.done()

    @property
    def running_since(self) -> float | None:
        """When the oldest batch with the engine was handed over (`time.monotonic()`); None while it has none."""
        return min((since for _, since in self._calls.values()), default=None)

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the loop; rows without an answer get `NotReady`. Doesn't wait for a call of the engine in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def score(self, rows: Sequence[Sequence[int]], deadline: float) -> list[Scored | ServiceError]:
        """Logits of each row, in their order; the error in its place for a row that failed or came too late.

        Waits until the last row is answered, at most until `deadline`, even while the engine is stuck. Cancelling
        the call takes its rows out of the queue.

        Args:
            rows: at least one row of ids, each with 1 to `limits.max_tokens` of them.
            deadline: on the clock of `time.monotonic()`.

        Raises:
            Overloaded: the queue has no room for all of the rows; none was queued.
            NotReady: the loop isn't running.
        """
        pending = self._admit(rows, deadline)
        timer = asyncio.get_running_loop().call_later(deadline - time.monotonic(), self._expire, pending)
        try:
            return [await item.future for item in pending]
        finally:
            timer.cancel()
            for item in pending:
                item.future.cancel()
                self._leave_queue(item)

    def _admit(self, rows: Sequence[Sequence[int]], deadline: float) -> list[Pending]:
        if not self.alive:
            raise NotReady("the model is not running")
        loop, now = asyncio.get_running_loop(), time.monotonic()
        pending = [Pending(ids, loop.create_future(), now, deadline) for ids in rows]
        known = {item: logits for item in pending if (logits := self._cache.get(item.key)) is not None}
        unknown = [item for item in pending if item not in known]
        tokens = sum(len(item.ids) for item in unknown)
        for kind, limit, wanted in (
            ("texts", self._limits.queue_items, len(self.waiting) + len(unknown)),
            ("tokens", self._limits.queue_tokens, self.waiting_tokens + tokens),
        ):
            if wanted > limit:
                message = f"too many {kind} are waiting; none of this request was started"
                raise Overloaded(message, retry_after_s=self._retry_after_s(), limit=limit, actual=wanted)
        for item, logits in known.items():
            item.settle(Scored(logits, queue_s=0.0, infer_s=0.0))
        self._metrics.observe_cache(hits=len(known), misses=len(unknown))
        self.waiting.update(dict.fromkeys(unknown))
        self.waiting_tokens += tokens
        self._news.set()
        return pending

    def _retry_after_s(self) -> int:
        """Time to work off what is waiting, at the pace of the last batches."""
        wait_s = self.waiting_tokens / self._tokens_per_s if self._tokens_per_s else 1.0
        return min(LONGEST_RETRY_S, max(1, math.ceil(wait_s)))

    def _leave_queue(self, item: Pending) -> None:
        if item in self.waiting:
            del self.waiting[item]
            self.waiting_tokens -= len(item.ids)

    def _expire(self, pending: Iterable[Pending]) -> None:
        running = set(self._running())
        for item in pending:
            self._leave_queue(item)
            item.settle(DeadlineExceeded("infer" if item in running else "queue"))

    async def _run(self) -> None:
        """The loop. However it ends, nobody is left waiting."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                for call in [call for call in self._calls if call.done()]:
                    batch, _ = self._calls.pop(call)
                    self._finish(batch, call.result())
                while self._may_begin():
                    self._begin()
        except Exception:
            log.critical("the batch loop died; the service is not ready from now on", exc_info=True)
        finally:
            for item in [*self._running(), *self.waiting]:
                self._leave_queue(item)
                item.settle(NotReady("the model has stopped"))
            for call in self._calls:
                call.cancel()

    def _running(self) -> list[Pending]:
        """The rows that were handed over and have no answer yet."""
        return [item for batch, _ in self._calls.values() for item in batch.rows]

    def _not_running(self) -> list[Pending]:
        """What waits, oldest first, without the rows whose answer is already on its way."""
        running = {item.key for item in self._running()}
        return [item for item in self.waiting if item.key not in running]

    def _may_begin(self) -> bool:
        """Whether something can run at once, or a full batch waits and none is ahead of time yet."""
        free = self._engine.workers - len(self._calls)
        return bool(self._not_running()) if free > 0 else free == 0 and self._full()

    def _full(self) -> bool:
        """Whether what waits would fill a batch."""
        rows, tokens = self._limits.max_rows, self._limits.max_tokens
        if len(self.waiting) < rows and self.waiting_tokens < tokens:
            return False
        lengths = {item.key: len(item.ids) for item in self._not_running()}
        return len(lengths) >= rows or sum(lengths.values()) >= tokens

    def _begin(self) -> None:
        """Take a batch out of the queue and give it to the engine."""
        now = time.monotonic()
        batch = take_batch(self._not_running(), self._limits, now)
        for item in [*batch.dropped, *batch.rows]:
            self._leave_queue(item)
        for item in batch.dropped:
            item.settle(DeadlineExceeded("queue"))
        if batch.rows:
            call = self._threads.run(self._timed, batch.rows)
            call.add_done_callback(lambda _: self._news.set())
            self._calls[call] = batch, now

    def _finish(self, batch: Batch, ran: _Ran) -> None:
        """Answer a batch that has run."""
        self._settle(dict(zip(batch.rows, ran.answers, strict=True)), ran)
        self._measure(batch, ran.seconds)
        failed = all(isinstance(answer, ServiceError) for answer in ran.answers)
        self.failed_batches = self.failed_batches + 1 if failed else 0

    def _settle(self, answers: dict[Pending, Logits | ServiceError], ran: _Ran) -> None:
        """Answer the rows that were run, and all that wait with the same ids, also if they came meanwhile."""
        by_key = {item.key: answer for item, answer in answers.items()}
        equal = [item for item in self.waiting if item.key in by_key]
        self._metrics.shared_answers.inc(len(equal))
        for item in [*answers, *equal]:
            self._leave_queue(item)
            answer = by_key[item.key]
            queue_s = max(0.0, ran.began - item.enqueued_at)
            self._metrics.queue_seconds.observe(queue_s)
            # An error of one's own: the caller writes the place of the text into it, and may raise it.
            item.settle(copy.copy(answer) if isinstance(answer, ServiceError) else Scored(answer, queue_s, ran.seconds))
        for key, answer in by_key.items():
            if not isinstance(answer, ServiceError):
                self._cache.put(key, answer)

    def _measure(self, batch: Batch, infer_s: float) -> None:
        lengths = [len(item.ids) for item in batch.rows]
        self._metrics.observe_batch(lengths, batch.reason, infer_s)
        pace = sum(lengths) / max(infer_s, 1e-6)
        before = self._tokens_per_s or pace
        self._tokens_per_s = before + THROUGHPUT_WEIGHT * (pace - before)

    def _timed(self, rows: Sequence[Pending]) -> _Ran:
        """In a thread of the engine."""
        began = time.monotonic()
        answers = self._compute(rows)
        return _Ran(answers, began, time.monotonic() - began)

    def _compute(self, rows: Sequence[Pending]) -> list[Logits | ServiceError]:
        """Pad and run. A batch that raises is halved until the guilty row is alone."""
        try:
            logits = self._engine.run(*pad([item.ids for item in rows], PAD_ID))
            if len(logits) != len(rows):
                raise ValueError(f"{len(logits)} rows of logits for {len(rows)} rows of ids")
        except Exception as error:  # whatever a runtime raises must not end the loop
            if len(rows) > 1:
                half = len(rows) // 2
                return self._compute(rows[:half]) + self._compute(rows[half:])
            log.error("the engine failed on a row: %s", type(error).__name__, exc_info=True)
            self._metrics.engine_errors["runtime"].inc()
            return [EngineFailed("the model failed on this text")]
        return [self._checked(row) for row in logits]

    def _checked(self, logits: Logits) -> Logits | ServiceError:
        if np.isfinite(logits).all():
            return logits
        log.error("the engine gave logits that are not finite")
        self._metrics.engine_errors["not_finite"].inc()
        return EngineFailed("the model gave an answer that is not a number for this text")
