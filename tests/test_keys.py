"""API keys over HTTP: who is let in, how fast, and what happens when their file changes."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from keys_file import bearer, entry, hashed, write_keys
from service_fixtures import FakeEngine, async_test, eventually, serving, value

from lengnuan.service import keys
from lengnuan.service.errors import ErrorReply

URL = "/v1/classify"
SHOP, SHOP_NEW, DESK = "ln_shop", "ln_shop_new", "ln_desk"
TEXT_TENSOR = {"name": "text", "datatype": "BYTES"}
UNGUARDED = (
    *("/livez", "/readyz", "/startupz", "/metrics", "/version"),
    *("/health", "/v2/health/live", "/v2/health/ready"),
)


async def ask(client: httpx.AsyncClient, key: str, text: str | list[str] = "好") -> httpx.Response:
    return await client.post(URL, json={"input": text}, headers=bearer(key))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {SHOP}"}, 200),
        ({"Authorization": f"bearer  {SHOP} "}, 200),
        ({"X-API-Key": SHOP}, 200),
        ({"Authorization": "Basic dXNlcjpwYXNz", "X-API-Key": SHOP}, 200),
        ({"Authorization": f"Bearer {SHOP}x"}, 401),
        ({"Authorization": f"Bearer {SHOP[:-1]}"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Bearer {hashed(SHOP)}"}, 401),
        ({"Authorization": SHOP}, 401),
        ({"Authorization": f"Basic {SHOP}"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": "\u00e9"}, 401),
    ],
)
def test_a_key_is_needed_and_only_a_valid_one_is_taken(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    @async_test
    async def run() -> None:
        raw = [(name.encode(), told.encode("latin-1")) for name, told in headers.items()]
        async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, _):
            reply = await client.post(URL, json={"input": "好"}, headers=raw)
        assert reply.status_code == status
        if status == 401:
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert ErrorReply.model_validate(reply.json()).error.code == "unauthorized"

    run()


@async_test
async def test_without_a_file_no_key_is_needed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        assert (await client.post(URL, json={"input": "好"})).status_code == 200


@async_test
async def test_probes_and_metrics_need_none_and_everything_else_does(tmp_path: Path) -> None:
    async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, app):
        unguarded = {path: (await client.get(path)).status_code for path in UNGUARDED}
        others = {getattr(route, "path", "") for route in app.routes} - set(UNGUARDED)
        guarded = {path: (await client.get(path)).status_code for path in [*others, "/nowhere", "/livez/", "//livez"]}
    assert set(unguarded.values()) == {200}
    assert set(guarded.values()) == {401}


@async_test
async def test_a_body_without_a_key_is_not_read(tmp_path: Path) -> None:
    async def unread() -> Any:
        pytest.fail("the body was read")
        yield b""

    async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, _):
        reply = await client.post(URL, content=unread(), headers={"Content-Type": "application/json"})
    assert reply.status_code == 401


@pytest.mark.parametrize(
    ("path", "fields"), [("/predict", {"error", "error_type"}), ("/v2/models/tiny/infer", {"error"})]
)
def test_a_refusal_has_the_shape_of_the_path_s_protocol(tmp_path: Path, path: str, fields: set[str]) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, _):
            reply = await client.post(path, json={})
        assert reply.status_code == 401
        assert reply.json().keys() == fields
        assert isinstance(reply.json()["error"], str)

    run()


@async_test
async def test_a_key_for_some_paths_is_refused_on_others(tmp_path: Path) -> None:
    file = write_keys(tmp_path, entry("shop", SHOP, more='paths = ["/v1/classify", "/v1/models"]'))
    async with serving(tmp_path, keys_file=file) as (client, _):
        allowed = [await ask(client, SHOP), await client.get("/v1/models", headers=bearer(SHOP))]
        refused = await client.post("/v1/explain", json={"input": "好"}, headers=bearer(SHOP))
    assert [reply.status_code for reply in allowed] == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


@async_test
async def test_requests_over_the_rate_of_their_key_are_told_when_to_come_back(tmp_path: Path) -> None:
    file = write_keys(tmp_path, entry("shop", SHOP, more="requests_per_minute = 2"), entry("desk", DESK))
    async with serving(tmp_path, keys_file=file) as (client, _):
        *accepted, refused = [await ask(client, SHOP) for _ in range(3)]
        other = await ask(client, DESK)
    assert [reply.status_code for reply in accepted] == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 30
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, {"input": ["好"] * 3}),
        ("/predict", {"inputs": [["好"]] * 3}),
        (
            "/v2/models/tiny/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [3], "data": ["好"] * 3}]},
        ),
        ("/v1/explain", {"input": "好差"}),
    ],
)
def test_texts_over_the_rate_are_refused_before_any_runs(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine()
        file = write_keys(tmp_path, entry("shop", SHOP, more="texts_per_minute = 5"))
        async with serving(tmp_path, engine, keys_file=file) as (client, _):
            accepted = await client.post(path, json=body, headers=bearer(SHOP))
            ran = len(engine.rows)
            refused = await client.post(path, json=body, headers=bearer(SHOP))
        assert (accepted.status_code, refused.status_code) == (200, 429)
        assert int(refused.headers["Retry-After"]) >= 1
        assert len(engine.rows) == ran

    run()


@async_test
async def test_a_stream_over_the_rate_waits_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds > 1:
            waited.set()

    monkeypatch.setattr("lengnuan.service.stream.asyncio.sleep", sleep)
    file = write_keys(tmp_path, entry("shop", SHOP, more="texts_per_minute = 5"))
    async with serving(tmp_path, keys_file=file) as (client, app):
        reply = await client.post(
            "/v1/classify/stream",
            content='{"input": "好"}\n' * 20,
            headers={"Content-Type": "application/x-ndjson", **bearer(SHOP)},
        )
        await eventually(lambda: value(app.state.metrics.registry, "key_texts_total", key="shop") == 20)
    assert (reply.status_code, len(reply.text.splitlines())) == (200, 20)
    assert waited.is_set()


@async_test
async def test_keys_are_rotated_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_EVERY_S", 0.0)
    async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, _):
        before = [(await ask(client, key)).status_code for key in (SHOP, SHOP_NEW)]
        write_keys(tmp_path, entry("shop", SHOP, SHOP_NEW))
        meanwhile = [(await ask(client, key)).status_code for key in (SHOP, SHOP_NEW)]
        write_keys(tmp_path, entry("shop", SHOP_NEW))
        after = [(await ask(client, key)).status_code for key in (SHOP, SHOP_NEW)]
    assert (before, meanwhile, after) == ([200, 401], [200, 200], [401, 200])


@async_test
async def test_a_secret_that_kubernetes_updates_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is a link into a folder which is a link, and that one is replaced."""
    monkeypatch.setattr(keys, "LOOK_EVERY_S", 0.0)
    for version, key in (("v1", SHOP), ("v2", SHOP_NEW)):
        (tmp_path / version).mkdir()
        write_keys(tmp_path / version, entry("shop", key))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys.toml").symlink_to("..data/keys.toml")
    async with serving(tmp_path, keys_file=tmp_path / "keys.toml") as (client, _):
        assert (await ask(client, SHOP)).status_code == 200
        (tmp_path / "..data_tmp").symlink_to("v2")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
        assert [(await ask(client, key)).status_code for key in (SHOP, SHOP_NEW)] == [401, 200]


