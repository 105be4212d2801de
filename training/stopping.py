"""Being told to stop: SIGTERM from a cluster, Ctrl-C from a person.

A command stops at once: whatever it writes is written aside first, so nothing is left half done. A training loop
finishes its step or its dev batch before that, so that there is a whole state to save: inside `stopping_waits` the
signal waits for the next `stop_point`. Processes that train together all stop at the same one, whichever of them got
the signal.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lengnuan.training.distributed import anywhere
from lengnuan.training.errors import Interrupted

# Signals belong to the process, so what they said does too.
_asked = threading.Event()
_waits = threading.Event()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT raise `Interrupted`; afterwards they do what they did before. Main thread only."""
    before = {number: signal.signal(number, _on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


@contextmanager
def stopping_waits() -> Iterator[None]:
    """Inside, a signal raises `Interrupted` at the next `stop_point` only, or at the end."""
    _waits.set()
    try:
        yield
        stop_point()
    finally:
        _waits.clear()


def stop_point() -> None:
    """A place where nothing is half done. Inside `stopping_waits` processes that train together come here together.

    Raises:
        Interrupted: a signal has asked for it, in any of them.
    """
    asked = _asked.is_set()
    if anywhere(asked) if _waits.is_set() else asked:
        raise Interrupted("stopped by a signal: the same command goes on from here")


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.set()
    if not _waits.is_set():
        stop_point()
