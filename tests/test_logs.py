import io
import json
import logging
from collections.abc import Iterator

import pytest

from lengnuan.service.logs import LogFormat, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def line(log_format: LogFormat) -> str:
    stream = io.StringIO()
    configure_logging("info", stream, log_format)
    logging.getLogger("lengnuan.test").info("ready", extra={"fields": {"curl": 'curl -d \'{"input": "好"}\''}})
    return stream.getvalue()


def test_text_can_be_copied_as_it_stands() -> None:
    assert '\n    curl: curl -d \'{"input": "好"}\'\n' in line("text")


def test_a_request_to_upgrade_is_no_reason_to_warn() -> None:
    stream = io.StringIO()
    configure_logging("info", stream, "text")
    logging.getLogger("uvicorn.error").warning("Unsupported upgrade request.")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_json_is_one_object_a_line_and_auto_means_it_off_a_terminal(log_format: LogFormat) -> None:
    (text,) = line(log_format).splitlines()
    assert json.loads(text)["curl"] == 'curl -d \'{"input": "好"}\''


def logged(log_format: LogFormat, name: str, message: str) -> str:
    """What is written of an exception that quotes a text twice: in its message and in that of its cause."""
    secret = "秘" + "密"  # in two parts, since a traceback shows the line
    stream = io.StringIO()
    configure_logging("debug", stream, log_format)
    try:
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise KeyError(secret) from error
    except KeyError:
        logging.getLogger(name).exception(message)
    return stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_of_an_exception_types_and_places_are_written_and_no_message(log_format: LogFormat) -> None:
    written = logged(log_format, "somebody", "it failed")
    assert "秘密" not in written
    assert written.index("ValueError") < written.index("KeyError")
    assert "test_logs.py" in written


def test_a_traceback_in_json_stays_on_its_line() -> None:
    [written] = logged("json", "somebody", "it failed").splitlines()
    assert "test_logs.py" in json.loads(written)["traceback"]


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Task exception was never retrieved\nfuture: <Task exception=ValueError('秘密')>", "Task exception was never"),
        ("Exception in callback Batcher._expire(['秘密'])", "Exception in callback Batcher._expire"),
    ],
)
def test_what_the_event_loop_says_is_cut_before_any_value(message: str, kept: str) -> None:
    written = json.loads(logged("json", "asyncio", message))["message"]
    assert kept in written
    assert "秘密" not in written
