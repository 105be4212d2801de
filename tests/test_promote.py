"""`lengnuan-train promote`, `rollback`, `store` on a folder: whole or not at all, whatever interrupts them."""

import json
import shlex
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from promotion_fixtures import lenient, version, write_behaviour, write_variant

from lengnuan.model.bundle import Bundle
from lengnuan.training import __main__ as command
from lengnuan.training import files
from lengnuan.training.errors import StoreBusy, UsageError
from lengnuan.training.store import Alias, BundleStore
from lengnuan.training.verdict import Limits


def promote(made: Path, name: str, store: Path, *options: str) -> int:
    data = ["--store", str(store), "--data", str(made / "rows.tsv"), *lenient()]
    return command.main(["promote", str(made / name), *data, "--set", "max_negative_flip_share=1", *options])


def alias(store: Path, name: str = "champion") -> Any:
    return json.loads((store / "aliases" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_first_promotion_asks_only_for_floors(made: Path, tmp_path: Path) -> None:
    assert promote(made, "second", tmp_path, "--set", "floor=0.9") == 11
    assert not (tmp_path / "bundles").exists()
    assert promote(made, "second", tmp_path, "--set", "floors.film=0.9") == 0
    found = alias(tmp_path)
    assert (found["format"], found["bundle"], found["history"]) == (1, version(made, "second"), [])


def test_a_better_bundle_takes_the_alias_and_carries_its_decision(made: Path, tmp_path: Path) -> None:
    for name in ("second", "third"):
        assert promote(made, name, tmp_path) == 0
    found = alias(tmp_path)
    assert (found["bundle"], found["history"]) == (version(made, "third"), [version(made, "second")])
    folder = tmp_path / "bundles" / found["bundle"]
    decision = json.loads((folder / "decision.json").read_text(encoding="utf-8"))
    assert (decision["decision"], decision["live"]["version"]) == ("PROMOTE", version(made, "second"))
    assert Bundle.load(folder).version == found["bundle"]


@pytest.mark.parametrize(("name", "code"), [("second", 11), ("third", 0)])
def test_nothing_worse_comes_into_the_store(made: Path, tmp_path: Path, name: str, code: int) -> None:
    assert promote(made, "third", tmp_path) == 0
    before = sorted(tmp_path.rglob("*")), alias(tmp_path)
    assert promote(made, name, tmp_path) == code
    assert (sorted(tmp_path.rglob("*")), alias(tmp_path)) == before


@pytest.mark.parametrize(("name", "code", "decision"), [("alike", 10, "HOLD"), ("second", 11, "REJECT")])
def test_a_scheduler_may_take_any_decision_for_done(
    made: Path, tmp_path: Path, name: str, code: int, decision: str
) -> None:
    write_variant(made / "alike", 影=3.5)
    assert promote(made, "third", tmp_path / "store") == 0
    before = alias(tmp_path / "store")
    assert promote(made, name, tmp_path / "store") == code
    told = ("--decided-is-done", "--json", str(tmp_path / "decision.json"))
    assert promote(made, name, tmp_path / "store", *told) == 0
    assert json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))["decision"] == decision
    assert alias(tmp_path / "store") == before


@pytest.mark.parametrize("rows", ["nowhere.tsv", "empty.tsv"])
def test_what_is_no_decision_fails_for_a_scheduler_too(made: Path, tmp_path: Path, rows: str) -> None:
    (tmp_path / "empty.tsv").write_text("label\ttext\n", encoding="utf-8")
    arguments = ["--store", str(tmp_path / "store"), "--data", str(tmp_path / rows), "--decided-is-done"]
    assert command.main(["promote", str(made / "third"), *arguments]) == 2
    assert not (tmp_path / "store" / "aliases").exists()


