"""How much the engine gets at once, and how long work takes: learnt from the batches that ran."""

import math

from lengnuan.service.batching import Limits, Priority

# How long a batch counts in the running pace: after so many seconds of work a third of its weight is left.
PACE_S = 5.0
# Beyond what the pace says, for refusals: a flood that is refused takes up to a fifth of the engine's time.
CAUTION = 1.2
# After running out of memory: how long with less, before as much again is tried.
EASED_S = 60.0
# Without an interactive row for so long, bulk may run in batches as large as any.
ALONE_AFTER_S = 10.0


class Budget:
    """Tokens of the next batch, and seconds for what waits.

    Args:
        limits: the most that may run together.
        workers: batches that run at once.
    """

    def __init__(self, limits: Limits, workers: int) -> None:
        self._limits = limits
        self._workers = workers
        self._tokens = limits.max_tokens
        self._raise_at = math.inf
        self._ran_tokens = self._ran_s = 0.0  # of the last batches, old ones less and less
        self._full_seen = False
        self._alone_from = -math.inf

    def tokens(self, priority: Priority, now: float) -> int:
        """Padded tokens that the next batch of one priority may hold at `now` (`time.monotonic()`).

        A batch of bulk is to be over within `bulk_run_s`, unless no interactive row has come for a while. After running
        out of memory no batch is as large as the one that did, for a while.
        """
        while now >= self._raise_at:
            self._tokens = min(2 * self._tokens, self._limits.max_tokens)
            self._raise_at = math.inf if self._tokens == self._limits.max_tokens else self._raise_at + EASED_S
        if priority == "interactive" or now >= self._alone_from or not self._pace:
            return self._tokens
        return max(1, int(min(self._tokens, self._limits.bulk_run_s * self._pace)))

    def may_be_ahead(self, priority: Priority, now: float) -> bool:
        """Whether a full batch may stand behind the one in progress: bulk, if both together are over in its time."""
        if priority == "interactive" or now >= self._alone_from:
            return True
        return 2 * self._tokens <= self._limits.bulk_run_s * self._pace

    def came(self, priority: Priority, now: float) -> None:
        """A row has come."""
        if priority == "interactive":
            self._alone_from = now + ALONE_AFTER_S

    def seconds_for(self, tokens: int) -> float | None:
        """How long so many waiting tokens will take; None before anything has run."""
        return tokens / (self._pace * self._workers) if self._pace else None

    def wait_s(self, tokens: int) -> float:
        """The same as far as it is sure, for refusals: 0 until a full batch has run.

        A device may run a full batch as fast as a single row, so that single rows say little about a queue.
        """
        return CAUTION * (self.seconds_for(tokens) or 0.0) if self._full_seen else 0.0

    @property
    def _pace(self) -> float:
        """Tokens a second, of each batch that runs; 0 before any has.

        All tokens over all seconds: the mean of each batch's own pace would be above what gets done.
        """
        return self._ran_tokens / max(self._ran_s, 1e-6)

    def ran(self, tokens: int, seconds: float, full: bool) -> None:
        """A batch has run.

        Args:
            tokens: without padding.
            seconds: since it could have begun: what the engine waited for it counts.
            full: others had to stay behind.
        """
        if self._full_seen and not full and tokens <= self._pace * seconds:
            return  # it may have had too little to do; only that it was faster says something
        seconds = min(seconds, PACE_S)  # a process that was stopped for a minute is not slow from then on
        kept = math.exp(-seconds / PACE_S) if self._full_seen or not full else 0.0
        self._ran_tokens = kept * self._ran_tokens + tokens
        self._ran_s = kept * self._ran_s + seconds
        self._full_seen = self._full_seen or full

    def ran_out_of_memory(self, padded: int, now: float) -> None:
        """A batch of so many padded tokens was too large."""
        self._tokens = max(1, min(self._tokens, padded // 2))
        self._raise_at = now + EASED_S
