"""A model is reloaded when there is another bundle at its place."""

import asyncio
from pathlib import Path

import pytest
from bundle_stores import point, put
from reload_fixtures import reloadable
from service_fixtures import async_test, eventually, write_fake_bundle

from lengnuan.model.bundle import MODEL, Bundle
from lengnuan.service.watching import look

EVERY_S = 0.005


@async_test
async def test_an_alias_that_is_moved_moves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "s"
    versions = [put(store, write_fake_bundle(tmp_path / name, name=name)) for name in ("first", "second")]
    point(store, "champion", versions[0])
    async with reloadable(tmp_path, monkeypatch, bundle=Path(f"{store}@champion"), watch_s=EVERY_S) as service:
        assert await service.version() == versions[0]
        point(store, "champion", versions[1])
        await eventually(lambda: service.value("reload_total", result="reloaded") == 1)
        assert await service.version() == versions[1]
        point(store, "champion", versions[0])
        await eventually(lambda: service.value("reload_total", result="reloaded") == 2)
        assert await service.version() == versions[0]


@async_test
async def test_another_bundle_in_the_folder_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, watch_s=EVERY_S) as service:
        write_fake_bundle(service.bundle, name="another")
        await eventually(lambda: service.value("reload_total", result="reloaded") == 1)
        assert await service.version() == Bundle.load(service.bundle).version


@async_test
async def test_a_bad_bundle_is_tried_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, watch_s=EVERY_S) as service:
        before = await service.version()
        write_fake_bundle(service.bundle, lambda ids: [0.5, float(len(ids))])
        await eventually(lambda: service.value("reload_total", result="refused") >= 1)
        refused = service.value("reload_total", result="refused")
        await asyncio.sleep(20 * EVERY_S)
        assert service.value("reload_total", result="refused") == refused
        assert await service.version() == before
        write_fake_bundle(service.bundle, name="mended")
        await eventually(lambda: service.value("reload_total", result="reloaded") == 1)


@async_test
async def test_without_a_change_nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, watch_s=EVERY_S) as service:
        await asyncio.sleep(20 * EVERY_S)
        assert service.value("reload_total") == 0


@async_test
async def test_by_default_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        before = await service.version()
        write_fake_bundle(service.bundle, name="another")
        await asyncio.sleep(0.05)
        assert await service.version() == before


def test_every_file_and_its_absence_is_seen(tmp_path: Path) -> None:
    bundle = write_fake_bundle(tmp_path / "bundle")
    whole = look(bundle)
    assert (whole.version, look(bundle)) == (Bundle.load(bundle).version, whole)
    (bundle / MODEL).write_bytes(b"longer than before")
    assert look(bundle) != whole
    assert look(bundle).version == whole.version
    (bundle / "manifest.json").unlink()
    assert look(bundle).problem
    assert "no alias champion" in look(Path(f"{bundle}@champion")).problem
