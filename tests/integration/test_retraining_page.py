"""docs/retraining.md, walked from the export to the weekly script: every file is written, every command run."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from ticket_export import tickets, write_export

from lengnuan.model.bundle import Bundle
from lengnuan.service import classify
from lengnuan.training import __main__ as command
from lengnuan.training import errors

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="needs curl and bash"),
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "retraining.md"
URL = "http://127.0.0.1:8000"
PATIENCE_S = 120
ROWS, WRONG = 480, 24


def blocks() -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def champion(folder: Path) -> str:
    """The version that the store's alias names; empty before the first promotion."""
    alias = folder / "models" / "aliases" / "champion.json"
    return str(json.loads(alias.read_text(encoding="utf-8"))["bundle"]) if alias.exists() else ""


@dataclass
class Walk:
    """What a reader of the page does in `folder`, command by command."""

    folder: Path
    said: dict[str, str] = field(default_factory=dict)  # the last output by the first words of the command
    named: list[str] = field(default_factory=list)  # what the alias named after each command that could change it
    url: str = ""

    def do(self, line: str, stack: ExitStack) -> None:
        """Run one command as its line says; it has to end with 0."""
        words = shlex.split(line)
        for sign, act in BETWEEN.items():
            if sign in line:
                act(self.folder)
        if "lengnuan-serve" in words:
            self._serve(words, stack)
        elif words[0] in PROGRAMS:
            output = StringIO()
            with redirect_stdout(output):
                code = PROGRAMS[words[0]](words[1:])
            self._ended(line, code, output.getvalue())
        else:
            self._ended(line, *self._shell(line))
        if words[1:2] == ["promote"] or words[1:2] == ["rollback"] or words[0] == "bash":
            self.named.append(champion(self.folder))

    def _ended(self, line: str, code: int, output: str) -> None:
        assert code == 0, f"{line}: {code}\n{output}"
        self.said[" ".join(re.sub(r"\S*/\S*", "", line).split()[:3])] = output

    def _serve(self, words: list[str], stack: ExitStack) -> None:
        variables = dict(word.split("=", 1) for word in words if "=" in word)
        assert variables.pop("LENGNUAN_WATCH_S") == "10"
        environment = {
            **os.environ,
            **variables,
            "LENGNUAN_WATCH_S": "0.2",
            "LENGNUAN_PORT": "0",
            "LENGNUAN_DRAIN_DELAY_S": "0",
        }
        program = [sys.executable, "-m", "lengnuan.service", "--device", "cpu"]
        log = stack.enter_context((self.folder / "serve.log").open("w"))
        process = subprocess.Popen(program, stderr=log, env=environment)
        stack.callback(process.wait, PATIENCE_S)
        stack.callback(process.terminate)
        self.url = str(wait_for(lambda: ready(self.folder / "serve.log", process))["url"])

    def _shell(self, line: str) -> tuple[int, str]:
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        script = line.replace(URL, self.url).replace("curl -s", "curl -sS --fail-with-body")

        def ask() -> "subprocess.CompletedProcess[str] | None":
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
            current = "/v1/models" not in line or champion(self.folder) in done.stdout
            return done if done.returncode or current else None

        done = wait_for(ask)
        return done.returncode, done.stdout + done.stderr


