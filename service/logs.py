"""Log lines: JSON for machines, plain text for a person at a terminal. Nobody logs a caller's text.

An exception may quote what it failed on, so of those that are logged as such, by whatever library, only the type and
the place are written. Whoever knows that a message is harmless puts it into the line.
"""

import datetime
import json
import logging
import re
import traceback
from types import TracebackType
from typing import Any, Literal, TextIO

LogFormat = Literal["auto", "text", "json"]

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
PLAIN = "%(asctime)s %(levelname)-8s %(message)s%(fields_text)s"


def configure_logging(level: str, stream: TextIO, log_format: LogFormat = "auto") -> None:
    """Send every log line of the process to `stream`.

    Args:
        level: least urgent line to write, for instance `info`.
        stream: where to.
        log_format: `text` for a person, `json` for one object a line; `auto` is text on a terminal, else JSON.
    """
    # Lines tell neither the place in the code nor thread and process, so records need not find them out.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream)
    if log_format == "text" or (log_format == "auto" and stream.isatty()):
        handler.addFilter(_add_fields_text)
        handler.setFormatter(_Formatter(PLAIN))
    else:
        handler.addFilter(_add_json)
        handler.setFormatter(_Formatter("%(json)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The server's own lines repeat ours, except when something is wrong.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_not_about_upgrades)
    logging.getLogger("asyncio").addFilter(_cut_values)


class _Formatter(logging.Formatter):
    def formatException(self, ei: _Raised) -> str:  # noqa: N802 - logging's name
        """Frames and types, the newest exception last, as in an ordinary traceback but for the messages."""
        return _places(ei[1])


def _places(error: BaseException | None) -> str:
    lines: list[str] = []
    while error is not None:
        lines = [*traceback.format_tb(error.__traceback__), f"{type(error).__qualname__}\n", *lines]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(lines).rstrip()


def _cut_values(record: logging.LogRecord) -> bool:
    """Keep what the event loop says of a failed task or callback up to its first argument or value."""
    record.msg, record.args = re.split(r"[(<\n]", record.getMessage(), maxsplit=1)[0], ()
    return True


def _is_not_about_upgrades(record: logging.LogRecord) -> bool:
    """False for the two warnings, one of them an advice to install a package, that each `Upgrade: h2c` would make."""
    return not record.getMessage().startswith(("Unsupported upgrade request", "No supported WebSocket library"))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a call has given as `extra={"fields": ...}`."""
    return dict(getattr(record, "fields", {}))


def _add_fields_text(record: logging.LogRecord) -> bool:
    record.fields_text = "".join(f"\n    {name}: {value}" for name, value in _fields(record).items())
    return True


def _add_json(record: logging.LogRecord) -> bool:
    """Render the whole record, traceback included, into `record.json`."""
    line = {
        "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **_fields(record),
    }
    if record.exc_info:
        line["traceback"] = _places(record.exc_info[1])
        # The formatter would append it a second time, over several lines.
        record.exc_info = record.exc_text = None
    record.json = _ENCODER.encode(line)
    return True
