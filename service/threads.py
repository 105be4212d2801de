"""The threads in which engines are opened, warmed up and run."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class EngineThreads:
    """One thread for each call that an engine takes at once, and no other: the event loop never calls it.

    A call that hangs can't be ended. Nobody here waits for it, but the interpreter does before it exits: whoever
    ends the process looks at `busy`.
    """

    def __init__(self, name: str = "engine") -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._calls: set[Future[Any]] = set()
        self.workers = 1

    @property
    def busy(self) -> bool:
        """A call is in progress, even if its caller has been cancelled."""
        return any(not call.done() for call in self._calls)

    def set_workers(self, workers: int) -> None:
        """Run so many calls at once from now on; one at first. Calls that have been taken before are still run."""
        if workers != self.workers:
            self._executor.shutdown(wait=False)
            self._executor = ThreadPoolExecutor(workers, thread_name_prefix=self._name)
            self.workers = workers

    def run(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """The result of `function(*arguments)`, which begins after the calls before it.

        Cancelling gives up the wait, not a call that has begun.
        """
        call = self._executor.submit(function, *arguments)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return asyncio.wrap_future(call)

    def stop(self) -> None:
        """Take no more calls. Doesn't wait for those in progress."""
        self._executor.shutdown(wait=False)
