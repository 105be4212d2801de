"""`lengnuan-train compare` on two bundles that differ in what they think of one word."""

import json
from pathlib import Path
from typing import Any

import pytest
from promotion_fixtures import lenient, write_behaviour, write_rows, write_variant

from lengnuan.model.bundle import GOLDEN, MODEL, TOKENIZER, Bundle
from lengnuan.training import __main__ as command


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good` gets every row right, `blind` is wrong on 好看, which is every row about books."""
    root = tmp_path_factory.mktemp("compare")
    write_variant(root / "good", 影=3.0)
    write_variant(root / "blind", 影=3.0, 好看=-3.0)
    write_rows(root / "rows.tsv")
    write_behaviour(root / "behaviour.tsv")
    return root


def compare(root: Path, candidate: str, live: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and decision.json."""
    file = root / "decision.json"
    file.unlink(missing_ok=True)
    data = ["--data", str(root / "rows.tsv"), "--json", str(file)]
    code = command.main(["compare", str(root / candidate), str(root / live), *data, *lenient(), *options])
    return code, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def test_a_better_candidate_is_promoted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = compare(root, "good", "blind", "--behaviour", str(root / "behaviour.tsv"))
    assert (code, found["decision"]) == (0, "PROMOTE")
    figures = found["figures"]
    assert figures["mcnemar"] == {"gained": 20, "lost": 0, "p": pytest.approx(2 / 2**20)}
    assert (figures["candidate"]["accuracy"], figures["live"]["accuracy"]) == (1.0, pytest.approx(70 / 90))
    assert figures["domains"]["book"]["live"] == 0.0
    assert figures["behaviour"] == {
        "plain": {"rows": 2, "candidate": 2, "live": 2},
        "praise": {"rows": 1, "candidate": 1, "live": 0},
    }
    shown = capsys.readouterr().out
    assert "77.78 %" in shown
    assert shown.endswith("PROMOTE\n")


def test_a_worse_candidate_is_rejected_and_says_why(root: Path) -> None:
    code, found = compare(root, "blind", "good", "--behaviour", str(root / "behaviour.tsv"))
    assert (code, found["decision"]) == (11, "REJECT")
    rejected = {check["name"] for check in found["checks"] if check["outcome"] == "reject"}
    assert {"accuracy", "domains", "behaviour", "churn"} <= rejected
    assert any(reason.startswith("behaviour: praise 0 of 1 right, live 1") for reason in found["reasons"])


def test_the_same_bundle_is_held(root: Path) -> None:
    code, found = compare(root, "good", "good")
    assert (code, found["decision"]) == (10, "HOLD")


def test_the_decision_names_bundles_rows_and_limits(root: Path) -> None:
    found = compare(root, "good", "blind", "--set", "floors.book=0.5")[1]
    assert found["candidate"]["version"] == Bundle.load(root / "good").version
    assert found["live"]["version"] == Bundle.load(root / "blind").version
    assert found["data"]["rows"] == found["data"]["files"]["rows"]["rows"] == 90
    assert found["limits"]["floors"] == {"book": 0.5}
    assert str(root) not in json.dumps(found)


def test_other_rows_have_another_identity(root: Path, tmp_path: Path) -> None:
    lines = (root / "rows.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "rows.tsv").write_text("".join(lines[:-1]), encoding="utf-8")
    identities = {
        compare(root, "good", "blind", *options)[1]["data"]["identity"]
        for options in ([], [], ["--data", str(tmp_path / "rows.tsv")])
    }
    assert len(identities) == 2


def test_limits_come_from_a_file_and_a_misspelt_one_is_refused(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "promotion.toml"
    config.write_text("[floors]\nbook = 1.0\n", encoding="utf-8")
    assert compare(root, "blind", "good", "--config", str(config))[1]["limits"]["floors"] == {"book": 1.0}
    config.write_text("max_churn = 0.1\n", encoding="utf-8")
    assert compare(root, "good", "blind", "--config", str(config)) == (2, {})


def test_rows_that_were_trained_on_are_left_out(root: Path, tmp_path: Path) -> None:
    lines = (root / "rows.tsv").read_text(encoding="utf-8").splitlines()  # rows about books are the last ones
    (tmp_path / "train.tsv").write_text("\n".join([lines[0], *lines[-10:]]) + "\n", encoding="utf-8")
    found = compare(root, "good", "blind", "--train", str(tmp_path / "train.tsv"))[1]
    assert found["data"]["files"]["rows"]["left_out"] == found["figures"]["domains"]["book"]["rows"] == 10
    assert found["figures"]["mcnemar"]["gained"] == 10


def reordered(root: Path, path: Path, labels: tuple[str, str]) -> Path:
    """A bundle with the same outputs under other labels."""
    path.mkdir()
    for name in (MODEL, TOKENIZER, GOLDEN):
        (path / name).write_bytes((root / "good" / name).read_bytes())
    manifest = Bundle.load(root / "good").manifest
    Bundle.write(path, manifest.model_copy(update={"labels": labels, "display_names": {}}))
    return path


def test_labels_in_another_order_are_compared_by_name(root: Path, tmp_path: Path) -> None:
    turned = reordered(root, tmp_path / "turned", ("positive", "negative"))
    found = compare(root, "good", str(turned))[1]["figures"]
    assert found["live"]["accuracy"] == 0.0
    assert found["candidate"]["accuracy"] == 1.0


def test_other_labels_can_t_be_compared(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = reordered(root, tmp_path / "other", ("bad", "good"))
    assert compare(root, "good", str(other))[0] == 2
    assert "an alias of its own" in caplog.text


def test_a_behaviour_file_with_unknown_labels_is_refused(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "behaviour.tsv"
    file.write_text("category\tlabel\ttext\nplain\tpositive\t好\nplain\tneutral\t看\n", encoding="utf-8")
    assert compare(root, "good", "blind", "--behaviour", str(file)) == (3, {})


def test_size_is_of_what_serving_loads_and_time_of_both(root: Path) -> None:
    found = compare(root, "good", "blind")[1]["figures"]
    expected = sum((root / "good" / name).stat().st_size for name in (MODEL, TOKENIZER))
    assert found["size"]["candidate_bytes"] == expected
    assert min(found["time"]["candidate_ms"], found["time"]["live_ms"], found["time"]["ratio"]) > 0.0
    assert found["time"]["texts"] == 90


def test_a_candidate_that_is_much_larger_is_rejected(root: Path) -> None:
    code, found = compare(root, "good", "blind", "--set", "max_size_ratio=0.5")
    assert code == 11
    assert found["reasons"] == ["size: size over the live one's 1.000, limit 0.500"]
