import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest
from classify_fixtures import items, review_file
from tiny_bundle import LABELS, MAX_TOKENS, write_tiny_bundle

from lengnuan.service import offline
from lengnuan.service.classify import main
from lengnuan.service.schemas import Classification

COMMAND = [sys.executable, "-m", "lengnuan.service.classify"]
PLACE = ["index", "line"]
FIELDS = ["label", "confidence", "probs", "num_classes", "truncated", "tokens", "tokens_used", "abstained"]


@pytest.fixture(autouse=True)
def use_the_tiny_bundle(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_BUNDLE", str(tiny_bundle))


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_texts_given_as_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["很好", "太差!"]) == 0
    found = items(capsys.readouterr().out)
    assert [list(item) for item in found] == [PLACE + FIELDS] * 2
    assert [(item["index"], item["line"], item["label"]) for item in found] == [(0, 1, "positive"), (1, 2, "negative")]
    assert found[0]["confidence"] == max(found[0]["probs"])
    assert sum(found[0]["probs"]) == pytest.approx(1.0)
    assert found[0]["num_classes"] == len(LABELS)


def test_an_answer_has_the_fields_of_one_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    main(["好"])
    (found,) = items(capsys.readouterr().out)
    always = {name for name, field in Classification.model_fields.items() if field.is_required()}
    assert found.keys() - {"line"} == always


def test_a_long_text_is_marked_as_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["好 " * (MAX_TOKENS + 1), "好 " * MAX_TOKENS]) == 0
    found = items(capsys.readouterr().out)
    assert [(i["truncated"], i["tokens"], i["tokens_used"]) for i in found] == [(True, 9, 8), (False, 8, 8)]


def test_an_uncertain_answer_keeps_its_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_tiny_bundle(tmp_path / "strict", abstain_threshold=1.0)
    assert main(["--bundle", str(bundle), "好"]) == 0
    (found,) = items(capsys.readouterr().out)
    assert (found["label"], found["abstained"]) == ("positive", True)


@pytest.mark.parametrize("argv", [[], ["-"]])
def test_standard_input_is_one_text_a_line(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "好\n\n".encode() + b"\xff\n" + "差\t差".encode())
    assert main(argv) == 1
    found = items(capsys.readouterr().out)
    assert [item.get("label") for item in found] == ["positive", None, None, "negative"]
    assert [item["line"] for item in found] == [1, 2, 3, 4]
    assert [item["error"]["code"] for item in found[1:3]] == ["empty_text", "invalid_row"]


def test_nothing_in_gives_nothing_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    type_in(monkeypatch, b"")
    assert main([]) == 0
    assert capsys.readouterr().out == ""


def test_a_file_keeps_its_order_and_its_bad_rows_in_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "answers.jsonl"
    assert main(["--input", str(review_file(tmp_path)), "--output", str(output)]) == 1
    found = items(output.read_text(encoding="utf-8"))
    assert [item["index"] for item in found] == list(range(30))
    assert [item["line"] for item in found] == list(range(2, 32))
    assert [item["index"] for item in found if "error" in item] == [7, 11]
    assert all(item["label"] == LABELS[1 - item["index"] % 2] for item in found if "label" in item)
    assert "2 of 30 rows have an error in place of an answer: line 9, 13" in caplog.text


def test_the_answer_does_not_depend_on_the_size_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(review_file(tmp_path))
    outputs = []
    for batch_tokens in ("1", "40", "4096"):
        main(["--input", file, "--batch-tokens", batch_tokens])
        outputs.append(items(capsys.readouterr().out))
    for one, other in zip(outputs[0], outputs[2], strict=True):
        assert one.get("probs", 0) == pytest.approx(other.get("probs", 0), abs=1e-6)
    assert len(outputs[1]) == 30


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        pytest.param("a.tsv", "评论\t标签\n好\t1\n", ["--text-column", "评论"], id="tsv"),
        pytest.param("a.tsv", "1\t好\n", ["--columns", "label, text"], id="tsv without header"),
        pytest.param("a.csv", '"text",label\n"好\n看",1\n', [], id="csv"),
        pytest.param("a.jsonl", '{"text": "好"}\n', [], id="jsonl"),
        pytest.param("a.txt", "好\n", [], id="txt"),
        pytest.param("a.log", "好\n", ["--format", "txt"], id="a format by option"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_file_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, options: list[str], zipped: bool
) -> None:
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(content.encode()) if zipped else content.encode())
    assert main(["--input", str(file), *options]) == 0
    (found,) = items(capsys.readouterr().out)
    assert found["label"] == "positive"


