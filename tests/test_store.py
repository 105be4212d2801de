"""Reading a bundle store: aliases lead to the bundle they name, or say what is wrong."""

import json
from pathlib import Path

import pytest
from bundle_stores import point, put
from service_fixtures import write_fake_bundle

from lengnuan.model.bundle import Bundle
from lengnuan.model.errors import BundleRefused
from lengnuan.model.store import alias_target, bundle_folder, load_bundle, store_alias


def refusal(root: Path, alias: str = "champion") -> str:
    with pytest.raises(BundleRefused) as error:
        alias_target(root, alias)
    return str(error.value)


def test_an_alias_leads_to_the_bundle_that_it_names_now(tmp_path: Path) -> None:
    first = put(tmp_path, write_fake_bundle(tmp_path / "made"))
    point(tmp_path, "champion", first)
    assert Bundle.load(alias_target(tmp_path, "champion")).version == first
    second = put(tmp_path, write_fake_bundle(tmp_path / "again", name="again"))
    point(tmp_path, "champion", second)
    assert Bundle.load(alias_target(tmp_path, "champion")).version == second != first


def test_an_unknown_alias_is_refused_with_those_there_are(tmp_path: Path) -> None:
    point(tmp_path, "challenger", put(tmp_path, write_fake_bundle(tmp_path / "made")))
    assert "no alias champion" in refusal(tmp_path)
    assert "it has challenger" in refusal(tmp_path)


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    assert "is no store" in refusal(tmp_path)


@pytest.mark.parametrize("alias", ["", "../champion", "a/b", "Champion", "a.b", "a\n", "冠军", "a" * 65])
def test_a_name_that_no_alias_has_is_refused(tmp_path: Path, alias: str) -> None:
    point(tmp_path, "champion", put(tmp_path, write_fake_bundle(tmp_path / "made")))
    assert "a-z, 0-9, _ and -" in refusal(tmp_path, alias)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "not a readable alias"),
        ("[]", "format None"),
        ('{"format": 2, "bundle": "0123456789ab"}', "format 2"),
        ('{"format": 1}', "no version"),
        ('{"format": 1, "bundle": 1}', "no version"),
        ('{"format": 1, "bundle": "../../elsewh"}', "no version"),
        ('{"format": 1, "bundle": "0123456789ab"}', "it is not there"),
        ("[" * 100_000, "not a readable alias"),
    ],
)
def test_a_bad_alias_file_is_refused(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "aliases").mkdir()
    (tmp_path / "aliases" / "champion.json").write_text(content, encoding="utf-8")
    assert part in refusal(tmp_path)


def test_a_link_out_of_the_store_is_refused(tmp_path: Path) -> None:
    version = Bundle.load(write_fake_bundle(tmp_path / "outside")).version
    (tmp_path / "store" / "bundles").mkdir(parents=True)
    (tmp_path / "store" / "bundles" / version).symlink_to(tmp_path / "outside")
    point(tmp_path / "store", "champion", version)
    assert "leads out of the store" in refusal(tmp_path / "store")


def test_where_a_folder_is_asked_for_an_alias_may_stand(tmp_path: Path) -> None:
    version = put(tmp_path, write_fake_bundle(tmp_path / "made"))
    point(tmp_path, "champion", version)
    assert bundle_folder(Path(f"{tmp_path}@champion")) == tmp_path / "bundles" / version
    assert bundle_folder(tmp_path / "made") == tmp_path / "made"


def test_a_folder_with_an_at_in_its_name_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "reviews@home"
    assert store_alias(folder) == (tmp_path / "reviews", "home")
    folder.mkdir()
    assert store_alias(folder) is None


def test_a_bundle_that_was_changed_in_the_store_is_refused(tmp_path: Path) -> None:
    version = put(tmp_path, write_fake_bundle(tmp_path / "made"))
    point(tmp_path, "champion", version)
    assert load_bundle(Path(f"{tmp_path}@champion")).version == version
    changed = write_fake_bundle(tmp_path / "bundles" / version, name="changed")
    with pytest.raises(BundleRefused, match="never change"):
        load_bundle(Path(f"{tmp_path}@champion"))
    assert load_bundle(changed).manifest.name == "changed"


def test_the_other_fields_of_an_alias_do_not_matter(tmp_path: Path) -> None:
    version = put(tmp_path, write_fake_bundle(tmp_path / "made"))
    point(tmp_path, "champion", version)
    file = tmp_path / "aliases" / "champion.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, "note": "好"}), encoding="utf-8")
    assert alias_target(tmp_path, "champion").name == version
