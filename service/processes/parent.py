"""Starts the processes that answer HTTP, keeps them going, and runs the models for them."""

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import Process

import uvicorn

from lengnuan.model.engine import Engine
from lengnuan.service import listening
from lengnuan.service.app import create_app
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics
from lengnuan.service.processes.fronts import Front, Fronts
from lengnuan.service.settings import Settings

log = logging.getLogger(__name__)

FRONT = "lengnuan.service.processes.front"
# Beyond the time that a process has to answer what it has taken.
LAST_S = 5.0
# Between two tries to replace a process: at first, and at the longest.
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0


class FrontFailed(Exception):
    """A process that answers HTTP has ended before it could answer anything; its log says why."""


def run_parent(settings: Settings, taken: socket.socket, url: str, engine: Engine | None = None) -> Lifecycle:
    """Run models and processes until SIGTERM or SIGINT, and drain; SIGHUP reloads. Blocks until then.

    Args:
        settings: of the service.
        taken: the socket that the processes accept from.
        url: where that is.
        engine: runs the bundle's graph; None opens the bundle's own.

    Returns:
        The lifecycle of the models, stopped; it says why, if it had to.

    Raises:
        SettingsRefused: the application can't be made with these settings.
    """
    lifecycle = Lifecycle(settings, Metrics(), engine)
    create_app(settings, lifecycle=lifecycle)  # what it refuses is told once, and before anything is started
    parent = Parent(settings, lifecycle, taken)
    with taken, asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(parent.run(url))
    return lifecycle


class Parent:
    """The process with the models.

    Args:
        settings: of the service.
        lifecycle: of the models.
        taken: the socket that the processes accept from.
    """

    def __init__(self, settings: Settings, lifecycle: Lifecycle, taken: socket.socket) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._taken = taken
        self._fronts = Fronts(lifecycle, lifecycle.metrics)
        self._running: dict[Process, Front] = {}
        self._all_ready = asyncio.Event()

    async def run(self, url: str) -> None:
        """Until a signal, a model that can't be loaded or a process that can't start."""
        listening.take_signals(self._leave, self._lifecycle.reload_later)
        await self._lifecycle.start()
        telling = asyncio.create_task(self._tell(url))
        keeping = [asyncio.create_task(self._keep()) for _ in range(self._settings.http_processes)]
        try:
            await asyncio.gather(*keeping)
        except (FrontFailed, OSError) as error:
            self._lifecycle.failure = self._lifecycle.failure or error
        finally:
            for task in (telling, *keeping):
                task.cancel()
            await asyncio.wait(keeping)
            await self._lifecycle.stop()

    async def _keep(self) -> None:
        """Have one process; another one whenever it ends although nobody asked it to.

        Raises:
            FrontFailed, OSError: the first one could not start.
        """
        delay_s = FIRST_DELAY_S
        while not self._lifecycle.draining:
            try:
                served = await self._run_one()
            except (FrontFailed, OSError) as error:
                if self._lifecycle.draining:
                    return
                if not self._all_ready.is_set():
                    raise
                log.error("%s; tried again in %g s", error, delay_s)
                served = False
            if not served:
                await asyncio.sleep(delay_s)
            delay_s = FIRST_DELAY_S if served else min(2 * delay_s, LONGEST_DELAY_S)

    async def _run_one(self) -> bool:
        """Start a process and wait for its end; True if it could answer requests, or is no longer needed."""
        process, front = await self._start()
        self._running[process] = front
        if self._lifecycle.draining:  # since a moment ago
            _kill(process)
        attending = asyncio.create_task(self._attend(process, front))
        try:
            code = await process.wait()
        finally:
            attending.cancel()
            _kill(process)
            del self._running[process]
            self._fronts.forget(front)
        if self._lifecycle.draining:
            return True
        if not front.ready.is_set():
            raise FrontFailed(f"a process that answers HTTP could not start: it ended with {code}")
        fields = {"process": process.pid, "code": code}
        log.error("a process that answers HTTP has ended; another takes its place", extra={"fields": fields})
        return True

    async def _start(self) -> tuple[Process, Front]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    # -P: modules of the working directory are no part of the service.
                    *(sys.executable, "-P", "-m", FRONT, str(self._taken.fileno()), str(theirs.fileno())),
                    self._settings.model_dump_json(),
                    pass_fds=(self._taken.fileno(), theirs.fileno()),
                )
            except (OSError, ValueError):
                ours.close()
                raise
        return process, await self._fronts.connect(ours)

    async def _attend(self, process: Process, front: Front) -> None:
        """Once it serves the models, tell it how they are; end it when it no longer listens."""
        await front.ready.wait()
        if sum(other.ready.is_set() for other in self._running.values()) == self._settings.http_processes:
            self._all_ready.set()
        await front.attend(self._settings.dead_after_s)
        if not front.link.closed.is_set():
            _kill(process)

    async def _tell(self, url: str) -> None:
        """Tell the person at the terminal what to type first; or, if a model can't be loaded, let the service end."""
        await self._lifecycle.settled.wait()
        if self._lifecycle.failure is not None or self._lifecycle.served is None:
            self._leave()
            return
        await self._all_ready.wait()
        listening.tell_ready(self._lifecycle.served, url)

    def _leave(self) -> None:
        """Let every process drain as it would by itself; asked twice, they stop now."""
        settings = self._settings
        if not self._lifecycle.draining:
            if self._all_ready.is_set():
                listening.tell_draining(settings.drain_delay_s)
            patience_s = settings.drain_delay_s + settings.shutdown_timeout_s + LAST_S
            asyncio.get_running_loop().call_later(patience_s, self._kill_all)
        self._lifecycle.drain()
        self._taken.close()  # the processes have their own; when they have closed those, clients are refused
        for process, front in self._running.items():
            if front.ready.is_set():
                front.link.tell("leave")
            else:
                _kill(process)  # it has not answered anybody

    def _kill_all(self) -> None:
        for process in self._running:
            _kill(process)


def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
