"""`data check`: facts, limits and exit codes, on files that the tests write."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_runs import sentences, write_tsv

from lengnuan.model.bundle import DEFAULT_BUNDLE, TOKENIZER
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.check import Checked, Ruler, check_files
from lengnuan.training.check_report import check_report
from lengnuan.training.commands import run
from lengnuan.training.config import DataConfig, GateConfig
from lengnuan.training.data_options import named_split
from lengnuan.training.errors import DataRefused

Check = Callable[..., Checked]
# Letters that no two texts share in a row, so that nothing here is near anything by chance.
UNIQUE = [chr(0x4E00 + 40 * number) for number in range(400)]


def plain_rows(count: int) -> list[tuple[str, int]]:
    return [(f"{UNIQUE[number]}和{UNIQUE[-number - 1]}{number}", number % 2) for number in range(count)]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def do(
        files: dict[str, list[tuple[str, int]] | str | bytes], ruler: Ruler | None = None, **limits: object
    ) -> Checked:
        named = []
        for name, content in files.items():
            if isinstance(content, list):
                write_tsv(tmp_path / name, content)
            else:
                (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
            named.append((named_split(name)[0], tmp_path / name))
        gate = GateConfig.model_validate(limits)
        return check_files(named, DataConfig(), gate, ruler or Ruler(None, 30), {})

    return do


def shares(checked: Checked) -> dict[str, float]:
    return {found.concern: found.share for found in checked.judged}


@pytest.mark.parametrize(
    ("argument", "split", "file"),
    [
        ("data/train.tsv.gz", "train", "data/train.tsv.gz"),
        ("valid.csv", "dev", "valid.csv"),
        ("Validation.jsonl", "dev", "Validation.jsonl"),
        ("test=reviews.tsv", "test", "reviews.tsv"),
        ("reviews.tsv", "reviews", "reviews.tsv"),
        ("a=b.tsv", "a=b", "a=b.tsv"),
    ],
)
def test_a_split_is_named_by_the_file_or_by_hand(argument: str, split: str, file: str) -> None:
    assert named_split(argument) == (split, Path(file))


def test_clean_files_pass(check: Check) -> None:
    rows = plain_rows(300)
    checked = check({"train.tsv": rows[:200], "test.tsv": rows[200:]})
    checked.refuse()
    assert set(shares(checked).values()) == {0.0}
    assert check_report(checked).endswith("FIT to train on\n")


# Rows and encodings


def test_every_line_is_accounted_for(check: Check) -> None:
    content = "label\ttext\n1\t好\n\n0\t差\n缺制表符\n1\t \n"
    (found,) = check({"train.tsv": content}).facts["files"]
    assert (found["lines"], found["header"], found["accepted"], found["blank"], found["rejected"]) == (6, 1, 2, 1, 2)
    assert [line for line, _ in found["first_rejected"]] == [5, 6]


def test_too_many_rejected_lines_are_a_problem(check: Check) -> None:
    checked = check({"train.tsv": "label\ttext\n1\t好\n0\t差\n缺制表符\n"})
    with pytest.raises(DataRefused, match=r"33\.33% of the lines were rejected"):
        checked.refuse()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030"])
def test_the_encoding_is_reported_and_changes_nothing(check: Check, encoding: str) -> None:
    content = "".join(f"{label}\t{text}\n" for text, label in plain_rows(100))
    facts = check({"train.tsv": ("label\ttext\n" + content).encode(encoding)}).facts
    assert facts["files"][0]["encoding"] == encoding
    assert facts["files"][0]["accepted"] == 100


def test_characters_lost_before_are_counted(check: Check) -> None:
    checked = check({"train.tsv": "label\ttext\n1\t好\ufffd\n0\t差\n"})
    assert checked.facts["lengths"]["train"]["lost_characters"] == 1
    assert "1 rows hold U+FFFD" in check_report(checked)


# Labels


def test_spellings_of_a_label_are_shown_with_their_rows(check: Check) -> None:
    checked = check({"train.tsv": "label\ttext\n1\t一\n1 \t二\n１\t三\n2\t四\n"})
    labels = checked.facts["labels"]
    assert labels["names"] == ["1", "2"]
    assert labels["spellings"]["1"] == {"1": 1, "1 ": 1, "１": 1}
    assert labels["by_split"]["train"] == {"1": 3, "2": 1}
    notes = " / ".join(labels["notes"])
    for expected in ("1 labels have blanks", "1 labels have full-width", "counted from 1", "label '2' has 1 rows"):
        assert expected in notes


@pytest.mark.parametrize(
    ("labels", "message"),
    [(("Pos", "pos", "neg"), "differ by case alone"), (("0", "1", "正面"), "numbers and names")],
)
def test_mixed_names_are_refused_and_still_reported(check: Check, labels: Sequence[str], message: str) -> None:
    checked = check({"train.tsv": "label\ttext\n" + "".join(f"{label}\t{label}好\n" for label in labels)})
    assert message in checked.problems[0]
    assert set(checked.facts["labels"]["by_split"]["train"]) == set(labels)
    with pytest.raises(DataRefused, match=message):
        checked.refuse()


# Lengths


def test_lengths_and_the_truncated_share_in_characters(check: Check) -> None:
    facts = check({"train.tsv": [("一" * n, n % 2) for n in range(1, 101)]}, Ruler(None, 90)).facts["lengths"]["train"]
    assert facts["characters"] == {"p50": 51, "p95": 96, "p99": 100, "max": 100}
    assert (facts["unit"], facts["truncated_share"]) == ("characters", 0.1)


def test_lengths_and_unknown_tokens_of_a_tokenizer(check: Check) -> None:
    ruler = Ruler(Tokenizer(["好", "差"], [-1.0, -1.0]), 4)
    facts = check({"train.tsv": [("好好差", 1), ("差好好好差", 0), ("好龘", 1), ("差", 0)]}, ruler).facts
    found = facts["lengths"]["train"]
    assert (found["unit"], found["truncated_share"]) == ("tokens", 0.25)
    assert found["tokens"]["max"] == 5
    assert (found["unknown_token_share"], found["rows_with_unknown_tokens"]) == (0.75 / 4, 1)


# Limits


def test_leaks_past_the_limit_are_refused(check: Check) -> None:
    rows = plain_rows(200)
    files = {"train.tsv": rows[:150], "dev.tsv": rows[150:], "test.tsv": [*rows[150:], *rows[:5]]}
    checked = check(files)
    assert [found.where for found in checked.judged if found.concern == "leaked"] == ["test in dev"]
    assert shares(checked)["leaked"] == 50 / 55
    with pytest.raises(DataRefused, match=r"leaked: 90\.91% .*PAST the limit of 2\.00%"):
        checked.refuse()
    assert check_report(checked).endswith("REFUSED: training would not start\n")


def test_conflicts_and_duplicates_are_told_apart(check: Check) -> None:
    rows = [*plain_rows(94), ("一般", 0), ("一般", 1), ("好好", 1), ("好好", 1), ("好好！", 1), ("差", 0)]
    checked = check({"train.tsv": rows})
    assert shares(checked)["conflicting"] == 0.02
    assert shares(checked)["duplicate"] == 0.02


def test_a_shortcut_is_refused_unless_acknowledged(check: Check) -> None:
    rows = [(text + ("[泪]", "[哈哈]")[label], label) for text, label in plain_rows(400)]
    with pytest.raises(DataRefused, match=r"shortcut: 100\.00%"):
        check({"train.tsv": rows}).refuse()
    check({"train.tsv": rows}, acknowledged=("shortcut",)).refuse()


def test_label_shift_is_judged_where_there_are_rows_enough(check: Check) -> None:
    rows = plain_rows(400)
    negative = [row for row in rows[200:] if not row[1]]
    checked = check({"train.tsv": rows[:200], "test.tsv": negative})
    assert shares(checked)["label_shift"] == 0.5
    few = check({"train.tsv": rows[:200], "test.tsv": negative[:20]})
    assert "label_shift" not in shares(few)
    assert "too few rows to tell" in check_report(few)


def test_files_of_one_split_are_joined(check: Check) -> None:
    rows = plain_rows(100)
    more = "label,text\n0,另外\n1,再来\n"
    facts = check({"train.tsv": rows[:50], "train.csv": more, "test.tsv": rows[50:]}).facts
    assert facts["repeats"]["train"]["rows"] == 52
    assert len(facts["files"]) == 3


# The command


def test_the_command_reports_writes_json_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = plain_rows(120)
    train, test = write_tsv(tmp_path / "train.tsv", rows), write_tsv(tmp_path / "test.tsv", rows[:20])
    arguments = ["data", "check", str(train), str(test), "--no-bundle", "--max-tokens", "50"]
    assert run([*arguments, "--json", str(tmp_path / "facts.json")]) == 3
    assert "test in train: 20 word for word" in capsys.readouterr().out
    facts = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert facts["leaks"][0]["verbatim"] == 20
    assert [g["concern"] for g in facts["gate"] if g["past"]] == ["leaked"]
    assert run([*arguments[:3], "--no-bundle", "--max-tokens", "50"]) == 0


def test_limits_are_taken_from_a_config_and_changed_by_hand(tmp_path: Path) -> None:
    rows = plain_rows(120)
    write_tsv(tmp_path / "train.tsv", rows)
    other = write_tsv(tmp_path / "other.tsv", rows[:20])
    arguments = ["data", "check", str(tmp_path / "train.tsv"), f"test={other}", "--no-bundle", "--max-tokens", "50"]
    config = tmp_path / "mine.toml"
    config.write_text('name = "mine"\n[data]\n[gate]\nacknowledged = ["leaked"]\n', encoding="utf-8")
    assert run(arguments) == 3
    assert run([*arguments, "--config", str(config)]) == 0
    assert run([*arguments, "--limit", "duplicate=0.5"]) == 3
    write_tsv(tmp_path / "other.tsv", [*rows[:1], *((f"{text}新", label) for text, label in rows[:9])])
    assert run(arguments) == 3
    assert run([*arguments, "--limit", "leaked=0.1"]) == 0


@pytest.mark.parametrize("limit", ["leaked=1", "leaked=many", "leak=0.5", "leaked"])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: str) -> None:
    file = write_tsv(tmp_path / "train.tsv", plain_rows(20))
    assert run(["data", "check", str(file), "--no-bundle", "--max-tokens", "50", "--limit", limit]) == 2


def test_characters_need_a_limit(tmp_path: Path) -> None:
    assert run(["data", "check", str(write_tsv(tmp_path / "train.tsv", plain_rows(20))), "--no-bundle"]) == 2


def test_the_embedded_bundle_measures_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (DEFAULT_BUNDLE / TOKENIZER).exists()
    assert run(["data", "check", str(write_tsv(tmp_path / "train.tsv", sentences(20)))]) == 0
    assert "longer than 256 tokens" in capsys.readouterr().out
