"""How fast a key may ask: a bucket that fills steadily and is emptied by what it lets through."""

import time
from collections.abc import Callable


class Bucket:
    """Lets `per_minute` through in a minute, and as many at once after a quiet one. One process, one event loop.

    Args:
        per_minute: above 0.
        clock: seconds; tests bring their own.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._size = max(1.0, per_minute)
        self._level = self._size
        self._filled_at = clock()

    def take(self, count: int) -> float:
        """Take all of `count` and return 0; or take nothing and return the seconds until they could be had.

        More than a full bucket holds is let through when it is full, and paid for by those who come after.
        """
        self._fill()
        missing = min(count, self._size) - self._level
        if missing > 0:
            return missing * 60 / self.per_minute
        self._level -= count
        return 0.0

    def owe(self, count: int) -> float:
        """Take `count` at once, whatever there is; returns the seconds until the debt is paid."""
        self._fill()
        self._level -= count
        return max(0.0, -self._level) * 60 / self.per_minute

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._filled_at) * self.per_minute / 60)
        self._filled_at = now