def wait_for(found: Callable[[], Any]) -> Any:
    """What it gives as soon as that is something."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return result


def ready(log: Path, process: "subprocess.Popen[bytes]") -> dict[str, Any] | None:
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    assert process.poll() is None, lines
    messages = [json.loads(line) for line in lines if line.endswith("\n")]
    return next((message for message in messages if message["message"] == "ready"), None)


# What the page says that a person, or time, does before a command.


def check_labels(folder: Path) -> None:
    """In Excel: the right labels into the queue, saved as its CSV in GB18030."""
    right = dict(tickets(ROWS, seed=1))
    with (folder / "queue.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [row | {"label": right[row["text"]]} for row in csv.DictReader(file)]
    with (folder / "checked.csv").open("w", encoding="gb18030", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def let_a_week_pass(folder: Path) -> None:
    write_export(folder / "data" / "week.csv", tickets(60, seed=2))


def collect_texts(folder: Path) -> None:
    text = "".join(f"{text}\n" for text, _ in tickets(200, seed=3))
    (folder / "recent.csv").write_text(f"内容\n{text}", encoding="gb18030")


BETWEEN = {"data correct": check_labels, "drift": collect_texts, "weekly.sh": let_a_week_pass}
PROGRAMS: dict[str, Callable[[list[str]], int]] = {"lengnuan-train": command.main, "lengnuan-classify": classify.main}


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    found = Walk(tmp_path_factory.mktemp("tickets"))
    write_export(found.folder / "export.csv", tickets(ROWS, seed=1), wrong=WRONG)
    program = found.folder / "bin" / "lengnuan-train"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lengnuan.training "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with chdir(found.folder), ExitStack() as stack:
        for language, content in blocks():
            named = re.search(r"^# (\S+\.(?:toml|sh))$", content, re.MULTILINE)
            if named:
                (found.folder / named[1]).write_text(content, encoding="utf-8")
            elif not language:
                for line in content.splitlines():
                    found.do(line, stack)
        yield found


def read(walk: Walk, name: str) -> Any:
    return json.loads((walk.folder / name).read_text(encoding="utf-8"))


def test_the_page_names_each_step_s_command() -> None:
    lines = [line for language, content in blocks() if not language for line in content.splitlines()]
    train = {" ".join(line.split()[1 : 3 if "data " in line[:20] else 2]) for line in lines if "lengnuan-train" in line}
    assert train == {
        "data check", "data convert", "data split", "run", "evaluate", "promote", "store", "fit", "data suspect",
        "data correct", "compare", "rollback", "drift",
    }  # fmt: skip
    assert {"--dry-run", "--seeds", "--folds"} <= set(" ".join(lines).split())


def test_the_page_says_what_to_do_on_every_exit_code() -> None:
    explained = set(re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    kinds -= {errors.TrainingError, errors.ResumeDiffers}  # a base, and what only resume-proof ends with
    assert explained >= {str(kind.exit_code) for kind in kinds} | {"0"}


def test_the_export_is_read_as_it_is(walk: Walk) -> None:
    found = read(walk, "check.json")
    (file,) = found["files"]
    assert (file["encoding"], file["accepted"], file["rejected"]) == ("gb18030", ROWS + 6, 2)
    assert found["lengths"]["export"]["tokens"]["max"] == 29, "as the page says"
    assert "FIT to train on" in walk.said["lengnuan-train data check"]
    assert len((walk.folder / "doccano.jsonl").read_text(encoding="utf-8").splitlines()) == ROWS + 6


def test_the_split_is_of_every_row(walk: Walk) -> None:
    rows = [len((walk.folder / "data" / f"{name}.csv").read_text("utf-8").splitlines()) - 1 for name in SPLITS]
    assert sum(rows) == ROWS + 6
    assert rows[2] == 123, "as the page says"


SPLITS = ("train", "dev", "test")


def test_the_first_run_leaves_a_bundle_with_a_report(walk: Walk) -> None:
    bundle = Bundle.load(walk.folder / "runs" / "first" / "bundle")
    assert set(bundle.labels) == {"投诉", "咨询", "表扬"}
    assert bundle.manifest.max_tokens == 32
    assert {"report.html", "MODEL_CARD.md", "metrics.json"} <= {
        file.name for file in (bundle.path / "report").iterdir()
    }
    assert bundle.manifest.scores["mean"]["accuracy"] > 0.8


def test_the_bundle_answers_without_a_service(walk: Walk) -> None:
    said = next(output for line, output in walk.said.items() if line.startswith("lengnuan-classify"))
    assert [json.loads(line)["label"] for line in said.splitlines()] == ["投诉", "咨询"]


def test_the_queue_finds_wrong_labels_and_the_answers_reach_the_file(walk: Walk) -> None:
    right = dict(tickets(ROWS, seed=1))

    def wrong(name: str) -> int:
        with (walk.folder / "data" / name).open(encoding="utf-8", newline="") as file:
            return sum(row["类别"].strip() != right[row["内容"]] for row in csv.DictReader(file))

    assert wrong("train-checked.csv") <= wrong("train.csv") / 2
    assert "咨询" in walk.said["lengnuan-train data correct"]


def test_the_first_run_is_the_lower_of_two_seeds(walk: Walk) -> None:
    found = read(walk, "runs/first/seeds.json")
    assert list(found["scores"]) == ["1", "2"]
    assert found["scores"][str(found["median_seed"])] == found["min"]


def test_the_script_of_every_week_promotes_and_says_so(walk: Walk) -> None:
    (week,) = (folder for folder in (walk.folder / "runs").iterdir() if folder.name != "first")
    first, second = (Bundle.load(run / "bundle").version for run in (walk.folder / "runs" / "first", week))
    assert walk.named == [first, second, first], "promoted, promoted, rolled back"
    assert f"promoted: runs/{week.name}" in walk.said["bash weekly.sh"]
    assert read(walk, f"runs/{week.name}/decision.json")["live"]["version"] == first
    assert read(walk, f"runs/{week.name}/data.json") != read(walk, "runs/first/data.json")
    assert read(walk, "decision.json")["candidate"]["version"] == second


def test_the_service_follows_the_alias(walk: Walk) -> None:
    assert walk.named[1] in walk.said["curl -s"]


def test_the_frozen_rows_of_the_cluster_s_job_are_a_table(walk: Walk) -> None:
    rows = (walk.folder / "frozen.tsv").read_text(encoding="utf-8").splitlines()
    assert set(rows[0].split("\t")) == {"类别", "内容"}
    assert len(rows) == 1 + 123


def test_texts_of_the_same_kind_are_no_drift(walk: Walk) -> None:
    assert read(walk, "drift.json")["drift"] is False
