"""`lengnuan-serve`: settings in, a running service, an exit code out.

Exit codes: 0 stopped when asked to; 1 a mistake in the service; 2 a setting is wrong; 3 the bundle is refused;
4 the device or runtime is missing; 5 the address can't be used.
"""

import logging
import sys

from lengnuan.model.engine import Engine
from lengnuan.model.errors import BundleRefused, EngineUnavailable
from lengnuan.service import listening
from lengnuan.service.app import create_app
from lengnuan.service.listening import AddressRefused
from lengnuan.service.logs import configure_logging
from lengnuan.service.settings import Settings, SettingsRefused, unknown_variables

log = logging.getLogger(__name__)

EXIT_CODES: dict[type[Exception], int] = {
    SettingsRefused: 2,
    BundleRefused: 3,
    EngineUnavailable: 4,
    AddressRefused: 5,
}


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
    taken = listening.listen(settings.host, settings.port)
    url = listening.url_of(settings.host, taken.getsockname()[1])
    log.info("listening", extra={"fields": {"url": url, "settings": settings.model_dump(mode="json")}})
    if settings.http_processes:
        from lengnuan.service.processes.parent import run_parent

        lifecycle = run_parent(settings, taken, url, engine)
    else:
        app = create_app(settings, engine)
        lifecycle = app.state.lifecycle

        async def tell_ready(leaving: listening.Leaving) -> None:
            listening.take_signals(leaving.leave, lifecycle.reload_later)
            await lifecycle.settled.wait()
            if lifecycle.served is None:
                leaving.close()
            else:
                listening.tell_ready(lifecycle.served, url)

        listening.run(app, settings, taken, tell_ready)
    listening.end(lifecycle)


if __name__ == "__main__":
    sys.exit(main())
