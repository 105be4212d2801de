"""Several models in one service: chosen by name or alias, each with its own queue, readiness and metrics."""

import asyncio
from pathlib import Path

import pytest
from bundle_stores import point, put
from reload_fixtures import reloadable
from service_fixtures import STRANGE_ID, async_test, eventually, running, write_fake_bundle

from lengnuan.model.bundle import Bundle
from lengnuan.model.errors import BundleRefused
from lengnuan.service.app import create_app
from lengnuan.service.settings import Settings, SettingsRefused


def store(folder: Path, *aliases: str) -> dict[str, str]:
    """A store in which each alias names a bundle of its own; their versions."""
    versions = {alias: put(folder, write_fake_bundle(folder / "made" / alias, name=alias * 2)) for alias in aliases}
    for alias, version in versions.items():
        point(folder, alias, version)
    return versions


@async_test
async def test_requests_choose_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = write_fake_bundle(tmp_path / "n", name="anything")
    async with reloadable(tmp_path, monkeypatch, models=f"news={news}") as service:
        versions = {"tiny": Bundle.load(service.bundle).version, "news": Bundle.load(news).version}
        assert versions["tiny"] != versions["news"]
        assert await service.version() == await service.version(model="default") == versions["tiny"]
        for name, version in versions.items():
            reply = (await service.classify(model=name)).json()
            assert (reply["model"], reply["model_version"]) == (name, version)
        cards = (await service.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["version"]) for card in cards] == list(versions.items())


@async_test
async def test_an_unknown_model_is_404_with_the_names_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reloadable(tmp_path, monkeypatch, models=f"news={write_fake_bundle(tmp_path / 'n')}") as service:
        reply = await service.classify(model="weather")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_model")
    assert "tiny, news" in reply.json()["error"]["message"]


@async_test
async def test_every_route_that_takes_a_name_takes_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch, models=f"news={write_fake_bundle(tmp_path / 'n')}") as service:
        client = service.client
        for path in ("/v1/tokenize", "/v1/explain"):
            assert (await client.post(path, json={"input": "好看", "model": "news"})).json()["model"] == "news"
        lines = {"content": '{"input": "好"}'.encode(), "headers": {"Content-Type": "application/x-ndjson"}}
        assert (await client.post("/v1/classify/stream?model=news", **lines)).status_code == 200
        assert (await client.post("/v1/classify/stream?model=old", **lines)).status_code == 404
        assert (await client.get("/v2/models/news")).json()["name"] == "news"
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["好"]}]
        reply = await client.post("/v2/models/news/infer", json={"inputs": inputs})
        assert reply.json()["model_name"] == "news"
        assert (await client.post("/predict", json={"inputs": "好"})).status_code == 200
        assert (await client.get("/info")).json()["model_id"] == "tiny"


@async_test
async def test_models_of_a_store_also_go_by_their_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = store(tmp_path / "s", "champion", "challenger")
    places = {"bundle": Path(f"{tmp_path}/s@champion"), "models": f"new={tmp_path}/s@challenger"}
    async with reloadable(tmp_path, monkeypatch, **places) as service:
        assert await service.version() == await service.version(model="champion") == versions["champion"]
        assert await service.version(model="new") == await service.version(model="challenger") == versions["challenger"]
        cards = (await service.client.get("/v1/models")).json()["data"]
        shown = [(card["id"], card["aliases"]) for card in cards]
        assert shown == [("championchampion", ["default", "champion"]), ("new", ["challenger"])]


@async_test
async def test_an_alias_that_two_models_have_chooses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("s", "t"):
        store(tmp_path / name, "champion")
    places = {"bundle": Path(f"{tmp_path}/s@champion"), "models": f"news={tmp_path}/t@champion"}
    async with reloadable(tmp_path, monkeypatch, **places) as service:
        assert (await service.classify(model="champion")).status_code == 404
        assert (await service.classify(model="news")).status_code == 200


