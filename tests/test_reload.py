"""Another bundle takes the place of the one that is served, while requests go on."""

import asyncio
import json
import threading
import weakref
from pathlib import Path

import pytest
from reload_fixtures import reloadable
from service_fixtures import STRANGE_ID, async_test, eventually, write_fake_bundle

from lengnuan.model.bundle import GOLDEN, MANIFEST, MODEL, Bundle
from lengnuan.service import loading


@async_test
async def test_the_new_bundle_answers_after_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        before = await service.version()
        write_fake_bundle(service.bundle, name="another")
        reply = await service.reload()
        now = Bundle.load(service.bundle).version
        entry = {"model": "default", "result": "reloaded", "version": now, "previous": before}
        assert (reply.status_code, reply.json()["data"]) == (200, [entry])
        assert await service.version() == now != before
        assert (await service.client.get("/v1/models")).json()["data"][0]["id"] == "another"
        assert service.value("reload_total", result="reloaded") == 1
        assert service.value("model_info") == 1
        assert service.value("model_info", name="another", version=now) == 1


@async_test
async def test_requests_in_flight_end_on_the_old_model_which_is_then_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        before, [old_engine] = await service.version(), service.engines
        old = weakref.ref(service.lifecycle.model())
        old_engine.entered.clear()
        old_engine.gate.clear()
        waiting = asyncio.create_task(service.classify())
        await old_engine.wait_entered()
        write_fake_bundle(service.bundle, name="another")
        assert (await service.reload()).status_code == 200
        assert not waiting.done()
        assert service.lifecycle.model() is not old()
        old_engine.gate.set()
        assert (await waiting).json()["model_version"] == before
        await eventually(lambda: old() is None)
        assert await service.version() != before


@async_test
async def test_a_stream_keeps_its_model_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = asyncio.Event()

    async with reloadable(tmp_path, monkeypatch) as service:

        async def lines():
            yield '{"input": "好"}\n'.encode()
            await more.wait()
            yield '{"input": "差"}\n'.encode()

        old, [old_engine] = weakref.ref(service.lifecycle.model()), service.engines
        headers = {"Content-Type": "application/x-ndjson"}
        asking = service.client.post("/v1/classify/stream", content=lines(), headers=headers)
        streaming = asyncio.create_task(asking)
        await eventually(lambda: len(old_engine.rows) > 6)
        write_fake_bundle(service.bundle, name="another")
        await service.reload()
        assert await service.version() == Bundle.load(service.bundle).version
        more.set()
        answers = [json.loads(line) for line in (await streaming).text.splitlines()]
        assert [answer["index"] for answer in answers] == [0, 1]
        assert all("label" in answer for answer in answers)
        await eventually(lambda: old() is None)


def damage(bundle: Path, how: str) -> None:
    match how:
        case "truncated graph":
            (bundle / MODEL).write_bytes((bundle / MODEL).read_bytes()[:-1])
        case "no manifest":
            (bundle / MANIFEST).unlink()
        case "half a manifest":
            (bundle / MANIFEST).write_bytes((bundle / MANIFEST).read_bytes()[:100])
        case "wrong golden answer":
            write_fake_bundle(bundle, lambda ids: [0.5, float(len(ids))])
        case "changed golden answers":
            (bundle / GOLDEN).write_text("[]", encoding="utf-8")


DAMAGES = {
    **{"truncated graph": "bytes", "no manifest": "not a bundle", "half a manifest": MANIFEST},
    **{"wrong golden answer": "golden text", "changed golden answers": GOLDEN},
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_bad_bundle_leaves_the_old_one_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    @async_test
    async def run() -> None:
        async with reloadable(tmp_path, monkeypatch) as service:
            before = await service.version()
            damage(service.bundle, how)
            reply = await service.reload()
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (409, "reload_refused")
            assert DAMAGES[how] in error["message"]
            assert DAMAGES[how] in caplog.text
            assert "reload refused" in caplog.text
            assert await service.version() == before
            assert (await service.client.get("/readyz")).status_code == 200
            assert service.value("reload_total", result="refused") == 1
            assert service.value("model_info", version=before) == 1
            write_fake_bundle(service.bundle, name="mended")
            assert (await service.reload()).status_code == 200
            assert await service.version() != before

    run()


@async_test
async def test_an_engine_that_fails_at_the_warm_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        before = await service.version()
        write_fake_bundle(service.bundle, name="another")

        def broken(*_: object) -> None:
            raise RuntimeError("no memory")

        monkeypatch.setattr("lengnuan.service.loading._warm_up", broken)
        reply = await service.reload()
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "reload_refused")
        assert "RuntimeError" in reply.json()["error"]["message"]
        assert await service.version() == before


