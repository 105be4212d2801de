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
