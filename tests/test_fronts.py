"""A process that answers HTTP, with its models in another one: what a caller may not notice."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from front_fixtures import Fronted, fronted
from prometheus_client.parser import text_string_to_metric_families
from reload_fixtures import TOKEN
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, eventually, expected_logits, write_fake_bundle

from lengnuan.model.bundle import Bundle
from lengnuan.service import loading
from lengnuan.service.keys import Keys
from lengnuan.service.metrics import Metrics
from lengnuan.service.processes import fronts
from lengnuan.service.processes.remote import write_model
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import SettingsRefused

TEXTS = ["好", "很好看", "差", "好看电影", "很差"]


def values(text: str, name: str, **labels: str) -> list[float]:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return [s.value for s in samples if s.name == f"lengnuan_{name}" and labels.items() <= s.labels.items()]


@async_test
async def test_answers_are_those_of_the_engine_in_the_order_of_the_texts(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine(), count=2) as service:
        for front in range(2):
            reply = await service.classify(*TEXTS, front=front, return_logits=True)
            found = [row["logits"] for row in reply.json()["data"]]
            assert np.allclose(found, [expected_logits(text) for text in TEXTS], atol=1e-6)


@async_test
async def test_every_route_that_asks_the_model_does(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine()) as service:
        [client] = service.clients
        assert (await client.get("/v1/models")).json()["data"][0]["runtime"] == "fake"
        lines = await client.post(
            "/v1/classify/stream", content='{"text": "好"}\n', headers={"Content-Type": "application/x-ndjson"}
        )
        explained = await client.post("/v1/explain", json={"input": "很好看"})
        tei = await client.post("/predict", json={"inputs": "好"})
        assert [reply.status_code for reply in (lines, explained, tei)] == [200, 200, 200], explained.text


@async_test
async def test_equal_texts_of_two_processes_run_once(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with fronted(tmp_path, engine, count=2) as service:
        engine.gate.clear()
        first = asyncio.create_task(service.labels("很差"))
        await engine.wait_entered()
        asked = [asyncio.create_task(service.labels("好看", front=front)) for front in (0, 1)]
        await eventually(lambda: service.lifecycle.default.served is not None and _waiting(service) == 2)
        engine.gate.set()
        labels = await asyncio.gather(*asked)
        await first
        assert labels[0] == labels[1]
        assert len(engine.rows) == 2


def _waiting(service: Any) -> int:
    return len(service.lifecycle.default.served.batcher.waiting)


@asynccontextmanager
async def full(folder: Path) -> AsyncIterator[tuple[Fronted, FakeEngine]]:
    """A service in which one text runs, and as many wait as may."""
    engine = FakeEngine()
    async with fronted(folder, engine, max_texts=2, queue_items=2, queue_tokens=64) as service:
        engine.gate.clear()
        running = asyncio.create_task(service.labels("差"))
        await engine.wait_entered()
        waiting = asyncio.create_task(service.labels("好", "很好看"))
        await eventually(lambda: _waiting(service) == 2)
        yield service, engine
        engine.gate.set()
        await asyncio.gather(running, waiting)


@async_test
async def test_a_full_queue_is_told_with_a_time_to_come_again(tmp_path: Path) -> None:
    async with full(tmp_path) as (service, _):
        refused = await service.classify("好看")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"]["limit"] == 2


@async_test
async def test_a_full_queue_refuses_before_a_text_is_looked_at(tmp_path: Path) -> None:
    async with full(tmp_path) as (service, engine):
        batcher = service.apps[0].state.lifecycle.served.batcher
        await eventually(lambda: bool(batcher._condition.refusals))
        assert (await service.classify(" ")).status_code == 429  # otherwise an error of its own, 422
        engine.gate.set()
        await eventually(lambda: not batcher._condition.refusals)
        assert (await service.classify(" ")).status_code == 422


@async_test
async def test_a_deadline_holds_and_takes_the_text_out_of_the_queue(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with fronted(tmp_path, engine) as service:
        engine.gate.clear()
        running = asyncio.create_task(service.labels("差"))
        await engine.wait_entered()
        late = await service.classify("好", timeout_ms=30)
        assert (late.status_code, late.json()["error"]["stage"]) == (504, "queue")
        assert _waiting(service) == 0
        engine.gate.set()
        await running


@async_test
async def test_a_caller_who_hangs_up_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with fronted(tmp_path, engine) as service:
        engine.gate.clear()
        running = asyncio.create_task(service.labels("差"))
        await engine.wait_entered()
        leaving = asyncio.create_task(service.labels("好"))
        await eventually(lambda: _waiting(service) == 1)
        leaving.cancel()
        await eventually(lambda: _waiting(service) == 0)
        engine.gate.set()
        await running


@async_test
async def test_a_text_on_which_the_engine_fails_fails_alone(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine(poison=STRANGE_ID)) as service:
        reply = await service.classify("好", STRANGE, "差", partial=True)
    rows = reply.json()["data"]
    assert [("error" in row and row["error"]["code"]) for row in rows] == [False, "engine_failed", False]
    assert rows[1]["error"]["index"] == 1


@async_test
async def test_a_stuck_engine_makes_the_process_unready(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with fronted(tmp_path, engine, stalled_after_s=0.05) as service:
        [client] = service.clients
        assert (await client.get("/readyz")).status_code == 200
        engine.gate.clear()
        running = asyncio.create_task(service.labels("差"))
        async with asyncio.timeout(30):
            while (await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - it is asked, and tells nobody
                await asyncio.sleep(0.01)
        assert (await client.get("/livez")).status_code == 200
        engine.gate.set()
        await running


@async_test
async def test_without_the_process_that_has_the_models_nothing_is_ready(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine()) as service:
        service.fronts[0].link.close()
        await service.fronts[0].link.closed.wait()
        await eventually(lambda: not service.apps[0].state.lifecycle.served.batcher.alive)
        assert (await service.clients[0].get("/readyz")).status_code == 503
        assert (await service.clients[0].get("/livez")).status_code == 503
        assert (await service.classify("好")).json()["error"]["code"] == "not_ready"


@async_test
async def test_a_process_that_hears_nothing_any_more_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fronted(tmp_path, FakeEngine(), stalled_after_s=0.5) as service:
        batcher = service.apps[0].state.lifecycle.served.batcher
        monkeypatch.setattr(batcher, "hear", lambda condition: None)
        batcher._heard_at -= 3600
        assert (await service.clients[0].get("/readyz")).status_code == 503


@async_test
async def test_a_reload_is_over_when_every_process_serves_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[FakeEngine] = []

    def opened(bundle: Bundle, *_: object) -> FakeEngine:
        engines.append(FakeEngine())
        return engines[-1]

    monkeypatch.setattr(loading, "open_engine", opened)
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    async with fronted(tmp_path, count=2, admin_token_file=token) as service:
        before = [(await service.classify("好", front=front)).json()["model_version"] for front in (0, 1)]
        engines[0].gate.clear()
        engines[0].entered.clear()
        asking = asyncio.create_task(service.classify("差"))
        await engines[0].wait_entered()
        write_fake_bundle(tmp_path / "bundle", name="second")
        reply = await service.clients[1].post("/admin/reload", headers={"X-Admin-Token": TOKEN})
        told = [(await client.get("/version")).json() for client in service.clients]
        engines[0].gate.set()
        old = await asking
        after = [(await service.classify("好", front=front)).json() for front in (0, 1)]
        again = await service.clients[0].post("/admin/reload", headers={"X-Admin-Token": TOKEN})
        await eventually(lambda: not service.lifecycle.default._retiring)
        assert [list(front._held) for front in service.fronts] == [[2], [3]]
    assert reply.json()["data"][0]["result"] == "reloaded"
    new = [("second", reply.json()["data"][0]["version"])] * 2
    assert [(answer["model"], answer["model_version"]) for answer in told] == new
    assert [(answer["model"], answer["model_version"]) for answer in after] == new
    assert old.json()["model_version"] == before[0] == before[1]  # begun on the old one, ended on it
    assert again.json()["data"][0]["result"] == "unchanged"


@async_test
async def test_of_two_reloads_in_a_row_the_second_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(served: ServedModel) -> tuple[dict[str, Any], bytes]:
        time.sleep(0.2 if served.name == "second" else 0.0)
        return write_model(served)

    monkeypatch.setattr(loading, "open_engine", lambda *_: FakeEngine())
    monkeypatch.setattr(fronts, "write_model", slowly)
    async with fronted(tmp_path) as service:
        for name in ("second", "third"):
            write_fake_bundle(tmp_path / "bundle", name=name)
            await service.lifecycle.reload()
        await eventually(lambda: not service.fronts[0]._fronts._announcing)
        assert (await service.classify("好")).json()["model"] == "third"


@async_test
async def test_a_process_that_ends_while_it_is_given_a_model_holds_it_no_longer(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine()) as service:
        [front] = service.fronts
        models = front._fronts
        models._announce(service.lifecycle.default)
        models.forget(front)
        assert front._held == {}
        served = service.lifecycle.default.served
        assert served is not None
        await asyncio.wait_for(served.holders.wait_for_nobody(), 30)


@async_test
async def test_a_bundle_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    async with fronted(tmp_path, FakeEngine(), admin_token_file=token) as service:
        (tmp_path / "bundle" / "manifest.json").write_text("{}", encoding="utf-8")
        reply = await service.clients[0].post("/admin/reload", headers={"X-Admin-Token": TOKEN})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "reload_refused")
        assert (await service.classify("好")).status_code == 200


@async_test
async def test_a_scrape_of_any_process_has_all_of_them(tmp_path: Path) -> None:
    async with fronted(tmp_path, FakeEngine(), count=2) as service:
        await service.labels("好", "差", front=0)
        await service.labels("很好看", front=1)
        texts = [(await client.get("/metrics")).text for client in service.clients]
        for text in texts:
            assert values(text, "items_total", outcome="ok") == [3]
            assert values(text, "batch_rows_sum") == [3]
            assert values(text, "http_requests_total", route="/v1/classify") == [2]
            assert values(text, "model_ready") == [1]
            assert values(text, "queue_limit_items", priority="bulk") == [4096]
            assert len(values(text, "model_info")) == 1
        models = service.fronts[0]._fronts
        models.forget(service.fronts[0])
        assert values((await service.clients[1].get("/metrics")).text, "items_total", outcome="ok") == [3]


def test_rates_of_keys_are_refused_where_each_process_would_let_them_through(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[shop]\nsha256 = ["{"0" * 64}"]\n', encoding="utf-8")
    Keys(file, Metrics(), rates=False)
    file.write_text(f'[shop]\nsha256 = ["{"0" * 64}"]\ntexts_per_minute = 5\n', encoding="utf-8")
    Keys(file, Metrics())
    with pytest.raises(SettingsRefused, match=r"shop has a rate.*LENGNUAN_HTTP_PROCESSES"):
        Keys(file, Metrics(), rates=False)
