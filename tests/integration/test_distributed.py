"""Two processes that train together give what one process gives, stop together, and do not wait for a dead one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import SMALL_TOML, sentences, write_tsv
from together import two_processes

from lengnuan.model.bundle import Bundle
from lengnuan.training import __main__ as command
from lengnuan.training.checkpoint import load_checkpoint
from lengnuan.training.config import load_config
from lengnuan.training.errors import ProcessLost, UsageError
from lengnuan.training.fit import selection_of
from lengnuan.training.judge import BEST
from lengnuan.training.out_of_fold import read_out_of_fold
from lengnuan.training.proof import trace_of, train

pytestmark = pytest.mark.integration

EXACT = ("stage", "step", "row_order")
BOUND = 1e-3  # of every figure of the log: what the order of a sum does to float32 over a hundred steps

# Two batches a step, one for each process, in the last step for one alone; with all that draws or looks ahead.
WHOLE = """accumulate = 2
epochs = 8
batch_tokens = 512
token_dropout = 0.1
fgm_epsilon = 0.5
class_weight = "balanced"
patience = 99"""
# One batch a step, cut by rows. Many hold a single row, so that a process has none. It ends by early stopping.
CUT = """epochs = 99
batch_tokens = 24
evaluations_per_epoch = 1
patience = 2"""
# For what needs several runs.
QUICK = """accumulate = 2
epochs = 4
batch_tokens = 512"""


def write_config(root: Path, name: str, fit: str, **changes: str) -> Path:
    content = SMALL_TOML.replace("epochs = 6\nmin_steps = 1\nbatch_tokens = 512", f"{fit}\nmin_steps = 1")
    content = content.replace("[data.train]", f'[data]\nroot = "{root}"\n[data.train]')
    for old, new in changes.items():
        content = content.replace(f"\n{old} = ", f"\n{new}\n# {old} = ")
    (root / f"{name}.toml").write_text(content, encoding="utf-8")
    return root / f"{name}.toml"


def command_line(root: Path, stage: str, name: str, run: Path, *more: str) -> list[str]:
    return [stage, "--config", str(root / f"{name}.toml"), "--output", str(run), *more]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows and configs."""
    folder = tmp_path_factory.mktemp("together")
    write_tsv(folder / "train.tsv", sentences(300))
    write_config(folder, "whole", WHOLE)
    write_config(folder, "cut", CUT, corpus="corpus = []", layers="layers = 1\ndropout = 0.0")
    write_config(folder, "quick", QUICK, corpus="corpus = []")
    return folder


@pytest.fixture(scope="module")
def whole(root: Path) -> Path:
    """A run of two processes, with pretraining."""
    for stage in ("pretrain", "fit"):
        done = two_processes(root, *command_line(root, stage, "whole", root / "whole"))
        assert done.codes == [0, 0], done.said
    return root / "whole"


@pytest.fixture(scope="module")
def cut(root: Path) -> Path:
    """A run of two processes, without."""
    done = two_processes(root, *command_line(root, "fit", "cut", root / "cut"))
    assert done.codes == [0, 0], done.said
    return root / "cut"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def check_alike(one: Path, other: Path) -> None:
    """The same rows in the same order, and the same figures within the bound."""
    for expected, found in zip(rows(one), rows(other), strict=True):
        assert [found.pop(key) for key in EXACT] == [expected.pop(key) for key in EXACT]
        assert found == pytest.approx(expected, rel=BOUND, abs=BOUND, nan_ok=True)
    assert selection_of(one / BEST).best_step == selection_of(other / BEST).best_step


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_the_figures_are_those_of_a_single_process(
    name: str, root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(name)
    train(load_config(root / f"{name}.toml"), tmp_path)
    check_alike(tmp_path, run)


def test_what_a_stage_cost_is_recorded_once(whole: Path) -> None:
    lines = (whole / "effort.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["pretrain", "fit"]


def test_they_stop_early_together(cut: Path) -> None:
    assert 3 <= sum("dev_loss" in row for row in rows(cut)) < 99


def torchrun(*arguments: str) -> str:
    """What is said."""
    script = str(Path(__file__).parents[1] / "together.py")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*words, *arguments], env=environment, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    ).stderr


@pytest.fixture(scope="module")
def stopped(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run under torchrun whose second process got SIGTERM in step 50, and what was said."""
    run = tmp_path_factory.mktemp("stopped")
    return run, torchrun("SIGTERM", "50", *command_line(root, "fit", "cut", run))


def test_a_signal_to_one_stops_all_after_that_very_step_with_75(stopped: tuple[Path, str]) -> None:
    run, said = stopped
    assert said.count("stopped by a signal: the same command goes on") == 2, said
    # torchrun ends what has not ended yet when the first has, at the latest moment of its own end.
    assert set(re.findall(r"exitcode +: (-?\d+)", said)) in ({"75"}, {"75", "-15"}), said
    found = load_checkpoint(run / "fit-checkpoints")
    assert found is not None
    assert found[1]["step"] == 50


def test_the_same_command_goes_on_with_the_same_bits(
    stopped: tuple[Path, str], root: Path, cut: Path, tmp_path: Path
) -> None:
    run = copied(stopped[0], tmp_path)
    done = two_processes(tmp_path, *command_line(root, "fit", "cut", run))
    assert done.codes == [0, 0], done.said
    assert trace_of(run) == trace_of(cut)


def test_a_single_process_can_go_on_from_there(
    stopped: tuple[Path, str], root: Path, cut: Path, tmp_path: Path
) -> None:
    run = copied(stopped[0], tmp_path)
    train(load_config(root / "cut.toml"), run)
    check_alike(cut, run)


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def test_when_one_dies_the_other_says_so_and_ends(root: Path, tmp_path: Path) -> None:
    done = two_processes(tmp_path, *command_line(root, "fit", "cut", tmp_path / "run"), kill=signal.SIGKILL, step=50)
    assert done.codes == [ProcessLost.exit_code, -signal.SIGKILL], done.said
    assert "another process of this training has ended" in done.said


def test_several_seeds_and_the_bundle_of_the_median_one(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = two_processes(tmp_path, *command_line(root, "run", "quick", run, "--seeds", "2"))
    assert done.codes == [0, 0], done.said
    median = json.loads((run / "seeds.json").read_text(encoding="utf-8"))["median_seed"]
    assert (run / f"seed-{median}" / BEST).read_bytes() == (run / BEST).read_bytes()
    assert Bundle.load(run / "bundle").labels == ("negative", "positive")
    assert done.said.count("This is the median one") == 1  # the second process says nothing


def test_folds_judge_as_those_of_a_single_process(root: Path, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("alone", "together")]
    done = two_processes(tmp_path, *command_line(root, "fit", "quick", runs[1], "--folds", "2"))
    assert done.codes == [0, 0], done.said
    assert command.main(command_line(root, "fit", "quick", runs[0], "--folds", "2")) == 0
    expected, found = (read_out_of_fold(run / "folds-2" / "out-of-fold.jsonl") for run in runs)
    assert (found.texts, found.folds.tolist()) == (expected.texts, expected.folds.tolist())
    assert found.probabilities == pytest.approx(expected.probabilities, abs=BOUND)


def test_a_dry_run_is_for_one_process(root: Path, tmp_path: Path) -> None:
    done = two_processes(tmp_path, *command_line(root, "run", "quick", tmp_path / "run", "--dry-run"))
    assert done.codes == [UsageError.exit_code] * 2, done.said
    assert "without torchrun" in done.said
    assert not (tmp_path / "run").exists()
