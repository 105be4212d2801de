"""The OpenAPI document tells the truth: the fields of the request, and every code that it promises."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, eventually, serving, value

from lengnuan.service.errors import ErrorReply
from lengnuan.service.routes import CLASSIFY_ERRORS
from lengnuan.service.schemas import ClassifyRequest

URL = "/v1/classify"


async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    content: dict[str, Any] = (await client.get("/openapi.json")).json()
    return content


@async_test
async def test_request_body_is_complete(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        operation = (await document(client))["paths"][URL]["post"]
        assert (await client.get("/docs")).status_code == 200
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == ClassifyRequest.model_fields.keys()
    assert schema["additionalProperties"] is False


@async_test
async def test_the_documented_example_works(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        operation = (await document(client))["paths"][URL]["post"]
        example = operation["requestBody"]["content"]["application/json"]["schema"]["example"]
        assert (await client.post(URL, json=example)).status_code == 200


async def overload(client: httpx.AsyncClient, engine: FakeEngine, read_queue: Callable[[], float]) -> httpx.Response:
    engine.gate.clear()
    tasks = [asyncio.create_task(client.post(URL, json={"input": "好"}))]
    await engine.wait_entered()
    tasks.append(asyncio.create_task(client.post(URL, json={"input": ["好"] * 3})))
    await eventually(lambda: read_queue() == 3)
    reply = await client.post(URL, json={"input": "好"})
    engine.gate.set()
    await asyncio.gather(*tasks)
    return reply


async def expire(client: httpx.AsyncClient, engine: FakeEngine) -> httpx.Response:
    engine.gate.clear()
    reply = await client.post(URL, json={"input": "好", "timeout_ms": 10})
    engine.gate.set()
    return reply


@async_test
async def test_every_documented_code_is_met_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    limits = {"max_texts": 3, "queue_items": 3, "max_chars": 50, "max_body_bytes": 2000}
    async with serving(tmp_path, engine, **limits) as (client, app):
        documented = (await document(client))["paths"][URL]["post"]["responses"]
        contents = (b"", b"\xff", b"{")
        bodies: list[dict[str, Any]] = [
            *({"input": "好", "model": "x"}, {"input": "a" * 3000}, {"input": ["a"] * 4}, {"input": "a" * 51}),
            *({"input": 1}, {"input": "a", "x": 1}, {"input": ""}, {"input": "很好看不" * 5, "on_long": "error"}),
            {"input": STRANGE},
        ]
        json_type = {"Content-Type": "application/json"}
        requests: list[Awaitable[httpx.Response]] = [
            *(client.post(URL, content=content, headers=json_type) for content in contents),
            *(client.post(URL, json=body) for body in bodies),
            client.post(URL, content=b'{"input": "\\ud83d"}', headers=json_type),
            client.post(URL, content=b"{}"),
        ]
        replies = [await request for request in requests]
        engine.entered.clear()
        replies.append(await overload(client, engine, lambda: value(app.state.metrics.registry, "queue_items")))
        replies.append(await expire(client, engine))
        with monkeypatch.context() as patch:
            patch.setattr("lengnuan.service.routes.classify_reply", None)
            replies.append(await client.post(URL, json={"input": "好"}))
        await app.state.lifecycle.stop()
        replies.append(await client.post(URL, json={"input": "好"}))
    errors = [(reply.status_code, ErrorReply.model_validate(reply.json()).error.code) for reply in replies]
    assert sorted(errors) == sorted((error.status, error.code) for error in CLASSIFY_ERRORS)
    assert {str(status) for status, _ in errors} == documented.keys() - {"200"}
    assert all(code in documented[str(status)]["description"] for status, code in errors)
