"""Under pressure: what is shed, what expires, and what a client leaves behind that hangs up."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from collector import closed_endpoint
from fastapi import FastAPI
from keys_file import bearer, entry, write_keys
from service_fixtures import FakeEngine, async_test, eventually, serving, value
from starlette.types import Message

URL = "/v1/classify"


@asynccontextmanager
async def full_queue(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """A service with a text in its engine and four that wait, for which it has room; those are answered in the end."""
    engine = FakeEngine()
    async with serving(folder, engine, max_texts=4, queue_items=4) as (client, app):
        engine.gate.clear()
        running = asyncio.create_task(client.post(URL, json={"input": "好"}))
        await engine.wait_entered()
        queued = asyncio.create_task(client.post(URL, json={"input": ["差"] * 4}))
        await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 4)
        yield client, app
        engine.gate.set()
        assert [(await task).status_code for task in (running, queued)] == [200, 200]


@async_test
async def test_a_full_queue_is_429_and_readiness_does_not_care(tmp_path: Path) -> None:
    async with full_queue(tmp_path) as (client, _):
        refused = await client.post(URL, json={"input": "好看"})
        probes = [(await client.get(path)).status_code for path in ("/readyz", "/livez", "/startupz", "/metrics")]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert refused.headers["Retry-After"].isdecimal()
    assert probes == [200] * 4


@async_test
async def test_a_full_queue_refuses_before_a_text_is_read(tmp_path: Path) -> None:
    async with full_queue(tmp_path) as (client, app):
        refused = [await client.post(URL, json={"input": text}) for text in ("好看", ["好看", ""])]
        assert value(app.state.metrics.registry, "input_tokens_count") == 5, "those of the queue and the engine"
    assert [reply.status_code for reply in refused] == [429, 429]


@pytest.mark.parametrize(
    ("name", "setting", "scale"), [("queue_items", 4, 1), ("queue_tokens", 32, 1), ("queue_wait_s", 0.01, 1000)]
)
def test_what_may_wait_is_what_the_model_card_says(tmp_path: Path, name: str, setting: float, scale: int) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine()
        async with serving(tmp_path, engine, max_texts=4, **{name: setting}) as (client, app):
            limits = (await client.get("/v1/models")).json()["data"][0]["limits"]
            engine.gate.clear()
            running = asyncio.create_task(client.post(URL, json={"input": "好"}))
            await engine.wait_entered()
            queued = asyncio.create_task(client.post(URL, json={"input": ["差" * 8, "太" * 8, "很" * 8, "看" * 8]}))
            await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 4)
            await asyncio.sleep(0.02)
            refused = await client.post(URL, json={"input": ["a" * 8, "b" * 8, "ab" * 4, "ba" * 4]})
            engine.gate.set()
            replies = [await running, await queued]
        assert [reply.status_code for reply in replies] == [200, 200], replies[1].text
        assert (refused.status_code, refused.json()["error"]["limit"]) == (429, scale * limits[name])
        assert limits[name] == setting

    run()


@async_test
async def test_the_deadline_is_504_with_the_stage_while_the_engine_is_stuck(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, app):
        engine.gate.clear()
        running = asyncio.create_task(client.post(URL, json={"input": "好"}))
        await engine.wait_entered()
        late = await client.post(URL, json={"input": ["差", "好"], "timeout_ms": 20})
        assert not engine.gate.is_set()
        engine.gate.set()
        await running
        expired = value(app.state.metrics.registry, "items_total", outcome="expired")
    assert (late.status_code, late.json()["error"]["stage"]) == (504, "queue")
    assert expired == 2
    assert len(engine.rows) == 1


@async_test
async def test_a_deadline_that_passes_while_much_text_is_tokenised(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        reply = await client.post(URL, json={"input": ["很好看a不" * 15_000] * 3, "timeout_ms": 1})
    assert (reply.status_code, reply.json()["error"]["stage"]) == (504, "tokenize")
    assert engine.shapes == []


@async_test
async def test_texts_of_a_client_that_hangs_up_are_not_run_with_all_middleware_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengnuan.service.tracing.EXPORT_TIMEOUT_S", 0.1)
    engine = FakeEngine()
    settings = {"otlp_endpoint": closed_endpoint(), "cors_origins": "https://a.example"}
    keys_file = write_keys(tmp_path, entry("shop", "ln_shop"))
    async with serving(tmp_path, engine, keys_file=keys_file, **settings) as (client, app):
        client.headers.update(bearer("ln_shop"))
        engine.gate.clear()
        running = asyncio.create_task(client.post(URL, json={"input": "好"}))
        await engine.wait_entered()
        gone = [asyncio.create_task(post_and_hang_up(app, {"input": ["差", "太"]})) for _ in range(50)]
        await asyncio.gather(*gone)
        engine.gate.set()
        await running
        registry = app.state.metrics.registry
        assert value(registry, "items_total", outcome="cancelled") == 100
        assert value(registry, "http_requests_total", route=URL, method="POST", status="499") == 50
        assert (await client.post(URL, json={"input": "看"})).status_code == 200
    assert len(engine.rows) == 2


async def post_and_hang_up(app: FastAPI, body: dict[str, Any]) -> None:
    """A whole request, all middleware included, whose client is gone as soon as its texts wait."""
    scope = {
        **{"type": "http", "method": "POST", "path": URL, "query_string": b"", "http_version": "1.1"},
        "headers": [
            (b"content-type", b"application/json"),
            (b"x-api-key", b"ln_shop"),
            (b"origin", b"https://a.example"),
        ],
    }
    messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    waiting = app.state.lifecycle.served.batcher.waiting

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await eventually(lambda: len(waiting) > 0)
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        pass

    await app(scope, receive, send)
