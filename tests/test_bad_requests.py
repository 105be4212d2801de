"""Whatever comes in: the one error shape, the right code, less than 2 KB, and nothing of the caller's text."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fixtures import async_test, serving

URL = "/v1/classify"
JSON_TYPE = {"Content-Type": "application/json"}
CANARY = "秘密暗号"
KEYS = {"code", "message", "param", "index", "limit", "actual", "request_id"}


def check_error(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert error.keys() - {"stage"} == KEYS
    assert len(reply.content) < 2048
    assert CANARY not in reply.text
    assert error["request_id"] == reply.headers["X-Request-Id"]
    return dict(error)


@pytest.mark.parametrize(
    ("texts", "status", "code"),
    [
        ('"\\ud83d"', 422, "invalid_unicode"),
        ('"\\udc4d"', 422, "invalid_unicode"),
        ('"\\udc4d\\ud83d"', 422, "invalid_unicode"),
        ('""', 422, "empty_text"),
        ('" "', 422, "empty_text"),
        ('"\\u3000"', 422, "empty_text"),
        ('"\\u200b"', 422, "empty_text"),
        ("[]", 422, "invalid_request"),
    ],
)
def test_texts_without_content(tmp_path: Path, texts: str, status: int, code: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post(URL, content=f'{{"input": {texts}}}', headers=JSON_TYPE)
        check_error(reply, status, code)

    run()


@async_test
async def test_a_whole_surrogate_pair_is_fine(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, content=b'{"input": "\\ud83d\\ude2d"}', headers=JSON_TYPE)
    assert reply.status_code == 200


@async_test
async def test_character_cap_counts_and_names(tmp_path: Path) -> None:
    async with serving(tmp_path, max_chars=100) as (client, _):
        below = await client.post(URL, json={"input": "好差" * 50})
        above = await client.post(URL, json={"input": ["好", "好差" * 50 + "好"]})
    assert below.json()["data"][0]["truncated"] is True
    error = check_error(above, 413, "text_too_large")
    assert (error["limit"], error["actual"], error["index"]) == (100, 101, 1)


@async_test
async def test_a_megabyte_of_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": CANARY[0] * 300_000})
    check_error(reply, 413, "text_too_large")


@async_test
async def test_too_many_texts(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好"] * 1025})
    error = check_error(reply, 413, "too_many_texts")
    assert (error["limit"], error["actual"]) == (1024, 1025)


@async_test
async def test_a_chunked_body_is_counted_as_it_comes_and_no_further(tmp_path: Path) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1000
            yield b" " * 1000

    async with serving(tmp_path, max_body_bytes=10_000) as (client, _):
        reply = await client.post(URL, content=endless(), headers=JSON_TYPE)
    check_error(reply, 413, "body_too_large")
    assert sent == 11_000


@async_test
async def test_an_announced_size_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, content=unread(), headers={**JSON_TYPE, "Content-Length": "50000000"})
    assert check_error(reply, 413, "body_too_large")["actual"] == 50_000_000


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {**JSON_TYPE, "Content-Encoding": "gzip"},
    ],
)
def test_other_content_types(tmp_path: Path, headers: dict[str, str]) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post(URL, content=b'{"input": "a"}', headers=headers)
        check_error(reply, 415, "unsupported_media_type")

    run()


@async_test
async def test_wrong_method_and_unknown_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        method = await client.get(URL)
        probe = await client.post("/livez")
        path = await client.get(f"/v1/{CANARY}")
    check_error(method, 405, "method_not_allowed")
    assert method.headers["Allow"] == "POST"
    assert probe.headers["Allow"] == "GET, HEAD"
    check_error(path, 404, "not_found")


@async_test
async def test_a_timeout_above_the_services_own(tmp_path: Path) -> None:
    async with serving(tmp_path, request_timeout_s=2) as (client, _):
        reply = await client.post(URL, json={"input": "好", "timeout_ms": 2001})
    assert check_error(reply, 422, "invalid_request")["limit"] == 2000


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"input": "a", "timeout_ms": 2147483647}', "invalid_request"),
        ('{"input": "a", "timeout_ms": %s}' % ("9" * 4200), "invalid_request"),
        ('{"input": "a", "top_k": %s}' % ("9" * 4200), "invalid_request"),
        ('{"input": "a", "%s": 1}' % ("f" * 64), "unknown_field"),
        ('{"input": "a", "on_long": "%s"}' % ("f" * 5000), "invalid_request"),
    ],
)
def test_the_largest_values_make_no_large_error(tmp_path: Path, body: str, code: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            headers = {**JSON_TYPE, "X-Request-Id": "x" * 5000}
            check_error(await client.post(URL, content=body, headers=headers), 422, code)

    run()


@async_test
async def test_an_announced_size_of_thousands_of_digits_is_not_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path, max_body_bytes=10) as (client, _):
        headers = {**JSON_TYPE, "Content-Length": "9" * 5000}
        reply = await client.post(URL, content=b'{"input": "a"}', headers=headers)
    assert check_error(reply, 413, "body_too_large")["actual"] == 14


@async_test
async def test_a_body_that_comes_too_slowly_is_504_and_ends_the_connection(tmp_path: Path) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"input": '
        await asyncio.Event().wait()

    async with serving(tmp_path, request_timeout_s=0.05) as (client, _):
        reply = await client.post(URL, content=half(), headers=JSON_TYPE)
    assert check_error(reply, 504, "deadline_exceeded")["stage"] == "read"
    assert reply.headers["Connection"] == "close"


@async_test
async def test_nothing_of_a_text_reaches_log_or_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bodies: list[Any] = [
        *({"input": CANARY}, {"input": [CANARY, ""]}, {"input": [CANARY, 1]}, {"input": {CANARY: 1}}),
        *({"input": CANARY * 30_000}, {"input": CANARY, "on_long": CANARY}, {"input": CANARY, "model": CANARY}),
        *({"input": CANARY, CANARY: CANARY}, CANARY, [CANARY], {"input": CANARY, "top_k": CANARY}),
    ]
    async with serving(tmp_path) as (client, _):
        for body in bodies:
            for content in (json.dumps(body), json.dumps(body, ensure_ascii=False), json.dumps(body)[:-1]):
                reply = await client.post(f"{URL}?q={CANARY}", content=content.encode(), headers=JSON_TYPE)
                assert CANARY not in reply.text
                assert reply.is_success or len(reply.content) < 2048
    assert len(caplog.records) > len(bodies)
    assert all(CANARY not in repr(record.__dict__) for record in caplog.records if record.name.startswith("lengnuan"))
