"""Labelled files in S3, on a real S3 server: read as those in a folder are, and refused as clearly."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import moto.settings
import pytest
from promotion_fixtures import lenient, write_rows, write_variant
from s3_server import put
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.training import __main__ as command

pytestmark = pytest.mark.integration


@pytest.fixture
def root(server: str, request: pytest.FixtureRequest) -> str:
    """A folder of the test's own."""
    return f"{server}/{request.node.name}"


def train(config: Path, data: str, run: Path, *more: str) -> int:
    return command.main(["run", "--config", str(config), "--data", data, "--output", str(run), *more])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    return tmp_path / "small.toml"


def test_a_run_on_s3_is_the_run_on_the_same_files_here_and_refuses_rows_that_changed(
    root: str, tmp_path: Path, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(f"{root}/train.tsv", write_tsv(tmp_path / "train.tsv", sentences(400)))
    assert train(config, str(tmp_path), tmp_path / "here") == 0
    assert train(config, root, tmp_path / "there") == 0
    for name in ("data.json", "best.safetensors", "tokenizer.json"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    weights = (tmp_path / "there" / "best.safetensors").stat()
    assert train(config, root, tmp_path / "there") == 0, "the same command finds all of it done"
    put(f"{root}/train.tsv", write_tsv(tmp_path / "train.tsv", sentences(401)))
    assert train(config, root, tmp_path / "there") == 2
    assert "a run on other labels or rows" in caplog.text
    assert (tmp_path / "there" / "best.safetensors").stat() == weights


def test_the_root_may_stand_in_the_config_and_a_dry_run_reads_it(root: str, tmp_path: Path, config: Path) -> None:
    put(f"{root}/train.tsv", write_tsv(tmp_path / "train.tsv", sentences(100)))
    run = ["run", "--config", str(config), "--set", f"data.root={root}", "--output", str(tmp_path / "run"), "--dry-run"]
    assert command.main(run) == 0


def test_data_check_and_split_say_the_same_of_an_object_and_of_a_file(root: str, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "rows.tsv", sentences(300))
    put(f"{root}/rows.tsv", file)
    found = []
    for place, where in (("here", str(file)), ("there", f"{root}/rows.tsv")):
        json_file = tmp_path / f"{place}.json"
        command.main(["data", "check", where, f"test={where}", "--json", str(json_file)])
        facts = json.loads(json_file.read_text(encoding="utf-8"))
        assert [Path(file.pop("path")).name for file in facts["files"]] == ["rows.tsv", "rows.tsv"]
        assert command.main(["data", "split", where, "--output", str(tmp_path / place)]) == 0
        found.append((facts, (tmp_path / place / "test.tsv").read_bytes()))
    assert found[0] == found[1]


def test_frozen_rows_may_be_in_s3(root: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "bundle", 影=3.0)
    write_rows(tmp_path / "rows.tsv")
    put(f"{root}/frozen.tsv", tmp_path / "rows.tsv")
    options = ["--store", str(tmp_path / "store"), "--data", f"{root}/frozen.tsv", *lenient()]
    assert command.main(["promote", str(tmp_path / "bundle"), *options]) == 0
    assert (tmp_path / "store" / "aliases" / "champion.json").exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("s3://nobody-has-this/data", "s3://nobody-has-this/data/train.tsv: The specified bucket does not exist"),
        ("s3://bundles/empty", "s3://bundles/empty/train.tsv: The specified key does not exist"),
        ("s3://bundles/a/../../b", "without .."),
        ("s3://two words/data", "Invalid bucket name"),
        ("s3://", "write s3://bucket/key"),
    ],
)
def test_what_is_not_there_is_a_mistake_of_the_user_s(
    server: str, tmp_path: Path, config: Path, caplog: pytest.LogCaptureFixture, where: str, said: str
) -> None:
    assert train(config, where, tmp_path / "run") == 2
    assert said in caplog.text
    assert not (tmp_path / "run").exists()


def test_no_key_is_said_with_the_variables_to_set(
    server: str, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert train(config, server, tmp_path / "run") == 2
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caplog.text


def test_a_key_that_may_not_read_is_said_so(
    server: str, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # it then looks at keys, and knows none
    assert train(config, server, tmp_path / "run") == 2
    assert "what does the key in AWS_ACCESS_KEY_ID allow there?" in caplog.text


def test_without_s3fs_it_says_what_to_install(config: Path) -> None:
    words = ["run", "--config", str(config), "--data", "s3://bundles/reviews", "--output", str(config.parent / "run")]
    without = "import sys; sys.modules['s3fs'] = None; from lengnuan.training import __main__ as command"
    program = f"{without}; sys.exit(command.main({words}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "lengnuan[s3]"' in done.stderr


def test_a_server_that_does_not_answer_is_tried_again_later(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        assert train(config, "s3://bundles/reviews", tmp_path / "run") == 75
    assert "Could not connect" in caplog.text
