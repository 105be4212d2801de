"""Loading, ready, draining, failed; and what the probes say of each."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from service_fixtures import (
    STRANGE,
    STRANGE_ID,
    FakeEngine,
    async_test,
    eventually,
    running,
    serving,
    value,
    write_fake_bundle,
)

from lengnuan.model.errors import BundleRefused, ModelError
from lengnuan.service import batcher as batcher_module
from lengnuan.service import lifecycle as lifecycle_module
from lengnuan.service.app import create_app
from lengnuan.service.settings import Settings, SettingsRefused

PROBES = ("/startupz", "/readyz", "/livez")


async def probe(client: httpx.AsyncClient) -> tuple[int, ...]:
    return tuple([(await client.get(path)).status_code for path in PROBES])


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@async_test
async def test_not_ready_until_loaded_warm_and_golden(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    app = create_app(Settings(bundle=write_fake_bundle(tmp_path)), engine)
    async with app.router.lifespan_context(app), client_of(app) as client:
        await engine.wait_entered()
        assert await probe(client) == (503, 503, 200)
        refused = await client.post("/v1/classify", json={"input": "好"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert refused.headers["Retry-After"].isdecimal()
        assert (await client.get("/v1/models")).status_code == 503
        assert (await client.get("/version")).json()["model"] is None
        engine.gate.set()
        await app.state.lifecycle.settled.wait()
        assert await probe(client) == (200, 200, 200)
        assert (await client.get("/version")).json()["model"] == "tiny"


@async_test
async def test_the_largest_batch_is_run_before_ready(tmp_path: Path) -> None:
    engine = FakeEngine()
    app = create_app(Settings(bundle=write_fake_bundle(tmp_path), max_batch_rows=16, max_batch_tokens=64), engine)
    async with running(app):
        assert engine.shapes[-2:] == [(1, 1), (8, 8)]


async def failure_of(app: FastAPI) -> Exception | None:
    async with running(app) as client:
        assert await probe(client) == (503, 503, 200)
        assert (await client.post("/v1/classify", json={"input": "好"})).status_code == 503
        failure: Exception | None = app.state.lifecycle.failure
        return failure


@async_test
async def test_a_wrong_golden_answer_never_becomes_ready(tmp_path: Path) -> None:
    bundle = write_fake_bundle(tmp_path, lambda ids: [0.5, float(len(ids))])
    failure = await failure_of(create_app(Settings(bundle=bundle), FakeEngine()))
    assert isinstance(failure, BundleRefused)
    assert "golden text" in str(failure)


@async_test
async def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    assert isinstance(await failure_of(create_app(Settings(bundle=tmp_path), FakeEngine())), BundleRefused)


@async_test
async def test_a_graph_that_cannot_be_opened(tmp_path: Path) -> None:
    failure = await failure_of(create_app(Settings(bundle=write_fake_bundle(tmp_path), device="cpu")))
    assert isinstance(failure, ModelError)


@async_test
async def test_a_batch_limit_below_the_model_is_refused(tmp_path: Path) -> None:
    settings = Settings(bundle=write_fake_bundle(tmp_path), max_batch_tokens=7)
    assert isinstance(await failure_of(create_app(settings, FakeEngine())), SettingsRefused)


@async_test
async def test_an_unforeseen_mistake_while_loading_is_kept_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    engine.run = None
    failure = await failure_of(create_app(Settings(bundle=write_fake_bundle(tmp_path)), engine))
    assert isinstance(failure, TypeError)
    assert "loading failed" in caplog.text


@async_test
async def test_draining_is_not_ready_but_still_answers_and_closes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        before = await client.get("/livez")
        app.state.lifecycle.drain()
        assert await probe(client) == (200, 503, 200)
        reply = await client.post("/v1/classify", json={"input": "好"})
    assert "Connection" not in before.headers
    assert (reply.status_code, reply.headers["Connection"]) == (200, "close")


@async_test
async def test_a_dead_batch_loop_is_neither_ready_nor_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with serving(tmp_path) as (client, app):
        monkeypatch.setattr(batcher_module, "take_batch", broken)
        reply = await client.post("/v1/classify", json={"input": "好"})
        assert reply.status_code == 503
        assert await probe(client) == (200, 503, 503)
        assert value(app.state.metrics.registry, "model_ready") == 0


@async_test
async def test_a_wedged_engine_is_first_not_ready_then_not_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, stalled_after_s=5, dead_after_s=60) as (client, _):
        engine.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))
        await engine.wait_entered()
        assert await probe(client) == (200, 200, 200)
        for later_s, answers in ((6, (200, 503, 200)), (66, (200, 503, 503))):
            clock = SimpleNamespace(monotonic=lambda later_s=later_s: time.monotonic() + later_s)
            monkeypatch.setattr(lifecycle_module, "time", clock)
            assert await probe(client) == answers
        monkeypatch.undo()
        engine.gate.set()
        await waiting
        assert await probe(client) == (200, 200, 200)


@pytest.mark.parametrize("fault", ["poison", "nan"])
def test_batches_failing_in_a_row_are_not_ready_until_one_succeeds(tmp_path: Path, fault: str) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine(**{fault: STRANGE_ID})
        async with serving(tmp_path, engine, max_failed_batches=2) as (client, _):
            for expected in (200, 503):
                failed = await client.post("/v1/classify", json={"input": STRANGE})
                assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_failed")
                assert (await client.get("/readyz")).status_code == expected
            assert (await client.post("/v1/classify", json={"input": "好"})).status_code == 200
            assert await probe(client) == (200, 200, 200)

    run()


@async_test
async def test_stopping_answers_whoever_still_waits(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, app):
        engine.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))
        await engine.wait_entered()
        await app.state.lifecycle.stop()
        assert (await waiting).status_code == 503


@async_test
async def test_a_request_that_the_server_gives_up_while_draining_is_told_so(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, app):
        engine.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))
        await engine.wait_entered()
        app.state.lifecycle.drain()
        waiting.cancel()
        reply = await waiting
        labels = {"route": "/v1/classify", "method": "POST", "status": "503"}
        assert value(app.state.metrics.registry, "http_requests_total", **labels) == 1
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
    assert reply.headers["Connection"] == "close"


@async_test
async def test_a_request_that_is_cancelled_at_another_time_stays_cancelled(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        engine.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))
        await engine.wait_entered()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()


@async_test
async def test_an_engine_that_is_stuck_is_known_after_the_stop(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, app):
        lifecycle = app.state.lifecycle
        engine.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/classify", json={"input": "好"}))
        await engine.wait_entered()
        await lifecycle.stop()
        await waiting
        assert lifecycle.threads.busy
        engine.gate.set()
        await eventually(lambda: not lifecycle.threads.busy)


@pytest.mark.parametrize("path", [*PROBES, "/version"])
@pytest.mark.parametrize("draining", [False, True])
def test_head_is_the_status_of_get_without_a_body(tmp_path: Path, path: str, draining: bool) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, app):
            app.state.lifecycle.draining = draining
            get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")

    run()


@async_test
async def test_stopping_while_loading(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    app = create_app(Settings(bundle=write_fake_bundle(tmp_path)), engine)
    async with app.router.lifespan_context(app):
        await engine.wait_entered()
    assert app.state.lifecycle.served is None
    engine.gate.set()
    await eventually(lambda: len(engine.shapes) > 0)
