"""The keys file itself, and the command that makes a key for it."""

from pathlib import Path

import pytest
from keys_file import bearer, entry, write_keys
from service_fixtures import async_test, serving

from lengnuan.service import new_key
from lengnuan.service.keys import read_keys
from lengnuan.service.settings import SettingsRefused, name_of

SHOP = "ln_shop"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "holds no key; `lengnuan-key NAME` makes one"),
        ("[shop", "not TOML in UTF-8"),
        ("[shop]\n", "shop.sha256: Field required"),
        ("[shop]\nsha256 = []\n", "shop.sha256"),
        ('[shop]\nsha256 = ["ln_secret"]\n', "shop.sha256.0: String should match"),
        (entry("shop", SHOP, more="requests_per_minute = 0"), "shop.requests_per_minute"),
        (entry("shop", SHOP, more="texts_per_minute = inf"), "shop.texts_per_minute"),
        (entry("shop", SHOP, more='paths = ["v1"]'), "shop.paths.0"),
        (entry("shop", SHOP, more="rate = 1"), "shop.rate: Extra inputs are not permitted"),
        (entry('"a shop"', SHOP), "String should match"),
        (entry("shop", SHOP) + entry("desk", SHOP), "desk and shop have the same key"),
    ],
)
def test_a_file_that_can_t_be_right_is_refused_without_repeating_a_key(tmp_path: Path, content: str, told: str) -> None:
    file = write_keys(tmp_path, content)
    with pytest.raises(SettingsRefused) as refused:
        read_keys(file)
    assert told in str(refused.value)
    assert f"{name_of('keys_file')}: {file}" in str(refused.value)
    assert "ln_secret" not in str(refused.value)


def test_a_file_in_another_encoding_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gbk.toml").write_bytes("# 密钥\n".encode("gbk"))
    for name, told in (("gbk.toml", "not TOML in UTF-8"), ("nowhere.toml", "No such file or directory")):
        with pytest.raises(SettingsRefused, match=told):
            read_keys(tmp_path / name)


@async_test
async def test_a_new_key_works_with_the_lines_that_it_comes_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_key.main(["shop"]) == 0
    written = capsys.readouterr()
    key = written.err.splitlines()[-1]
    assert len(key) > 40
    assert key not in written.out
    async with serving(tmp_path, keys_file=write_keys(tmp_path, written.out)) as (client, _):
        assert (await client.get("/v1/models", headers=bearer(key))).status_code == 200


def test_a_name_that_the_file_could_not_hold_gets_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        new_key.main(["a shop"])
    assert capsys.readouterr().out == ""
