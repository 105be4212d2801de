"""`lengnuan-serve`: settings in, a running service, an exit code out.

Exit codes: 0 stopped when asked to; 1 a mistake in the service; 2 a setting is wrong; 3 the bundle is refused;
4 the device or runtime is missing; 5 the address can't be used.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from lengnuan.model.engine import Engine
from lengnuan.model.errors import BundleRefused, EngineUnavailable
from lengnuan.service.app import create_app
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.logs import configure_logging
from lengnuan.service.settings import Settings, SettingsRefused, unknown_variables

log = logging.getLogger(__name__)


class AddressRefused(Exception):
    """The host has no such address, or the port is taken."""


EXIT_CODES: dict[type[Exception], int] = {
    SettingsRefused: 2,
    BundleRefused: 3,
    EngineUnavailable: 4,
    AddressRefused: 5,
}
FIRST_TEXT = "这部电影虽然前半段节奏很慢，但结尾非常精彩"
BACKLOG = 2048
# Bytes of a request's first line and headers together; a body has limits of its own.
MAX_HEAD_BYTES = 1 << 16


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, reload on SIGHUP; returns the exit code."""
    configure_logging("info", sys.stderr)
    try:
        settings = Settings.from_command_line(sys.argv[1:] if argv is None else argv)
        configure_logging(settings.log_level, sys.stderr, settings.log_format)
        for name in unknown_variables():
            log.warning("%s is in the environment, but is no setting: ignored", name)
        serve(settings)
    except tuple(EXIT_CODES) as error:
        log.error("%s", error)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except Exception as error:
        log.exception("the service made a mistake: %s", error)
        return 1
    return 0


def serve(settings: Settings, engine: Engine | None = None) -> None:
    """Listen, load, answer, and on a signal drain. Ends the process itself if the engine is still busy then.

    Args:
        settings: what to serve, and how.
        engine: runs the bundle's graph; None opens the bundle's own.

    Raises:
        AddressRefused: the address can't be used.
        ModelError: the bundle or the device can't.
        SettingsRefused: a limit does not fit the model.
    """
    listening = _listen(settings.host, settings.port)
    app = create_app(settings, engine)
    lifecycle: Lifecycle = app.state.lifecycle
    config = uvicorn.Config(
        app,
        log_config=None,
        proxy_headers=False,  # nobody here asks where a request came from
        access_log=False,
        server_header=False,
        lifespan="on",
        # The other parser, httptools, loses the body of a request with `Upgrade: h2c` and has no limit for headers.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
    )
    url = _url(settings.host, listening.getsockname()[1])
    log.info("listening", extra={"fields": {"url": url, "settings": settings.model_dump(mode="json")}})
    with listening, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(uvicorn.Server(config), listening, lifecycle, settings.drain_delay_s, url))
    log.info("stopped")
    if lifecycle.failure is not None:
        raise lifecycle.failure
    if lifecycle.busy:
        log.warning("the engine is still busy and is left behind")
        logging.shutdown()
        os._exit(0)  # an ordinary exit would wait for the engine's thread, which may be stuck for ever


async def _run(
    server: uvicorn.Server, listening: socket.socket, lifecycle: Lifecycle, drain_delay_s: float, url: str
) -> None:
    loop = asyncio.get_running_loop()

    def close() -> None:
        lifecycle.drain()
        server.should_exit = True

    def leave() -> None:
        if lifecycle.draining:  # asked twice: whoever still waits is told so
            close()
            for task in server.server_state.tasks:
                task.cancel()
        elif not lifecycle.settled.is_set():
            close()
        else:
            log.info("draining; signal again (Ctrl-C) to stop now", extra={"fields": {"drain_delay_s": drain_delay_s}})
            lifecycle.drain()
            loop.call_later(drain_delay_s, close)

    terminal = _has_terminal()

    def hang_up() -> None:
        if terminal and not _has_terminal():  # its window was closed: whoever started the service is gone
            leave()
        else:
            lifecycle.reload_later()

    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await asyncio.sleep(0)  # its first step puts uvicorn's signal handlers in place, which would close at once
    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, leave)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    announcing = asyncio.create_task(_announce(lifecycle, url, close))
    await serving
    announcing.cancel()


def _has_terminal() -> bool:
    """Whether the process was started from a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _announce(lifecycle: Lifecycle, url: str, close: Callable[[], None]) -> None:
    """Tell the person at the terminal what to type first; or, if there is no model, let the service end."""
    await lifecycle.settled.wait()
    if lifecycle.served is None:
        close()
        return
    body = json.dumps({"input": FIRST_TEXT}, ensure_ascii=False)
    curl = f"curl -s {url}/v1/classify -H 'Content-Type: application/json' -d '{body}'"
    fields = {"url": url, "docs": f"{url}/docs", "curl": curl}
    served = lifecycle.served
    model = {"model": served.name, "version": served.bundle.version, "provider": served.engine.provider}
    log.info("ready", extra={"fields": {**model, **fields}})


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # every address of the machine, of either kind
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise AddressRefused(f"can't listen on {host} port {port}: {error.strerror or error}") from error


def _url(host: str, port: int) -> str:
    """An address that a client on this machine can use."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


if __name__ == "__main__":
    sys.exit(main())
