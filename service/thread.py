"""The thread in which the engine is opened, warmed up and run."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class EngineThread:
    """One thread for every call of the engine: runtimes keep buffers a thread, so what was warmed up is what serves.

    A call that hangs can't be ended. Nobody here waits for it, but the interpreter does before it exits: whoever
    ends the process looks at `busy`.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._call: Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """A call is in progress, even if its caller has been cancelled."""
        return self._call is not None and not self._call.done()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of `function(*arguments)`; one call at a time. Cancelling gives up the wait, not the call."""
        call = self._call = self._executor.submit(function, *arguments)
        return await asyncio.wrap_future(call)

    def stop(self) -> None:
        """Take no more calls. Doesn't wait for the one in progress."""
        self._executor.shutdown(wait=False)
