"""`/admin/reload`: not there without a token, closed without the right one, and documented."""

from pathlib import Path

import pytest
from keys_file import bearer, entry, write_keys
from reload_fixtures import TOKEN, reloadable
from service_fixtures import async_test, serving, write_fake_bundle

from lengnuan.service.app import create_app
from lengnuan.service.settings import Settings, SettingsRefused


@async_test
async def test_without_a_token_there_is_no_such_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        assert (await client.post("/admin/reload", headers={"X-Admin-Token": ""})).status_code == 404


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é" * 16])
def test_without_the_right_token_nothing_is_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    @async_test
    async def run() -> None:
        async with reloadable(tmp_path, monkeypatch) as service:
            headers = [(b"X-Admin-Token", token.encode("latin-1"))]
            reply = await service.client.post("/admin/reload", headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "admin_refused")
            assert service.value("reload_total") == 0

    run()


@async_test
async def test_where_keys_are_needed_a_reload_takes_one_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_file = write_keys(tmp_path, entry("admin", "ln_admin"), entry("shop", "ln_shop", more='paths = ["/v1/"]'))
    async with reloadable(tmp_path, monkeypatch, keys_file=keys_file) as service:
        assert (await service.reload()).status_code == 401
        for key, code in (("ln_shop", "forbidden"), ("ln_admin", "admin_refused")):
            service.client.headers.update(bearer(key))
            assert (await service.reload("not the token, but as long")).json()["error"]["code"] == code
        assert (await service.reload()).status_code == 200


@async_test
async def test_a_changed_token_holds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        (tmp_path / "token").write_text("another token, as long", encoding="utf-8")
        assert (await service.reload()).status_code == 403
        assert (await service.reload("another token, as long")).status_code == 200
        (tmp_path / "token").write_text("", encoding="utf-8")
        assert (await service.reload("")).status_code == 403


def test_a_token_that_is_short_or_missing_is_refused_at_the_start(tmp_path: Path) -> None:
    for content in ("", "short\n", None):
        file = tmp_path / f"token {content!r}"
        if content is not None:
            file.write_text(content, encoding="utf-8")
        with pytest.raises(SettingsRefused, match="LENGNUAN_ADMIN_TOKEN_FILE"):
            create_app(Settings(admin_token_file=file))


@async_test
async def test_every_documented_code_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, monkeypatch) as service:
        operation = (await service.client.get("/openapi.json")).json()["paths"]["/admin/reload"]["post"]
        assert {entry["name"] for entry in operation["parameters"]} == {"model", "X-Admin-Token"}
        replies = [await service.reload(), await service.reload("wrong"), await service.reload(model="nobody")]
        replies.append(await service.reload(modle="default"))
        write_fake_bundle(service.bundle, lambda ids: [0.5, float(len(ids))])
        replies.append(await service.reload(model="default"))
        with monkeypatch.context() as patch:
            patch.setattr("lengnuan.service.admin.lifecycle_of", None)
            replies.append(await service.reload())
        service.lifecycle.drain()
        replies.append(await service.reload())
    assert [reply.status_code for reply in replies] == [200, 403, 404, 422, 409, 500, 503]
    assert {str(reply.status_code) for reply in replies} == operation["responses"].keys()
