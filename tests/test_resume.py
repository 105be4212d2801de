"""`lengnuan-classify --resume`: the same file as without an interruption, or a refusal."""

from pathlib import Path

import pytest
from classify_fixtures import review_file
from tiny_bundle import write_tiny_bundle

from lengnuan.service import classify
from lengnuan.service.classify import main


@pytest.fixture(autouse=True)
def small_chunks(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_BUNDLE", str(tiny_bundle))
    monkeypatch.setattr(classify, "CHUNK_ROWS", 4)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The answers to `review_file`: seven whole chunks and two rows."""
    output = tmp_path / "answers.jsonl"
    main(["--input", str(review_file(tmp_path)), "--output", str(output)])
    return output


@pytest.mark.parametrize("cut_at", [0.0, 0.02, 0.3, 0.5, 0.77, 0.999, 1.0])
def test_a_resumed_run_writes_the_same_file(tmp_path: Path, cut_at: float) -> None:
    argv = ["--input", str(review_file(tmp_path)), "--output", str(tmp_path / "answers.jsonl"), "--resume"]
    assert main(argv) == 1
    whole = (tmp_path / "answers.jsonl").read_bytes()
    (tmp_path / "answers.jsonl").write_bytes(whole[: int(len(whole) * cut_at)])
    assert main(argv) == 1
    assert (tmp_path / "answers.jsonl").read_bytes() == whole


def test_bad_rows_of_the_first_run_still_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    argv = ["--input", str(review_file(tmp_path)), "--output", str(tmp_path / "answers.jsonl"), "--resume"]
    main(argv)
    caplog.clear()
    assert main(argv) == 1
    assert "2 of 30 rows have an error in place of an answer: line 9, 13" in caplog.text


def check_refused(output: Path, caplog: pytest.LogCaptureFixture, message: str, *argv: str) -> None:
    """The second run ends as a usage error and leaves the output as it is."""
    before = output.read_bytes()
    assert main([*argv, "--output", str(output), "--resume"]) == 2
    assert f"{output}: {message}" in caplog.text
    assert output.read_bytes() == before


def test_the_output_of_a_longer_input_is_refused(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    (finished.parent / "other.txt").write_text("好\n" * 3, encoding="utf-8")
    check_refused(finished, caplog, "its rows 25 to 28", "--input", str(finished.parent / "other.txt"))


def test_the_output_of_the_same_rows_in_another_order_is_refused(
    finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reviews = review_file(finished.parent)
    head, *rows = reviews.read_text(encoding="utf-8").splitlines()
    reviews.write_text("\n".join([head, *reversed(rows), ""]), encoding="utf-8")
    check_refused(finished, caplog, "its rows 25 to 28", "--input", str(reviews))


def test_the_output_of_another_bundle_is_refused(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = write_tiny_bundle(finished.parent / "strict", abstain_threshold=1.0)
    options = ("--input", str(review_file(finished.parent)), "--bundle", str(bundle))
    check_refused(finished, caplog, "its rows 25 to 28", *options)


@pytest.mark.parametrize("content", ["my notes\n", '{"text": "好"}\n', '{"index": 5, "line": 5}\n', "[]\n"])
def test_a_file_that_is_no_output_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text(content, encoding="utf-8")
    check_refused(output, caplog, "line 1 is not an answer of this command", "--input", str(review_file(tmp_path)))
