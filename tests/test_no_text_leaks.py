"""Nothing of a caller's text in log lines, errors, metrics or spans: a canary goes in everywhere and comes out nowhere.

Everything is switched on: keys, CORS, tracing, the most talkative log level; and the engine raises with the ids.
"""

import asyncio
import io
import json
import logging
import random
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from bent_bodies import GOOD, bent
from collector import running_collector
from keys_file import bearer, entry, write_keys
from service_fixtures import FakeEngine, async_test, logits_of, serving
from tiny_bundle import tiny_tokenizer

from lengnuan.service.logs import LogFormat, configure_logging

CHINESE, ASCII = "秘密暗号", "c4nary"
IDS = tiny_tokenizer().encode(CHINESE)  # bytes; 8 of them are read, the first and last 4
# As it is, as JSON, URLs and other encodings write it, and as ids.
TRACES = (
    *(CHINESE.encode(), CHINESE.encode("gbk"), ASCII.encode(), json.dumps(CHINESE)[1:-1].encode()),
    *(urllib.parse.quote(CHINESE).encode(), ascii(CHINESE.encode())[2:-1].encode(), CHINESE.encode("utf-16-le")),
    *(str(IDS[:3])[1:-1].encode(), str(np.array(IDS[:3]))[1:-1].encode()),
)
TEXT = CHINESE + ASCII
JSON_TYPE, LINES_TYPE = {"Content-Type": "application/json"}, {"Content-Type": "application/x-ndjson"}


class TalkativeEngine(FakeEngine):
    """Puts what it was given into its errors, as libraries do; runs the short rows of the warm-up."""

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        rows = [ids[real].tolist() for ids, real in zip(token_ids, mask, strict=True)]
        if any(row[:3] == IDS[:3] for row in rows):
            raise RuntimeError(f"bad input {rows} {token_ids[0]} {TEXT}") from ValueError(TEXT)
        return np.array([logits_of(row) for row in rows], dtype=np.float32)


