"""`/v1/classify/stream`: a line for a line, in order, in bounded memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from service_fixtures import FakeEngine, async_test, eventually, expected_logits, serving, value
from starlette.types import Message
from test_bad_requests import CANARY, check_error

from lengnuan.service.schemas import Classification, ItemError

URL = "/v1/classify/stream"
NDJSON = {"Content-Type": "application/x-ndjson"}
HANG_UP: Message = {"type": "http.disconnect"}
Handler = Callable[[], Awaitable[Message]]


def line(text: str) -> bytes:
    return json.dumps({"input": text}, ensure_ascii=False).encode() + b"\n"


async def lines_of(client: httpx.AsyncClient, content: Any, query: str = "") -> list[dict[str, Any]]:
    reply = await client.post(URL + query, content=content, headers=NDJSON)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(item) for item in reply.text.splitlines()]


async def stream(app: FastAPI, receive: Handler, send: Callable[[Message], Awaitable[None]]) -> None:
    """One request, all middleware included, message by message."""
    scope = {
        **{"type": "http", "method": "POST", "path": URL, "query_string": b"", "http_version": "1.1"},
        "headers": [(b"content-type", b"application/x-ndjson")],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    await app(scope, receive, send)


@async_test
async def test_a_line_for_a_line_in_order_each_with_its_own_score(tmp_path: Path) -> None:
    texts = [f"{'好差很太'[n % 4]}{'ab'[n % 2]}{'不' * (n % 3)}" for n in range(700)]

    async def in_odd_chunks() -> AsyncIterator[bytes]:
        content = b"".join(map(line, texts))
        for at in range(0, len(content), 97):
            yield content[at : at + 97]

    async with serving(tmp_path) as (client, app):
        items = await lines_of(client, in_odd_chunks(), "?return_logits=true")
        assert value(app.state.metrics.registry, "items_total", outcome="ok") == 700
    assert [item["index"] for item in items] == list(range(700))
    assert [item["logits"] for item in items] == [pytest.approx(expected_logits(text), abs=1e-5) for text in texts]
    Classification.model_validate(items[0])


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_the_last_line_may_have_no_end(tmp_path: Path, ending: bytes) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            items = await lines_of(client, line("好") + line("差").strip() + ending)
        assert [item["label"] is not None for item in items] == [True, True]

    run()


@async_test
async def test_what_is_wrong_with_a_line_is_said_in_its_place(tmp_path: Path) -> None:
    bad = {
        b"": "empty_body",
        b"x": "invalid_json",
        '{"input": "好"}'.encode("gbk"): "not_utf8",
        b"[]": "invalid_request",
        b'{"input": ["a"]}': "invalid_request",
        b'{"input": "a", "text": "b"}': "unknown_field",
        b'{"input": " "}': "empty_text",
        b'{"input": "\\ud83d"}': "invalid_unicode",
        b'{"input": "%s"}' % (b"a" * 51): "text_too_large",
        b"y" * 2000: "body_too_large",
    }
    good = line("好").strip()
    async with serving(tmp_path, max_chars=50) as (client, _):
        items = await lines_of(client, b"\n".join(part for wrong in bad for part in (wrong, good)))
    assert [item["index"] for item in items] == list(range(2 * len(bad)))
    assert [item["error"]["code"] for item in items[::2]] == list(bad.values())
    assert [item["error"]["index"] for item in items[::2]] == list(range(0, 2 * len(bad), 2))
    assert all(item["label"] for item in items[1::2])
    ItemError.model_validate(items[0])


@async_test
async def test_a_line_of_megabytes_is_not_kept(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"a" * 10_000
        yield b"\n" + line("好")

    async with serving(tmp_path, max_chars=50) as (client, _):
        items = await lines_of(client, chunks())
    assert [item.get("error", {}).get("code") for item in items] == ["body_too_large", None]


@async_test
async def test_an_answer_comes_before_the_next_line_is_sent(tmp_path: Path) -> None:
    asked: asyncio.Queue[Message] = asyncio.Queue()
    answered: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(message: Message) -> None:
        if message.get("body"):
            answered.put_nowait(message["body"])

    async with serving(tmp_path) as (_, app), asyncio.timeout(30):
        talk = asyncio.create_task(stream(app, asked.get, send))
        for n in range(3):
            asked.put_nowait({"type": "http.request", "body": line("好"), "more_body": True})
            assert json.loads(await answered.get())["index"] == n
        asked.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await talk


@pytest.mark.parametrize("slow", ["client", "engine"])
def test_no_more_is_read_while_the_client_or_the_engine_is_behind(tmp_path: Path, slow: str) -> None:
    @async_test
    async def run() -> None:
        engine, taken = FakeEngine(), asyncio.Event()
        left = [line("好差"[n % 2]) * 50 for n in range(40)]
        sent = bytearray()

        async def receive() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}
            await asyncio.Event().wait()
            return HANG_UP

        async def send(message: Message) -> None:
            if message.get("body"):
                await taken.wait()
                sent.extend(message["body"])

        async with serving(tmp_path, engine) as (_, app), asyncio.timeout(60):
            if slow == "client":
                engine.gate.set()
            else:
                engine.gate.clear()
                taken.set()
            talk = asyncio.create_task(stream(app, receive, send))
            await engine.wait_entered()
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert len(left) > 30
            engine.gate.set()
            taken.set()
            await talk
        assert len(sent.splitlines()) == 2000

    run()


@pytest.mark.parametrize("whole", [False, True])
def test_texts_of_a_client_that_hangs_up_are_not_run(tmp_path: Path, whole: bool) -> None:
    @async_test
    async def run() -> None:
        engine, gone = FakeEngine(), asyncio.Event()
        left = [line("好") * 3]

        async def receive() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": not whole}
            await gone.wait()
            return HANG_UP

        async def send(message: Message) -> None:
            assert not message.get("body")

        async with serving(tmp_path, engine) as (client, app), asyncio.timeout(30):
            engine.gate.clear()
            other = asyncio.create_task(client.post("/v1/classify", json={"input": "差"}))
            await engine.wait_entered()
            talk = asyncio.create_task(stream(app, receive, send))
            await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 3)
            gone.set()
            await talk
            await eventually(lambda: value(app.state.metrics.registry, "items_total", outcome="cancelled") == 3)
            engine.gate.set()
            assert (await other).status_code == 200
        assert len(engine.rows) == 1

    run()


@async_test
async def test_a_silent_client_is_told_so(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield line("好")
        await asyncio.Event().wait()

    async with serving(tmp_path, keep_alive_s=1) as (client, _):
        first, last = await lines_of(client, chunks())
    assert (first["index"], last["error"]["code"], last["error"]["stage"]) == (0, "deadline_exceeded", "read")


@async_test
async def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, max_texts=4, queue_items=4) as (client, app):
        engine.gate.clear()
        others = [asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))]
        await engine.wait_entered()
        others.append(asyncio.create_task(client.post("/v1/classify", json={"input": ["差"] * 4})))
        await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 4)
        waiting = asyncio.create_task(lines_of(client, line("看") * 3, "?priority=interactive"))
        await eventually(lambda: value(app.state.metrics.registry, "items_total", outcome="shed") == 3)
        engine.gate.set()
        items = await waiting
        await asyncio.gather(*others)
    assert all(item["label"] for item in items)


@async_test
async def test_a_queue_that_stays_full_is_told_in_every_line(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, max_texts=4, queue_items=4, request_timeout_s=0.5) as (client, app):
        engine.gate.clear()
        others = [asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))]
        await engine.wait_entered()
        others.append(asyncio.create_task(client.post("/v1/classify", json={"input": ["差"] * 4})))
        await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 4)
        items = await lines_of(client, line("看") * 3, "?priority=interactive")
        engine.gate.set()
        await asyncio.gather(*others)
    assert [(item["index"], item["error"]["index"], item["error"]["code"]) for item in items] == [
        (index, index, "overloaded") for index in range(3)
    ]


@async_test
async def test_windows_of_many_long_lines_are_run_in_parts(tmp_path: Path) -> None:
    async with serving(tmp_path, max_texts=5) as (client, _):
        items = await lines_of(client, line("好差很太不看" * 3) * 4 + line("好差" * 40), "?on_long=window")
    assert [item.get("windows") for item in items[:4]] == [3] * 4
    assert (items[4]["error"]["code"], items[4]["error"]["index"]) == ("too_many_texts", 4)


@pytest.mark.parametrize(
    ("query", "code", "status"),
    [
        ("?top_k=0", "invalid_request", 422),
        ("?on_long=middle", "invalid_request", 422),
        ("?raw_scores=true", "unknown_field", 422),
        ("?partial=true", "unknown_field", 422),
        ("?model=another", "unknown_model", 404),
        (f"?{CANARY}=1", "unknown_field", 422),
    ],
)
def test_the_query_is_checked_before_anything_is_answered(tmp_path: Path, query: str, code: str, status: int) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            check_error(await client.post(URL + query, content=line("好"), headers=NDJSON), status, code)

    run()


@async_test
async def test_other_bodies_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        check_error(await client.post(URL, json={"input": "好"}), 415, "unsupported_media_type")
        check_error(await client.post(URL, content=b"", headers=NDJSON), 400, "empty_body")


@async_test
async def test_the_request_id_comes_back_in_the_header_and_in_every_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, content=b"x\ny\n", headers={**NDJSON, "X-Request-Id": "q7"})
    assert reply.headers["X-Request-Id"] == "q7"
    assert [json.loads(item)["error"]["request_id"] for item in reply.text.splitlines()] == ["q7", "q7"]
