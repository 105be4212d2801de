"""Trying the first steps of a training stage: what they cost, and then the end of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from lengnuan.training.errors import UsageError

STEPS = 20
WARM_UP_STEPS = 5  # not counted in the cost: memory is asked for, kernels are chosen


class TrialEnds(Exception):
    """The stage has done its steps."""


@dataclass
class Trial:
    """What a stage did.

    Args:
        began: when it was called, by `time.monotonic`.
        steps: how many it would do; 0 before it has planned them.
        prepared: seconds before its first step.
        step_seconds: of each step that was tried.
    """

    began: float
    steps: int = 0
    prepared: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    _last: float = 0.0

    def plan(self, steps: int) -> None:
        """The stage is about to begin."""
        self.steps = steps
        self._last = time.monotonic()
        self.prepared = self._last - self.began

    def step(self) -> None:
        """One more is done.

        Raises:
            TrialEnds: it was the last.
        """
        self.step_seconds.append(self._passed())
        if len(self.step_seconds) == STEPS:
            raise TrialEnds

    def judged(self) -> None:
        """An evaluation is done, whose time is no step's."""
        self._passed()

    def seconds_a_step(self) -> float:
        """The mean of those after the warm-up, if there were any."""
        counted = self.step_seconds[WARM_UP_STEPS:] or self.step_seconds
        return sum(counted) / max(1, len(counted))

    def _passed(self) -> float:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        return passed


# A process trains one thing at a time, so what watches it belongs to the process.
_running: list[Trial] = []


def watching() -> Trial | None:
    """The trial that the stage is part of, if it is."""
    return _running[-1] if _running else None


@contextmanager
def trial() -> Iterator[Trial]:
    """Inside, a stage ends after `STEPS` steps; what it did is known afterwards.

    Raises:
        UsageError: inside another trial.
    """
    if _running:
        raise UsageError("a trial inside a trial")
    _running.append(Trial(time.monotonic()))
    try:
        with suppress(TrialEnds):
            yield _running[-1]
    finally:
        _running.clear()