@async_test
async def test_one_model_in_trouble_is_not_ready_and_so_is_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = f"news={write_fake_bundle(tmp_path / 'n')}"
    async with reloadable(tmp_path, monkeypatch, models=news, max_failed_batches=1) as service:
        service.engines[1].poison = STRANGE_ID
        assert (await service.classify(input="悲", model="news")).status_code == 500
        paths = ("/v2/models/tiny/ready", "/v2/models/news/ready", "/v2/health/ready", "/readyz", "/livez")
        assert [(await service.client.get(path)).status_code for path in paths] == [200, 503, 503, 503, 503]
        ready = {name: service.value("model_ready", model=name) for name in ("default", "news")}
        assert ready == {"default": 1, "news": 0}
        assert await service.version() == await service.version(model="tiny")


@async_test
async def test_each_model_has_its_own_queue_and_its_own_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = f"news={write_fake_bundle(tmp_path / 'n')}"
    async with reloadable(tmp_path, monkeypatch, models=news, max_texts=2, queue_items=2) as service:
        for engine in service.engines:
            engine.entered.clear()
        service.engines[1].gate.clear()
        tasks = [asyncio.create_task(service.classify(model="news"))]
        await service.engines[1].wait_entered()
        tasks.append(asyncio.create_task(service.classify(model="news", input=["差", "好看"])))
        await eventually(lambda: service.value("queue_items", model="news") == 2)
        assert (await service.classify(model="news", input="太")).status_code == 429
        assert service.value("queue_items", model="default") == 0
        tasks.append(asyncio.create_task(service.classify()))
        service.engines[1].gate.set()
        assert {reply.status_code for reply in await asyncio.gather(*tasks)} == {200}
        counted = {name: service.value("items_total", model=name, outcome="ok") for name in ("default", "news")}
        assert counted == {"default": 1, "news": 3}
        for name in ("default", "news"):
            ended = service.value("items_total", model=name) + service.value("items_in_flight", model=name)
            assert service.value("items_received_total", model=name) == ended


@async_test
async def test_one_of_them_can_be_reloaded_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = write_fake_bundle(tmp_path / "n")
    async with reloadable(tmp_path, monkeypatch, models=f"news={news}") as service:
        for bundle in (service.bundle, news):
            write_fake_bundle(bundle, name="another")
        before = await service.version()
        [entry] = (await service.reload(model="news")).json()["data"]
        assert (entry["model"], entry["version"]) == ("news", Bundle.load(news).version)
        assert await service.version() == before
        assert await service.version(model="news") == Bundle.load(news).version
        assert [entry["result"] for entry in (await service.reload()).json()["data"]] == ["reloaded", "unchanged"]


async def failure(**settings: object) -> Exception | None:
    app = create_app(Settings(**settings))
    async with running(app):
        found: Exception | None = app.state.lifecycle.failure
        return found


@async_test
async def test_one_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        found = await failure(bundle=service.bundle, models=f"news={tmp_path / 'nothing'}")
    assert isinstance(found, BundleRefused)


@async_test
async def test_a_name_that_the_default_s_bundle_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        found = await failure(bundle=service.bundle, models=f"tiny={service.bundle}")
    assert isinstance(found, SettingsRefused)
    assert "is called tiny" in str(found)


def refusal(*argv: str) -> str:
    with pytest.raises(SettingsRefused) as error:
        Settings.from_command_line(list(argv))
    return str(error.value)


@pytest.mark.parametrize("models", ["news", "=/a", "news=", "News=/a", "a b=/a", "../x=/a", "default=/a", "a=/a,a=/b"])
def test_a_list_of_models_that_cannot_be_read_is_refused(models: str) -> None:
    assert "--models (LENGNUAN_MODELS)" in refusal("--models", models)


@pytest.mark.parametrize("shadow", ["news", "news=0", "news=1.5", "news=nan", "news=x", "old=0.1", "=0.1"])
def test_a_shadow_that_cannot_be_read_is_refused(shadow: str) -> None:
    assert "--shadow (LENGNUAN_SHADOW)" in refusal("--models", "news=/a", "--shadow", shadow)


def test_models_are_read_with_their_places() -> None:
    settings = Settings(models=" news=/a , new=/s@challenger,", shadow="new=0.25")
    assert settings.named_models() == {"news": Path("/a"), "new": Path("/s@challenger")}
    assert settings.shadow_share() == ("new", 0.25)
