"""The OpenAPI document tells the truth: the fields of the request, and every code that it promises."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
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


def references(node: Any) -> Iterator[str]:
    if isinstance(node, list | dict):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)


@async_test
async def test_every_reference_leads_somewhere_in_the_document(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        content = await document(client)
    found = set(references(content))
    assert len(found) > 10
    for reference in found:
        root, *path = reference.split("/")
        assert root == "#"
        node = content
        for name in path:
            node = node[name]


@async_test
async def test_every_route_is_documented_with_what_it_reads_and_writes(tmp_path: Path) -> None:
    pages = {"/openapi.json", "/docs", "/static-offline-docs"}
    async with serving(tmp_path) as (client, app):
        paths = (await document(client))["paths"]
    assert paths.keys() == {route.path for route in app.routes} - pages
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert "200" in operation["responses"], path
            assert operation["summary"], path
            assert operation["description"], path
            assert ("requestBody" in operation) == (method == "post"), path
            variables = {entry["name"] for entry in operation.get("parameters", ()) if entry["in"] == "path"}
            assert variables == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/tokenize", "/v1/explain", "/predict", "/v2/models/{name}/infer"])
def test_the_documented_example_works(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            body = (await document(client))["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            reply = await client.post(path.format(name="tiny"), json=body["schema"]["example"])
        assert reply.status_code == 200, reply.text

    run()


@pytest.mark.parametrize("name", ["tokenize", "explain"])
def test_every_documented_code_of_the_other_routes_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url = f"/v1/{name}"

    @async_test
    async def run() -> None:
        limits = {"max_texts": 3, "max_chars": 50, "max_body_bytes": 2000, "queue_items": 3}
        async with serving(tmp_path, FakeEngine(), **limits) as (client, app):
            documented = (await document(client))["paths"][url]["post"]["responses"]
            bodies: list[dict[str, Any]] = [
                *(
                    {"input": "好", "model": "x"},
                    {"input": "a" * 51},
                    {"input": " "},
                    {"input": "好", "timeout_ms": 10**6},
                ),
            ]
            statuses = {(await client.post(url, json=body)).status_code for body in bodies}
            statuses |= {(await client.post(url, content=b"{}")).status_code}
            statuses |= {
                (await client.post(url, content=b"{", headers={"Content-Type": "application/json"})).status_code
            }
            with monkeypatch.context() as patch:
                patch.setattr(f"lengnuan.service.{name}.json_reply", None)
                statuses |= {(await client.post(url, json={"input": "好"})).status_code}
            with monkeypatch.context() as patch:
                patch.setattr("lengnuan.service.tokenize.asyncio.timeout", lambda _: asyncio.timeout_at(0))
                statuses |= {(await client.post(url, json={"input": "好"})).status_code}
            await app.state.lifecycle.stop()
            app.state.lifecycle.default.served = None
            statuses |= {(await client.post(url, json={"input": "好"})).status_code}
        # 429 and a failing model are the batcher's, whichever route asks it: see test_every_documented_code_is_met.
        assert {str(status) for status in statuses} == documented.keys() - {"200", "429"}

    run()


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