def test_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["好", None, "差"]}), tmp_path / "a.parquet")
    assert main(["--input", str(tmp_path / "a.parquet")]) == 1
    assert [item.get("label") for item in items(capsys.readouterr().out)] == ["positive", None, "negative"]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        pytest.param("{", "invalid_row", id="no json"),
        pytest.param('{"label": 1}', "invalid_row", id="no text"),
        pytest.param('{"text": 5}', "invalid_row", id="a number"),
        pytest.param('{"text": null}', "invalid_row", id="null"),
        pytest.param('{"text": "\\ud83d"}', "invalid_unicode", id="half a pair"),
        pytest.param('{"text": " \\u200b"}', "empty_text", id="nothing visible"),
        pytest.param("", "empty_text", id="blank"),
    ],
)
def test_a_bad_row_holds_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, code: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "好"}}\n{row}\n{{"text": "差"}}\n', encoding="utf-8")
    assert main(["--input", str(tmp_path / "a.jsonl")]) == 1
    first, bad, last = items(capsys.readouterr().out)
    assert (first["label"], last["label"]) == ("positive", "negative")
    assert (bad["index"], bad["line"], bad["error"]["code"]) == (1, 2, code)
    assert bad["error"]["message"]


def test_a_file_of_bad_rows_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\n\n", encoding="utf-8")
    assert main(["--input", str(tmp_path / "a.txt")]) == 1
    assert len(items(capsys.readouterr().out)) == 2


def test_without_resume_the_output_is_written_anew(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text("old\n" * 100, encoding="utf-8")
    main(["--input", str(review_file(tmp_path)), "--output", str(output)])
    assert len(items(output.read_text(encoding="utf-8"))) == 30


def test_what_can_not_be_read_overwrites_nothing(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text("old\n", encoding="utf-8")
    assert main(["--input", str(tmp_path / "missing.tsv"), "--output", str(output)]) == 2
    assert output.read_text(encoding="utf-8") == "old\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--input", "{tmp}/missing.tsv"], "missing.tsv", id="no such file"),
        pytest.param(["--input", "{tmp}"], "can't tell the format", id="a folder"),
        pytest.param(["--input", "{tmp}/a.tsv", "--text-column", "评论"], "no column '评论'", id="no such column"),
        pytest.param(["--input", "{tmp}/a.tsv", "--output", "{tmp}/no/a.jsonl"], "no/a.jsonl", id="no such folder"),
        pytest.param(["--input", "{tmp}/a.tsv", "--output", "{tmp}/a.tsv"], "overwrite --input", id="onto itself"),
        pytest.param(["--input", "{tmp}/a.tsv", "好"], "not both", id="texts and a file"),
        pytest.param(["--resume", "好"], "--resume needs --input and --output", id="resume of arguments"),
    ],
)
def test_usage_errors_are_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, argv: list[str], message: str
) -> None:
    (tmp_path / "a.tsv").write_text("text\n好\n", encoding="utf-8")
    assert main([argument.replace("{tmp}", str(tmp_path)) for argument in argv]) == 2
    (record,) = caplog.records
    assert message in record.getMessage()
    assert record.exc_info is None
    assert (tmp_path / "a.tsv").read_text(encoding="utf-8") == "text\n好\n"


@pytest.mark.parametrize(
    "argv", [["--threads", "-1"], ["--batch-tokens", "0"], ["--device", "tpu"], ["--precision", "int8"], ["--what"]]
)
def test_options_out_of_range(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2


def test_a_damaged_bundle_is_refused(bundle_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (bundle_copy / "model.onnx").open("ab") as model:
        model.write(b"\0")
    assert main(["--bundle", str(bundle_copy), "好"]) == 3
    assert "model.onnx" in caplog.text


def test_a_precision_that_can_not_be_had_is_an_error(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--bundle", str(tiny_bundle), "--precision", "bfloat16", "好"]) == 3
    assert "does not state what it does to the answers" in caplog.text


def test_no_bundle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--bundle", str(tmp_path), "好"]) == 3
    assert f"{tmp_path}: no manifest.json" in caplog.text


def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(offline, "score", interrupt)
    assert main(["--input", str(review_file(tmp_path)), "--output", str(tmp_path / "answers.jsonl")]) == 130
    assert "--resume goes on from here" in caplog.text


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        self.seek(0)
        return self.read()


def test_on_a_terminal_texts_are_answered_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal("utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["很好", " "]) == 1
    first, second = screen.shown().splitlines()
    assert first.startswith("positive 0.9")
    assert first.endswith(" 很好")
    assert second.startswith("empty_text: ")


def test_a_terminal_that_lacks_a_character_shows_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal("gbk")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["好😭"]) == 0
    assert screen.shown().endswith(" 好\\U0001f62d\n")


def test_json_is_utf8_whatever_the_locale_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "gbk")
    (tmp_path / "a.jsonl").write_text('{"text": "好"}\n', encoding="utf-8")
    options = ["--input", str(tmp_path / "a.jsonl"), "--text-column", "评论😭"]
    done = subprocess.run([*COMMAND, *options], capture_output=True, check=False)
    (found,) = items(done.stdout.decode("utf-8"))
    assert found["error"]["message"].startswith("评论😭")


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("好\n" * 5000, encoding="utf-8")
    with subprocess.Popen([*COMMAND, "--input", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"index": 0')
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")
