"""A listening socket, an application behind it, and the signals that end or reload it."""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import uvicorn
from fastapi import FastAPI

from lengnuan.service.gathering import GatheringProtocol
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

log = logging.getLogger(__name__)

FIRST_TEXT = "这部电影虽然前半段节奏很慢，但结尾非常精彩"
BACKLOG = 2048
# Bytes of a request's first line and headers together; a body has limits of its own.
MAX_HEAD_BYTES = 1 << 16
# So many objects more than at the last look have the garbage collector look again; Python's own 700 are there after two
# requests, whose objects nearly all end without it (docs/decisions.md).
GARBAGE_OBJECTS = 20_000
# What goes on beside the requests; takes the signals.
Beside = Callable[["Leaving"], Awaitable[None]]


class AddressRefused(Exception):
    """The host has no such address, or the port is taken."""


def listen(host: str, port: int) -> socket.socket:
    """Take an address for the service.

    Raises:
        AddressRefused: it can't be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # every address of the machine, of either kind
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise AddressRefused(f"can't listen on {host} port {port}: {error.strerror or error}") from error


def url_of(host: str, port: int) -> str:
    """An address that a client on this machine can use."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def tell_ready(served: ServedModel, url: str) -> None:
    """Tell the person at the terminal what to type first."""
    body = json.dumps({"input": FIRST_TEXT}, ensure_ascii=False)
    curl = f"curl -s {url}/v1/classify -H 'Content-Type: application/json' -d '{body}'"
    fields = {"url": url, "docs": f"{url}/docs", "curl": curl}
    model = {"model": served.name, "version": served.bundle.version, "provider": served.engine.provider}
    log.info("ready", extra={"fields": {**model, **fields}})


def run(app: FastAPI, settings: Settings, listening: socket.socket, beside: Beside) -> None:
    """Answer requests until `beside` has them end, and drain. Blocks until then.

    Args:
        app: `create_app`'s.
        settings: how long things may take.
        listening: closed when nobody is answered any more.
        beside: goes on meanwhile; takes the signals (`take_signals`).
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        proxy_headers=False,  # nobody here asks where a request came from
        access_log=False,
        server_header=False,
        lifespan="on",
        # The other parser, httptools, loses the body of a request with `Upgrade: h2c` and has no limit for headers.
        http=GatheringProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
    )
    lifecycle: Lifecycle = app.state.lifecycle
    gc.set_threshold(GARBAGE_OBJECTS)
    with listening, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        server = uvicorn.Server(config)
        runner.run(_run(server, listening, Leaving(server, lifecycle, settings.drain_delay_s), beside))


def end(lifecycle: Lifecycle) -> None:
    """Leave a service that has been stopped. Ends the process itself if an engine is still busy.

    Raises:
        ModelError: why it had to stop.
        SettingsRefused: likewise.
    """
    log.info("stopped")
    if lifecycle.failure is not None:
        raise lifecycle.failure
    if lifecycle.busy:
        log.warning("the engine is still busy and is left behind")
        logging.shutdown()
        os._exit(0)  # an ordinary exit would wait for the engine's thread, which may be stuck for ever


def tell_draining(drain_delay_s: float) -> None:
    """Tell whoever reads the log what goes on."""
    log.info("draining; signal again (Ctrl-C) to stop now", extra={"fields": {"drain_delay_s": drain_delay_s}})


class Leaving:
    """How a service that answers HTTP ends."""

    def __init__(self, server: uvicorn.Server, lifecycle: Lifecycle, drain_delay_s: float) -> None:
        self._server = server
        self._lifecycle = lifecycle
        self._drain_delay_s = drain_delay_s

    def close(self) -> None:
        """Accept nothing more, and end with the last reply."""
        self._lifecycle.drain()
        self._server.should_exit = True

    def leave(self) -> None:
        """Be unready, and close after a while; asked a second time, stop: whoever still waits is told so."""
        if self._lifecycle.draining:
            self.close()
            for task in self._server.server_state.tasks:
                task.cancel()
        elif not self._lifecycle.settled.is_set():
            self.close()
        else:
            tell_draining(self._drain_delay_s)
            self._lifecycle.drain()
            asyncio.get_running_loop().call_later(self._drain_delay_s, self.close)


async def _run(server: uvicorn.Server, listening: socket.socket, leaving: Leaving, beside: Beside) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await asyncio.sleep(0)  # its first step puts uvicorn's signal handlers in place, which would close at once
    going_on = asyncio.ensure_future(beside(leaving))
    await serving
    going_on.cancel()


def take_signals(leave: Callable[[], None], reload: Callable[[], None]) -> None:
    """Let SIGTERM and SIGINT call `leave`; SIGHUP calls `reload`, or `leave` if it says that the terminal is gone."""
    loop, terminal = asyncio.get_running_loop(), _has_terminal()

    def hang_up() -> None:
        if terminal and not _has_terminal():  # its window was closed: whoever started the service is gone
            leave()
        else:
            reload()

    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, leave)
    loop.add_signal_handler(signal.SIGHUP, hang_up)


def _has_terminal() -> bool:
    """Whether the process was started from a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
