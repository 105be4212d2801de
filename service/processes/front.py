"""A process that answers HTTP and turns texts into ids; the one that started it has the models.

    python -m lengnuan.service.processes.front LISTENING LINK SETTINGS

LISTENING and LINK are the numbers of two sockets that it inherits, SETTINGS is JSON. Nobody but `parent.py` starts it.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence

from lengnuan.service.app import create_app
from lengnuan.service.errors import InternalError, NotReady
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.listening import Leaving, run, take_signals
from lengnuan.service.logs import configure_logging
from lengnuan.service.metrics import Metrics
from lengnuan.service.processes.link import Head, Link
from lengnuan.service.processes.merged import snapshot
from lengnuan.service.processes.remote import Condition, Facts, RemoteBatcher, read_bundle
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings, SettingsRefused
from lengnuan.service.slots import Reloaded

log = logging.getLogger(__name__)


class FrontLifecycle(Lifecycle):
    """That of a process whose models are in another one.

    Args:
        settings: those of the service.
        metrics: of this process.
        connection: to the process with the models.

    Attributes:
        leave: called when that process says so.
    """

    def __init__(self, settings: Settings, metrics: Metrics, connection: socket.socket) -> None:
        super().__init__(settings, metrics)
        self._connection = connection
        self._batchers: dict[int, RemoteBatcher] = {}
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self.leave: Callable[[], None] = self.drain

    async def start(self) -> None:
        """Wait for the models: connections are accepted afterwards, and by the others meanwhile."""
        self._link = await Link.over(self._connection, self._handle)
        self._linked.set()
        waits = [asyncio.ensure_future(event.wait()) for event in (self.settled, self._link.closed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._start_shadow()

    async def _handle(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        """Answer the other process."""
        match head["call"]:
            case "serve":
                await self._serve(head, body)
                return {}, b""
            case "conditions":
                for number, condition in head["told"].items():
                    if int(number) in self._batchers:
                        self._batchers[int(number)].hear(Condition(**condition))
                return {}, b""
            case "leave":
                self.leave()
                return {}, b""
            case "snapshot":
                return {"families": snapshot(self.metrics.registry)}, b""
        raise InternalError(f"no such call: {head['call']}")

    async def _serve(self, head: Head, body: bytes) -> None:
        """Serve another model under a name."""
        slot, number = self.slots[head["slot"]], head["served"]
        bundle = await self._loader.run(read_bundle, head, body)
        batcher = RemoteBatcher(self._peer(), number, lambda: self._batchers.pop(number, None))
        self._batchers[number] = batcher
        facts = Facts(**head["facts"])
        slot.put(ServedModel(bundle, facts, batcher, self._settings, slot.metrics, head["name"]))
        if all(slot.served for slot in self.slots.values()):
            self.settled.set()

    def _peer(self) -> Link:
        if self._link is None:
            raise NotReady("the model is loading")
        return self._link

    async def gone(self) -> None:
        """Return when the other process has ended."""
        await self._linked.wait()
        await self._peer().closed.wait()

    async def reload(self, name: str | None = None) -> list[Reloaded]:
        """Ask the other process; see `Lifecycle.reload`. All processes serve what came of it when this returns."""
        if self.draining:
            raise NotReady("the service is shutting down")
        head, _ = await self._peer().call("reload", model=name)
        return [Reloaded(**entry) for entry in head["reloaded"]]

    def reload_later(self) -> None:
        """Nothing: the other process gets the signal too."""

    async def render_metrics(self) -> bytes:
        """The metrics of all processes together."""
        _, body = await self._peer().call("metrics")
        return body


def main(argv: Sequence[str]) -> int:
    """Answer requests until the process with the models says so, or is gone; returns the exit code."""
    listening, connection = (socket.socket(fileno=int(number)) for number in argv[:2])
    settings = Settings.model_validate_json(argv[2])
    configure_logging(settings.log_level, sys.stderr, settings.log_format)
    try:
        serve(settings, listening, connection)
    except SettingsRefused as error:  # a file that was good when the service started
        log.error("%s", error)
        return 2
    except Exception as error:
        log.exception("a process that answers HTTP made a mistake: %s", error)
        return 1
    return 0


def serve(settings: Settings, listening: socket.socket, connection: socket.socket) -> None:
    """Answer requests with the models of the process at the other end of `connection`.

    Raises:
        SettingsRefused: a file that the settings name can't be used.
    """
    logging.getLogger("lengnuan.service.listening").setLevel("WARNING")  # the other process tells that once
    lifecycle = FrontLifecycle(settings, Metrics(), connection)

    async def leave_with_it(leaving: Leaving) -> None:
        # A signal may be for all processes of a group or a service: the other one takes it, and tells.
        take_signals(lambda: None, lambda: None)
        lifecycle.leave = leaving.leave
        await lifecycle.gone()
        if not lifecycle.draining:
            log.critical("the process with the models has ended")
        leaving.close()

    run(create_app(settings, lifecycle=lifecycle), settings, listening, leave_with_it)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