@pytest.fixture(params=["json", "text"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that the process logs, as it would be written."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream, log_format = io.StringIO(), request.param
    formats: tuple[LogFormat, ...] = ("json", "text")
    assert log_format in formats
    configure_logging("debug", stream, log_format)
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # the test's own client, which logs addresses
    yield stream
    root.handlers[:], root.level = handlers, level


def requests_with_canary() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, what else httpx is given) for every route and every part of a request."""
    quoted = urllib.parse.quote(TEXT)
    for path in ("/v1/classify", "/v1/tokenize", "/v1/explain", "/predict", "/v2/models/tiny/infer"):
        field = "inputs" if path.startswith(("/predict", "/v2")) else "input"
        bodies: list[Any] = [
            *(
                {field: TEXT},
                {field: [TEXT, TEXT]},
                {field: [[TEXT]]},
                {field: {TEXT: TEXT}},
                {field: ""},
                {TEXT: TEXT},
            ),
            *({field: "好", TEXT: 1}, {field: "好", "model": TEXT}, {field: "好", "on_long": TEXT}, [TEXT], TEXT),
            *(
                {field: TEXT * 500},
                {field: TEXT, "timeout_ms": TEXT},
                {field: TEXT + "\ud83d"},
                {field: TEXT, "top_k": -1},
            ),
            {field: [{"name": TEXT, "datatype": TEXT, "shape": [1], "data": [TEXT]}]},
            {field: [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]},
        ]
        for body in bodies:
            yield "POST", path, {"content": json.dumps(body), "headers": JSON_TYPE}
        for content in (f'{{"input": "{TEXT}', f'{{"input": NaN, "{TEXT}": 1}}', TEXT):
            for encoding in ("utf-8", "gbk", "utf-16"):
                yield "POST", path, {"content": content.encode(encoding), "headers": JSON_TYPE}
        yield "POST", f"{path}?{quoted}={quoted}", {"content": b"{}", "headers": JSON_TYPE}
        yield "POST", path, {"content": TEXT.encode(), "headers": {"Content-Type": f"text/{ASCII}"}}
    for line in (json.dumps({"input": TEXT}), TEXT, json.dumps({TEXT: 1}), f'{{"input": "{TEXT}'):
        yield "POST", "/v1/classify/stream", {"content": line.encode() + b"\n", "headers": LINES_TYPE}
    yield "POST", f"/v1/classify/stream?{quoted}={quoted}", {"content": b"{}\n", "headers": LINES_TYPE}
    yield "POST", f"/v1/classify/stream?model={quoted}", {"content": b"{}\n", "headers": LINES_TYPE}
    for path in (
        f"/{quoted}",
        f"/v2/models/{quoted}",
        f"/v2/models/{quoted}/infer",
        f"/v2/models/tiny/versions/{quoted}",
    ):
        yield "GET", path, {}
        yield "POST", path, {"content": json.dumps({"inputs": TEXT}), "headers": JSON_TYPE}
    for path in ("/v1/models", "/docs", "/openapi.json", "/info", "/livez", "/version", "/v2", "/metrics"):
        yield "GET", f"{path}?{quoted}={quoted}", {"headers": {"User-Agent": ASCII, "Referer": f"http://{ASCII}/"}}
    for name in ("Authorization", "X-API-Key", "Origin", "traceparent", "tracestate", "baggage", "Cookie", "Accept"):
        yield "POST", "/v1/classify", {"content": b'{"input": ""}', "headers": {**JSON_TYPE, name: f"Bearer {ASCII}"}}
    yield "OPTIONS", "/v1/classify", {"headers": {"Origin": ASCII, "Access-Control-Request-Method": ASCII}}
    yield ASCII.upper(), "/v1/classify", {}


async def send_all(client: httpx.AsyncClient) -> list[httpx.Response]:
    replies = []
    for method, path, more in requests_with_canary():
        headers = {**bearer("ln_shop"), **more.pop("headers", {})}
        replies.append(await client.request(method, path, headers=headers, **more))
    chance = random.Random(0)
    for path, good in GOOD.items():
        headers = LINES_TYPE if path.endswith("stream") else JSON_TYPE
        for _ in range(60):
            body = json.dumps(bent(good, chance)).replace(json.dumps("好")[1:-1], json.dumps(TEXT)[1:-1])
            replies.append(await client.post(path, content=body, headers={**bearer("ln_shop"), **headers}))
    return replies


def leaks(written: bytes) -> list[bytes]:
    return [trace for trace in TRACES if trace in written]


@pytest.mark.parametrize("broken", [False, True])
def test_a_canary_in_every_part_of_every_request_comes_out_nowhere(
    tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """The second time, all that answers is broken as well, with an error that quotes the text."""

    def fail(*_: object) -> None:
        raise LookupError(TEXT)

    with running_collector() as collector:

        @async_test
        async def run() -> None:
            settings = {
                "keys_file": write_keys(tmp_path, entry("shop", "ln_shop")),
                "otlp_endpoint": collector.endpoint,
                "cors_origins": "https://a.example",
            }
            async with serving(tmp_path, TalkativeEngine(), **settings) as (client, app):
                if broken:
                    for module in ("routes", "tokenize", "explain", "compat.oip"):
                        monkeypatch.setattr(f"lengnuan.service.{module}.json_reply", fail)
                replies = await send_all(client)
                asyncio.get_running_loop().call_exception_handler({"message": "failed", "future": TEXT})
                found["metrics"] = app.state.metrics.render()
            found["errors"] = b"\n".join(
                b"%r %s" % (reply.headers.raw, reply.content) for reply in replies if reply.is_error
            )
            statuses.update(reply.status_code for reply in replies)

        found: dict[str, bytes] = {}
        statuses: set[int] = set()
        run()
        found["spans"] = b"".join(body for _, body in collector.requests)
    found["log"] = log.getvalue().encode()
    assert {200, 400, 401, 404, 405, 413, 415, 422, 424, 500} <= statuses
    assert all(len(written) > 1000 for written in found.values())
    assert b"RuntimeError" in found["log"]
    assert {name: leaks(written) for name, written in found.items()} == {name: [] for name in found}


def test_each_trace_of_the_canary_would_be_found() -> None:
    spellings = [TEXT, json.dumps(TEXT), urllib.parse.quote(TEXT), str(IDS), str(np.array(IDS)), repr(TEXT.encode())]
    assert all(leaks(spelling.encode()) for spelling in spellings)