def test_rollback_goes_back_a_version_at_a_time(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second", "third"):
        assert promote(made, name, tmp_path) == 0
    for name, left in (("second", ["first"]), ("first", [])):
        assert command.main(["rollback", "--store", str(tmp_path)]) == 0
        assert alias(tmp_path)["bundle"] == version(made, name)
        assert alias(tmp_path)["history"] == [version(made, each) for each in left]
    assert command.main(["rollback", "--store", str(tmp_path)]) == 2
    assert f"champion names {version(made, 'first')} again" in capsys.readouterr().out


def test_rollback_to_a_bundle_that_is_gone_is_refused(made: Path, tmp_path: Path) -> None:
    for name in ("second", "third"):
        promote(made, name, tmp_path)
    (tmp_path / "bundles" / version(made, "second") / "model.onnx").unlink()
    assert command.main(["rollback", "--store", str(tmp_path)]) == 2
    assert alias(tmp_path)["bundle"] == version(made, "third")


class Killed(BaseException):
    """Ends a promotion as SIGKILL would, as far as the store can see."""


def test_killed_at_any_write_the_old_alias_stays_and_the_next_promotion_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert promote(made, "second", tmp_path) == 0
    put, calls = files._put, 0

    def dies(aside: Path, path: Path) -> None:
        nonlocal calls
        if calls == at and tmp_path in path.parents:
            raise Killed
        calls += tmp_path in path.parents
        put(aside, path)

    monkeypatch.setattr(files, "_put", dies)
    killed = 0
    while True:
        at, calls = killed, 0
        try:
            assert promote(made, "third", tmp_path) == 0
            break
        except Killed:
            killed += 1
            assert alias(tmp_path)["bundle"] == version(made, "second")
            assert Bundle.load(tmp_path / "bundles" / version(made, "second"))
    assert killed == 6  # at each of three files, the decision, the manifest, the alias
    assert Bundle.load(tmp_path / "bundles" / alias(tmp_path)["bundle"]).version == version(made, "third")


def test_what_is_live_already_is_left_as_it_is(made: Path, tmp_path: Path) -> None:
    assert promote(made, "third", tmp_path) == 0
    before = (tmp_path / "aliases" / "champion.json").read_bytes()
    assert promote(made, "third", tmp_path) == 0
    assert (tmp_path / "aliases" / "champion.json").read_bytes() == before


def test_a_damaged_bundle_in_the_store_never_gets_an_alias(made: Path, tmp_path: Path) -> None:
    store = BundleStore(str(tmp_path))
    bundle = Bundle.load(made / "third")
    store.put(bundle, "{}")
    (tmp_path / "bundles" / bundle.version / "model.onnx").write_bytes(b"another")
    assert promote(made, "third", tmp_path) == 2
    assert store.alias("champion") is None


def test_of_two_promotions_that_began_alike_the_second_is_refused(made: Path, tmp_path: Path) -> None:
    store = BundleStore(str(tmp_path))
    before = store.point("champion", "0" * 12, None)
    store.point("champion", "1" * 12, before)
    with pytest.raises(StoreBusy, match="changed meanwhile"):
        store.point("champion", "2" * 12, before)
    assert alias(tmp_path)["bundle"] == "1" * 12


def test_of_many_at_once_one_wins_and_no_reader_sees_half_an_alias(tmp_path: Path) -> None:
    store = BundleStore(str(tmp_path))
    before = store.point("champion", "0" * 12, None)
    won: list[str] = []

    def point(number: int) -> None:
        with suppress(StoreBusy):
            won.append(BundleStore(str(tmp_path)).point("champion", f"{number:012x}", before).bundle)

    threads = [threading.Thread(target=point, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    seen = {store.alias("champion") for _ in range(200)}
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert {found.bundle for found in seen if found} <= {"0" * 12, won[0]}
    assert alias(tmp_path)["bundle"] == won[0]


def test_an_alias_remembers_twenty_versions(tmp_path: Path) -> None:
    store, found = BundleStore(str(tmp_path)), None
    for number in range(25):
        found = store.point("champion", f"{number:012x}", found)
    assert found == Alias(f"{24:012x}", tuple(f"{number:012x}" for number in range(23, 3, -1)), found.changed_at)


def test_aliases_do_not_touch_each_other(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert promote(made, "third", tmp_path) == 0
    assert promote(made, "second", tmp_path, "--alias", "challenger") == 0
    (tmp_path / "bundles" / "0123456789ab").mkdir()
    capsys.readouterr()
    assert command.main(["store", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"challenger = {version(made, 'second')} since" in shown
    assert f"champion = {version(made, 'third')} since" in shown
    assert "bundle 0123456789ab: not whole" in shown


def test_a_candidate_and_a_live_one_may_be_aliases(made: Path, tmp_path: Path) -> None:
    promote(made, "second", tmp_path)
    promote(made, "third", tmp_path, "--alias", "challenger")
    data = ["--data", str(made / "rows.tsv"), *lenient()]
    assert command.main(["compare", f"{tmp_path}@challenger", f"{tmp_path}@champion", *data]) == 0
    assert command.main(["promote", f"{tmp_path}@challenger", "--store", str(tmp_path), *data]) == 0
    assert alias(tmp_path)["bundle"] == version(made, "third")
    assert command.main(["compare", f"{tmp_path}@nobody", str(made / "third"), *data]) == 2


@pytest.mark.parametrize("name", ["../champion", "Champion", "a.b", "", "冠军"])
def test_a_name_that_leads_elsewhere_is_no_alias(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a-z, 0-9, _ and -"):
        BundleStore(str(tmp_path)).point(name, "0" * 12, BundleStore(str(tmp_path)).alias(name))


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format": 2, "bundle": "000000000000", "history": []}', '{"format": 1}']
)
def test_a_file_that_is_no_alias_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "aliases").mkdir()
    (tmp_path / "aliases" / "champion.json").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="no alias of a bundle store"):
        BundleStore(str(tmp_path)).alias("champion")


def test_a_store_that_is_neither_folder_nor_s3_is_refused() -> None:
    with pytest.raises(UsageError, match="a folder or s3://bucket/prefix"):
        BundleStore("ftp://host/store")


DOCS = Path(__file__).parents[1] / "docs" / "promotion.md"


def test_the_commands_of_the_page_do_what_it_says(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert promote(made, "second", tmp_path / "STORE") == 0
    shutil.copytree(made / "third", tmp_path / "runs" / "new" / "bundle")
    shutil.copy(made / "rows.tsv", "frozen.tsv")
    write_behaviour(tmp_path / "behaviour.tsv")
    lines = DOCS.read_text(encoding="utf-8").split("```")[1].strip().splitlines()
    bundles = []
    for line in lines:
        program, *arguments = shlex.split(line)
        options = lenient() if arguments[0] in ("compare", "promote") else []
        assert (program, command.main([*arguments, *options])) == ("lengnuan-train", 0), line
        bundles.append(alias(tmp_path / "STORE")["bundle"])
    assert bundles == [version(made, name) for name in ("second", "third", "second", "second")]
    assert (tmp_path / "decision.json").exists()
    assert f"champion = {version(made, 'second')}" in capsys.readouterr().out


def test_the_page_explains_every_limit() -> None:
    text = DOCS.read_text(encoding="utf-8")
    unexplained = {name for name in Limits.model_fields if f"`{name}`" not in text}
    assert unexplained == {"bootstrap_rounds", "timing_rounds"}
