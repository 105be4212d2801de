"""Promotion into S3: what test_promote.py holds of a folder, on a real S3 server."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from promotion_fixtures import lenient, version

from lengnuan.model.bundle import Bundle
from lengnuan.training import __main__ as command
from lengnuan.training.errors import StoreBusy
from lengnuan.training.store import BundleStore

pytestmark = pytest.mark.integration


@pytest.fixture
def root(server: str, request: pytest.FixtureRequest) -> str:
    """A store of the test's own."""
    return f"{server}/{request.node.name}"


def promote(made: Path, name: str, root: str) -> int:
    data = ["--store", root, "--data", str(made / "rows.tsv"), *lenient()]
    return command.main(["promote", str(made / name), *data])


def objects(root: str) -> dict[str, bytes]:
    store = BundleStore(root)
    found: dict[str, bytes] = store._files.cat(store._files.find(store._path))
    return {path.removeprefix(f"{store._path}/"): content for path, content in found.items()}


def test_a_bundle_arrives_byte_for_byte_and_the_alias_names_it(made: Path, root: str) -> None:
    assert promote(made, "second", root) == 0
    assert promote(made, "third", root) == 0
    found = objects(root)
    alias: dict[str, Any] = json.loads(found["aliases/champion.json"])
    assert (alias["bundle"], alias["history"]) == (version(made, "third"), [version(made, "second")])
    sent = {name: content for name, content in found.items() if name.startswith(f"bundles/{alias['bundle']}/")}
    decision = json.loads(sent.pop(f"bundles/{alias['bundle']}/decision.json"))
    assert decision["decision"] == "PROMOTE"
    assert sorted(sent.values()) == sorted(file.read_bytes() for file in (made / "third").iterdir())


def test_worse_is_refused_and_rollback_goes_back(made: Path, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("second", 0), ("third", 0), ("second", 11)):
        assert promote(made, name, root) == code
    assert command.main(["rollback", "--store", root]) == 0
    assert command.main(["store", root]) == 0
    assert f"champion = {version(made, 'second')} since" in capsys.readouterr().out


def test_live_may_be_an_alias_of_a_store_in_s3(made: Path, root: str, tmp_path: Path) -> None:
    assert promote(made, "second", root) == 0
    file = tmp_path / "decision.json"
    options = ["--data", str(made / "rows.tsv"), "--json", str(file), *lenient()]
    assert command.main(["compare", str(made / "third"), f"{root}@champion", *options]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["live"]["version"] == version(made, "second")


@pytest.mark.parametrize("first", [True, False])
def test_of_two_promotions_that_began_alike_the_second_is_refused(root: str, first: bool) -> None:
    store = BundleStore(root)
    before = None if first else store.point("champion", "0" * 12, None) and store.alias("champion")
    store.point("champion", "1" * 12, before)
    with pytest.raises(StoreBusy, match="changed meanwhile"):
        store.point("champion", "2" * 12, before)
    found = store.alias("champion")
    assert found is not None
    assert found.bundle == "1" * 12


def test_cut_off_at_any_object_the_old_alias_stays_and_the_next_promotion_goes_on(
    made: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert promote(made, "second", root) == 0
    s3 = type(BundleStore(root)._files)
    whole = {name: getattr(s3, name) for name in ("_put_file", "_pipe_file")}
    cut, calls = 0, 0

    def cutting(name: str) -> Any:
        async def cut_off(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            if calls == cut:
                raise ConnectionError("cut off")
            calls += 1
            return await whole[name](*arguments, **options)

        return cut_off

    for name in whole:
        monkeypatch.setattr(s3, name, cutting(name))
    while promote(made, "third", root) == 75:
        found = BundleStore(root).alias("champion")
        assert found is not None
        assert found.bundle == version(made, "second")
        cut, calls = cut + 1, 0
    assert cut == 6  # at each of three files, the decision, the manifest, the alias
    BundleStore(root).check(version(made, "third"))


def test_a_damaged_bundle_never_gets_an_alias(made: Path, root: str) -> None:
    store = BundleStore(root)
    store.put(Bundle.load(made / "third"), "{}")
    store._files.pipe_file(f"{store._path}/bundles/{version(made, 'third')}/model.onnx", b"another")
    assert promote(made, "third", root) == 2
    assert store.alias("champion") is None


def test_a_bucket_that_is_not_there_is_a_mistake_of_the_user_s(made: Path, server: str) -> None:
    assert promote(made, "third", "s3://nobody/reviews") == 2


def test_a_server_that_does_not_answer_is_tried_again_later(
    made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        assert promote(made, "third", "s3://bundles/reviews") == 75
    assert "Could not connect" in caplog.text