@async_test
async def test_a_change_does_not_refill_an_allowance_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_EVERY_S", 0.0)
    rate = "requests_per_minute = 1"
    async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP, more=rate))) as (client, _):
        assert (await ask(client, SHOP)).status_code == 200
        write_keys(tmp_path, entry("shop", SHOP, SHOP_NEW, more=rate))
        assert (await ask(client, SHOP_NEW)).status_code == 429
        write_keys(tmp_path, entry("shop", SHOP_NEW, more="requests_per_minute = 2"))
        assert (await ask(client, SHOP_NEW)).status_code == 200


@pytest.mark.parametrize("broken", ["[shop", "", None])
def test_a_broken_new_file_leaves_the_old_keys_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    @async_test
    async def run() -> None:
        monkeypatch.setattr(keys, "LOOK_EVERY_S", 0.0)
        file = write_keys(tmp_path, entry("shop", SHOP))
        async with serving(tmp_path, keys_file=file) as (client, app):
            registry = app.state.metrics.registry
            file.unlink()
            if broken is not None:
                write_keys(tmp_path, broken)
            during = [(await ask(client, SHOP)).status_code for _ in range(3)]
            assert value(registry, "keys_stale") == 1
            write_keys(tmp_path, entry("shop", SHOP_NEW))
            after = [(await ask(client, key)).status_code for key in (SHOP, SHOP_NEW)]
            assert value(registry, "keys_stale") == 0
        assert (during, after) == ([200] * 3, [401, 200])
        assert caplog.text.count("the keys from before stay valid") == 1
        assert str(file) in caplog.text

    run()


@async_test
async def test_requests_and_texts_are_counted_by_the_name_of_the_key(tmp_path: Path) -> None:
    file = write_keys(tmp_path, entry("shop", SHOP, SHOP_NEW), entry("desk", DESK))
    async with serving(tmp_path, keys_file=file) as (client, app):
        for key, texts in ((SHOP, ["好"] * 3), (SHOP_NEW, ["好"]), (DESK, []), ("wrong", ["好"])):
            await ask(client, key, texts)
        registry = app.state.metrics.registry
        scrape = app.state.metrics.render().decode()
        assert value(registry, "key_requests_total", key="shop", status="200") == 2
        assert value(registry, "key_texts_total", key="shop") == 4
        assert value(registry, "key_requests_total", key="desk", status="422") == 1
    assert set(re.findall('key="([^"]*)"', scrape)) == {"shop", "desk"}


@async_test
async def test_the_openapi_document_says_how_a_key_is_given_and_what_comes_without(tmp_path: Path) -> None:
    async with serving(tmp_path, keys_file=write_keys(tmp_path, entry("shop", SHOP))) as (client, _):
        document = (await client.get("/openapi.json", headers=bearer(SHOP))).json()
    schemes = document["components"]["securitySchemes"]
    assert (schemes["bearer"]["scheme"], schemes["header"]["name"]) == ("bearer", "X-API-Key")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in UNGUARDED), path
            assert ({"401", "403", "429"} <= operation["responses"].keys()) == (path not in UNGUARDED), path
    too_many = document["paths"][URL]["post"]["responses"]["429"]["description"]
    assert "`overloaded`" in too_many
    assert "`rate_limited`" in too_many
