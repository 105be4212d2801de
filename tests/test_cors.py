"""Which pages of which origins a browser lets call the service: none, unless a setting says so."""

from pathlib import Path

import pytest
from keys_file import bearer, entry, write_keys
from service_fixtures import async_test, serving

from lengnuan.service.settings import Settings, SettingsRefused

URL = "/v1/classify"
SHOP, OTHER = "https://shop.example", "https://other.example"


def preflight(origin: str, headers: str = "authorization,content-type", method: str = "POST") -> dict[str, str]:
    wanted = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return {"Origin": origin, **wanted}


@pytest.mark.parametrize(
    ("allowed", "asked", "status", "origin"),
    [
        ("", preflight(SHOP), 405, None),
        (SHOP, preflight(SHOP), 200, SHOP),
        (f"{OTHER},{SHOP}", preflight(SHOP), 200, SHOP),
        (SHOP, preflight(SHOP, "x-api-key,x-request-id"), 200, SHOP),
        (SHOP, preflight(OTHER), 400, None),
        (SHOP, preflight(f"{SHOP}.evil.example"), 400, None),
        (SHOP, preflight("null"), 400, None),
        (SHOP, preflight(SHOP, "cookie"), 400, SHOP),
        (SHOP, preflight(SHOP, method="DELETE"), 400, SHOP),
        ("*", preflight(OTHER), 200, "*"),
    ],
)
def test_preflight(tmp_path: Path, allowed: str, asked: dict[str, str], status: int, origin: str | None) -> None:
    @async_test
    async def run() -> None:
        keys_file = write_keys(tmp_path, entry("shop", "ln_shop")) if allowed else None
        async with serving(tmp_path, cors_origins=allowed, keys_file=keys_file) as (client, _):
            reply = await client.options(URL, headers=asked)
        assert reply.status_code == status
        assert reply.headers.get("Access-Control-Allow-Origin") == origin
        assert "Access-Control-Allow-Credentials" not in reply.headers
        if status == 200:
            assert "authorization" in reply.headers["Access-Control-Allow-Headers"].lower()

    run()


@pytest.mark.parametrize(
    ("allowed", "origin", "told"), [("", SHOP, None), (SHOP, SHOP, SHOP), (SHOP, OTHER, None), ("*", OTHER, "*")]
)
def test_an_answer_and_an_error_both_name_the_origin(
    tmp_path: Path, allowed: str, origin: str, told: str | None
) -> None:
    @async_test
    async def run() -> None:
        keys_file = write_keys(tmp_path, entry("shop", "ln_shop"))
        async with serving(tmp_path, cors_origins=allowed, keys_file=keys_file) as (client, _):
            headers = {"Origin": origin, **bearer("ln_shop")}
            replies = [
                await client.post(URL, json={"input": "好"}, headers=headers),
                await client.post(URL, json={"input": ""}, headers=headers),
                await client.post(URL, json={"input": "好"}, headers={"Origin": origin}),
            ]
        assert [reply.status_code for reply in replies] == [200, 422, 401]
        assert [reply.headers.get("Access-Control-Allow-Origin") for reply in replies] == [told] * 3
        assert {reply.headers.get("Access-Control-Allow-Credentials") for reply in replies} == {None}

    run()


@pytest.mark.parametrize(
    "origins", ["*,https://a.example", "https://*.example", "a.example", "https://a.example/", " "]
)
def test_what_no_browser_sends_as_an_origin_is_refused(origins: str) -> None:
    with pytest.raises(SettingsRefused, match="LENGNUAN_CORS_ORIGINS"):
        Settings.from_command_line(["--cors-origins", origins])
