"""What a caller may say of a request outside its body: how long it has, and how urgent it is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import FakeEngine, async_test, eventually, serving, value

CLASSIFY, EXPLAIN, PREDICT, INFER = "/v1/classify", "/v1/explain", "/predict", "/v2/models/tiny/infer"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["差"]}
BODIES: dict[str, dict[str, Any]] = {
    CLASSIFY: {"input": "差"},
    EXPLAIN: {"input": "差"},
    PREDICT: {"inputs": "差"},
    INFER: {"inputs": [TENSOR]},
}
every_route = pytest.mark.parametrize("path", BODIES)


@every_route
def test_a_deadline_in_the_header_is_kept_and_what_is_late_is_not_run(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine()
        async with serving(tmp_path, engine) as (client, app):
            engine.gate.clear()
            running = asyncio.create_task(client.post(CLASSIFY, json={"input": "好"}))
            await engine.wait_entered()
            late = await client.post(path, json=BODIES[path], headers={"X-Request-Timeout-Ms": "200"})
            engine.gate.set()
            await running
            expired = value(app.state.metrics.registry, "items_total", outcome="expired")
        assert late.status_code == 504
        assert "queue" in late.text
        assert (expired, len(engine.rows)) == (1, 1)

    run()


@every_route
def test_a_header_that_is_no_such_number_is_refused_by_name(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            for wrong in ("0", "-1", "1.5", "soon", "9" * 30, "²"):
                reply = await client.post(
                    path, json=BODIES[path], headers={"X-Request-Timeout-Ms": wrong.encode("latin-1")}
                )
                assert reply.status_code == 422
                assert "X-Request-Timeout-Ms" in reply.text
            reply = await client.post(path, json=BODIES[path], headers={"X-Priority": "urgent"})
            assert reply.status_code == 422
            assert "X-Priority" in reply.text

    run()


@async_test
async def test_a_header_above_the_service_s_limit_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(CLASSIFY, json={"input": "好"}, headers={"X-Request-Timeout-Ms": "3600000"})
    assert reply.status_code == 200


@async_test
async def test_the_shorter_of_header_and_body_counts(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        engine.gate.clear()
        for header, body in (("20", 9000), ("9000", 20)):
            late = await client.post(
                CLASSIFY, json={"input": "好", "timeout_ms": body}, headers={"X-Request-Timeout-Ms": header}
            )
            assert late.status_code == 504
        engine.gate.set()


async def priorities(tmp_path: Path, path: str, header: str | None, **fields: Any) -> tuple[float, float]:
    """How many interactive and bulk rows wait after a request."""
    engine = FakeEngine()
    headers = {} if header is None else {"X-Priority": header}
    async with serving(tmp_path, engine) as (client, app):
        registry = app.state.metrics.registry
        engine.gate.clear()
        running = asyncio.create_task(client.post(CLASSIFY, json={"input": "好"}))
        await engine.wait_entered()
        asked = asyncio.create_task(client.post(path, json={**BODIES[path], **fields}, headers=headers))
        await eventually(lambda: value(registry, "queue_items") == 1)
        found = tuple(value(registry, "queue_items", priority=name) for name in ("interactive", "bulk"))
        engine.gate.set()
        assert [(await reply).status_code for reply in (running, asked)] == [200, 200]
    return found


@every_route
def test_a_request_is_interactive_unless_its_header_says_bulk(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        assert await priorities(tmp_path / "a", path, None) == (1, 0)
        assert await priorities(tmp_path / "b", path, "bulk") == (0, 1)

    run()


@async_test
async def test_the_body_s_priority_goes_before_the_header_s(tmp_path: Path) -> None:
    assert await priorities(tmp_path / "a", CLASSIFY, "interactive", priority="bulk") == (0, 1)
    assert await priorities(tmp_path / "b", CLASSIFY, "bulk", priority="interactive") == (1, 0)


@pytest.mark.parametrize(
    ("query", "header", "bulk"),
    [("", None, 1), ("?priority=interactive", None, 0), ("", "interactive", 0), ("?priority=bulk", "interactive", 1)],
)
def test_a_stream_is_bulk_unless_it_says_otherwise(tmp_path: Path, query: str, header: str | None, bulk: int) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine()
        headers = {"Content-Type": "application/x-ndjson", **({"X-Priority": header} if header else {})}
        async with serving(tmp_path, engine) as (client, app):
            registry = app.state.metrics.registry
            engine.gate.clear()
            running = asyncio.create_task(client.post(CLASSIFY, json={"input": "好"}))
            await engine.wait_entered()
            line = '{"input": "差"}\n'.encode()
            streaming = asyncio.create_task(client.post(CLASSIFY + "/stream" + query, content=line, headers=headers))
            await eventually(lambda: value(registry, "queue_items") == 1)
            found = value(registry, "queue_items", priority="bulk")
            engine.gate.set()
            assert [(await reply).status_code for reply in (running, streaming)] == [200, 200]
        assert found == bulk

    run()


@async_test
async def test_the_headers_are_documented(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        paths = (await client.get("/openapi.json")).json()["paths"]
    for path in (CLASSIFY, EXPLAIN, PREDICT, "/v2/models/{name}/infer"):
        names = {entry["name"] for entry in paths[path]["post"]["parameters"] if entry["in"] == "header"}
        assert names == {"X-Request-Timeout-Ms", "X-Priority"}
