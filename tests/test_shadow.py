"""A share of the default's texts is answered by another model as well, and nobody notices but the metrics."""

import asyncio
from pathlib import Path

import pytest
from reload_fixtures import Reloadable, reloadable
from service_fixtures import STRANGE, STRANGE_ID, async_test, eventually, write_fake_bundle

from lengnuan.service import shadow

RESULTS = ("same", "different", "dropped", "failed")


def shadowed(service: Reloadable) -> dict[str, float]:
    found = {result: service.value("shadow_total", model="news", result=result) for result in RESULTS}
    return {result: count for result, count in found.items() if count}


def news(folder: Path, share: str = "1") -> dict[str, str]:
    return {"models": f"news={write_fake_bundle(folder / 'n')}", "shadow": f"news={share}"}


@async_test
async def test_agreement_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        await service.classify(input=["好", "差"])
        await eventually(lambda: shadowed(service) == {"same": 2})
        run = service.engines[1].run
        monkeypatch.setattr(service.engines[1], "run", lambda ids, mask: run(ids, mask)[:, ::-1])
        await service.classify(input="很好看")
        await eventually(lambda: shadowed(service) == {"same": 2, "different": 1})
        assert service.value("items_total", model="news", outcome="ok") == 3
        assert service.value("items_total", model="default", outcome="ok") == 3


@async_test
async def test_no_share_and_no_other_model_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        await service.classify(model="news")
        await asyncio.sleep(5 * shadow.SECONDS_BETWEEN_LOOKS)
        assert (shadowed(service), service.value("items_total", model="default")) == ({}, 0)


@async_test
async def test_the_share_is_about_that_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "WAITING", 0)  # all that are chosen are dropped at once
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path, "0.25")) as service:
        for _ in range(4):
            await service.classify(input=["好"] * 1000)
        assert 800 < shadowed(service)["dropped"] < 1200


@async_test
async def test_a_failing_shadow_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        service.engines[1].poison = STRANGE_ID
        assert (await service.classify(input=STRANGE)).status_code == 200
        await eventually(lambda: shadowed(service) == {"failed": 1})
        with monkeypatch.context() as patch:
            patch.setattr(service.lifecycle.model("news"), "classify", None)
            assert (await service.classify()).status_code == 200
            await eventually(lambda: shadowed(service) == {"failed": 2})
        assert (await service.classify()).status_code == 200
        await eventually(lambda: shadowed(service) == {"failed": 2, "same": 1})


@async_test
async def test_a_text_that_fails_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        assert (await service.classify(input=["", "好"], partial=True)).status_code == 200
        await eventually(lambda: shadowed(service) == {"same": 1})


@async_test
async def test_while_the_default_is_busy_the_other_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "LOOKS", 2)
    async with reloadable(tmp_path, monkeypatch, cache_size=10, **news(tmp_path)) as service:
        await service.classify()
        await eventually(lambda: shadowed(service) == {"same": 1})
        default, other = service.engines
        asked = len(other.rows)
        default.entered.clear()
        default.gate.clear()
        busy = asyncio.create_task(service.classify(input="差"))
        await default.wait_entered()
        assert (await service.classify()).status_code == 200  # an answer that is kept needs no engine
        await eventually(lambda: shadowed(service) == {"same": 1, "dropped": 1})
        assert len(other.rows) == asked
        default.gate.set()
        assert (await busy).status_code == 200


@async_test
async def test_the_other_gets_the_texts_as_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, cache_size=10, **news(tmp_path)) as service:
        await service.classify()
        await eventually(lambda: shadowed(service) == {"same": 1})
        write_fake_bundle(tmp_path / "n", name="another")  # which has not kept that answer
        await service.reload(model="news")
        engine = service.engines[2]
        engine.entered.clear()
        engine.gate.clear()
        busy = asyncio.create_task(service.classify(input="差", model="news"))
        await engine.wait_entered()
        await service.classify()
        await eventually(lambda: service.value("queue_items", model="news", priority="bulk") == 1)
        engine.gate.set()
        assert (await busy).status_code == 200
        await eventually(lambda: shadowed(service) == {"same": 2})


@async_test
async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        service.engines[1].gate.clear()
        await service.classify(input=["好"] * 1000)
        assert shadowed(service)["dropped"] >= 1000 - shadow.WAITING - 1


@async_test
async def test_it_goes_on_after_reloads_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, **news(tmp_path)) as service:
        for bundle in (service.bundle, tmp_path / "n"):
            write_fake_bundle(bundle, name="another")
        await service.reload()
        await service.classify()
        await eventually(lambda: shadowed(service) == {"same": 1})
        assert service.engines[3].rows
