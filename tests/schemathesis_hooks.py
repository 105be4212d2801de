"""What schemathesis can't know by itself: how a body of lines is written and read; that unknown headers are ignored."""

import json
from typing import Any

import schemathesis

NDJSON = "application/x-ndjson"
UNKNOWN_HEADER = "x-schemathesis-unknown-property"


@schemathesis.hook
def filter_case(_: Any, case: Any) -> bool:
    """Leave out requests that are wrong by a header nobody has heard of: HTTP has it ignored, not refused."""
    return UNKNOWN_HEADER not in (case.headers or {})


@schemathesis.serializer(NDJSON)
def write_line(_: Any, value: Any) -> bytes:
    """A body of one line."""
    return (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n"


@schemathesis.deserializer(NDJSON)
def read_line(_: Any, response: Any) -> Any:
    """The one line of the reply."""
    return json.loads(response.content)