@async_test
async def test_a_bundle_that_does_not_fit_the_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch, max_batch_tokens=8) as service:
        manifest = Bundle.load(service.bundle).manifest
        Bundle.write(service.bundle, manifest.model_copy(update={"max_tokens": 9}))
        assert "LENGNUAN_MAX_BATCH_TOKENS" in (await service.reload()).json()["error"]["message"]
        assert (await service.client.get("/v1/models")).json()["data"][0]["limits"]["max_tokens"] == 8


@async_test
async def test_the_same_bundle_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        served = service.lifecycle.model()
        [entry] = (await service.reload()).json()["data"]
        assert (entry["result"], entry["previous"]) == ("unchanged", None)
        assert service.lifecycle.model() is served
        assert len(service.engines) == 1
        assert service.value("reload_total", result="unchanged") == 1


@async_test
async def test_answers_of_the_old_model_are_not_kept_for_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch, cache_size=10) as service:
        await service.version()
        assert service.value("cache_items") == 1
        write_fake_bundle(service.bundle, name="another")
        await service.reload()
        assert service.value("cache_items") == 0
        asked = len(service.engines[1].rows)
        await service.version()
        assert len(service.engines[1].rows) == asked + 1


@async_test
async def test_counters_go_on_and_the_queue_is_the_new_model_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        await service.version()
        write_fake_bundle(service.bundle, name="another")
        await service.reload()
        service.engines[1].entered.clear()
        service.engines[1].gate.clear()
        first = asyncio.create_task(service.classify())
        await service.engines[1].wait_entered()
        second = asyncio.create_task(service.classify(input="差"))
        await eventually(lambda: service.value("queue_items", model="default") == 1)
        service.engines[1].gate.set()
        await asyncio.gather(first, second)
        assert service.value("items_total", model="default", outcome="ok") == 3


@async_test
async def test_a_second_reload_at_the_same_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        async with service.lifecycle._reloading:
            reply = await service.reload()
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "reload_running")
        assert (await service.reload()).status_code == 200


@async_test
async def test_a_reload_that_nobody_waits_for_comes_after_the_one_before_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        write_fake_bundle(service.bundle, name="another")
        async with service.lifecycle._reloading:
            for _ in range(3):
                service.lifecycle.reload_later()
        await eventually(lambda: service.value("reload_total") > 0)
        assert await service.version() == Bundle.load(service.bundle).version
        assert (service.value("reload_total"), len(service.engines)) == (1, 2)


@async_test
async def test_nothing_is_reloaded_while_draining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        service.lifecycle.drain()
        service.lifecycle.reload_later()
        assert (await service.reload()).status_code == 503
        assert service.value("reload_total") == 0


@async_test
async def test_stopping_ends_models_that_have_been_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        [old_engine] = service.engines
        old_engine.entered.clear()
        old_engine.gate.clear()
        waiting = asyncio.create_task(service.classify())
        await old_engine.wait_entered()
        write_fake_bundle(service.bundle, name="another")
        await service.reload()
        await service.lifecycle.stop()
        assert (await waiting).status_code == 503


@async_test
async def test_a_reload_goes_on_when_its_caller_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    async with reloadable(tmp_path, monkeypatch) as service:
        opened = loading.open_engine
        monkeypatch.setattr(loading, "open_engine", lambda *given: opened(*given) if gate.wait(30) else None)
        write_fake_bundle(service.bundle, name="another")
        asking = asyncio.create_task(service.reload())
        await eventually(service.lifecycle._reloading.locked)
        asking.cancel()
        await asyncio.wait([asking])
        gate.set()
        await eventually(lambda: service.value("reload_total", result="reloaded") == 1)


@async_test
async def test_failures_of_the_old_model_do_not_count_against_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch, max_failed_batches=1) as service:
        service.engines[0].poison = STRANGE_ID
        assert (await service.classify(input="悲")).status_code == 500
        assert (await service.client.get("/readyz")).status_code == 503
        write_fake_bundle(service.bundle, name="another")
        assert (await service.reload()).status_code == 200
        assert (await service.client.get("/readyz")).status_code == 200
