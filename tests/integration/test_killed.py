"""Runs that are killed or told to stop, at every kind of moment, end as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.training import __main__ as command
from lengnuan.training import checkpoint, judge, proof
from lengnuan.training import pretrain as pretraining
from lengnuan.training.checkpoint import load_checkpoint
from lengnuan.training.config import TrainConfig, load_config
from lengnuan.training.optimise import Optimiser
from lengnuan.training.proof import Trace, trace_of, train
from lengnuan.training.runlog import RunLog

pytestmark = pytest.mark.integration


# 14 steps of pretraining, 28 of two batches each for `fit`, with an evaluation after every third.
LONGER = "epochs = 8\naccumulate = 2\nevaluations_per_epoch = 1\npatience = 99"


class Death(BaseException):
    """Ends a run where no handler of the program notices."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tsv(folder / "train.tsv", sentences(300))
    (folder / "small.toml").write_text(SMALL_TOML.replace("epochs = 6", LONGER), "utf-8")
    return folder


@pytest.fixture
def config(root: Path) -> TrainConfig:
    return load_config(root / "small.toml", [f'data.root="{root}"'])


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> Trace:
    train(load_config(root / "small.toml", [f'data.root="{root}"']), root / "undisturbed")
    return trace_of(root / "undisturbed")


def at_call(number: int, act: Callable[[], None], original: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """`original`, but its n-th call is preceded or followed by `act`."""
    calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            act()
        result = original(*args, **kwargs)
        if calls == number and after:
            act()
        return result

    return called


def die() -> None:
    raise Death


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("place", "name", "number"),
    [
        (Optimiser, "update", 6),  # in pretraining
        (Optimiser, "update", 31),  # in the middle of an epoch of `fit`
        (judge, "write_tensors", 2),  # with the best weights written and nothing else
        (RunLog, "record_judged", 4),  # between log and checkpoint
        (checkpoint, "save_checkpoint", 5),
        (checkpoint, "save_file", 4),  # in the middle of one
        (checkpoint, "flush", 15),
        (pretraining, "write_tensors", 1),
        (judge, "predict", 3),
    ],
)
def test_a_death_there_changes_nothing(
    place: Any, name: str, number: int, after: bool, config: TrainConfig, undisturbed: Trace, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(place, name, at_call(number, die, getattr(place, name), after=after))
        with pytest.raises(Death):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert trace_of(tmp_path / "run") == undisturbed


def test_checkpoints_by_the_clock_change_nothing(
    config: TrainConfig, undisturbed: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", -1.0)
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", 1e9)  # one at every step
    with monkeypatch.context() as patch:
        patch.setattr(Optimiser, "update", at_call(31, die, Optimiser.update, after=True))
        with pytest.raises(Death):
            train(config, tmp_path / "run")
    found = load_checkpoint(tmp_path / "run" / "fit-checkpoints")
    assert found is not None
    train(config, tmp_path / "run")
    assert trace_of(tmp_path / "run") == undisturbed


def arguments(root: Path, run: Path) -> list[str]:
    return ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(run)]


@pytest.mark.parametrize(
    ("stage", "place", "name", "number"),
    [
        ("pretrain", Optimiser, "update", 6),
        ("pretrain", pretraining, "held_out_loss", 1),
        ("fit", Optimiser, "update", 17),
        ("fit", judge, "predict", 3),
    ],
)
def test_told_to_stop_it_saves_that_very_step_and_goes_on_from_it(
    stage: str, place: Any, name: str, number: int, root: Path, config: TrainConfig, undisturbed: Trace,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if stage == "fit":
        assert command.main(["pretrain", *arguments(root, tmp_path / "run")]) == 0
    steps: list[int] = []
    update = Optimiser.update

    def counted(optimiser: Optimiser) -> tuple[float, float]:
        steps.append(optimiser.step + 1)
        return update(optimiser)

    with monkeypatch.context() as patch:
        patch.setattr(Optimiser, "update", counted)
        patch.setattr(place, name, at_call(number, ask_to_stop, getattr(place, name), after=False))
        assert command.main([stage, *arguments(root, tmp_path / "run")]) == 75
    found = load_checkpoint(tmp_path / "run" / f"{stage}-checkpoints")
    assert found is not None
    assert found[1]["step"] == steps[-1], "no step is lost"
    train(config, tmp_path / "run")
    assert trace_of(tmp_path / "run") == undisturbed


def test_a_real_process_answers_sigterm_with_a_checkpoint_and_75(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    endless = ["--set", "fit.epochs=100000", "--set", "fit.patience=100000", "--set", "fit.evaluations_per_epoch=1"]
    words = [sys.executable, "-m", "lengnuan.training", "fit", *arguments(root, run), *endless]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text("utf-8"):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 75
    assert "the same command goes on from here" in said
    found = load_checkpoint(run / "fit-checkpoints")
    assert found is not None
    assert found[1]["step"] > 0


def test_resume_proof_kills_a_training_and_finds_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["resume-proof", "--kills", "4", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "kill 4 after" in said
    assert "4 kills" in said.splitlines()[-1]
    assert "DIFFERS" not in said


def test_resume_proof_ends_with_1_where_a_run_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lives are not lived here: what is shown is that another row order alone is enough."""
    traces = iter([Trace("a", "b", "c"), Trace("a", "b", "other")])
    killed = iter([False, False, True, False])  # warming up, undisturbed, the first life, the second
    monkeypatch.setattr(proof, "trace_of", lambda folder: next(traces))
    monkeypatch.setattr(proof, "_live", lambda process, seconds=None: next(killed))
    assert command.main(["resume-proof", "--output", str(tmp_path / "runs"), "--kills", "1"]) == 1
    assert "DIFFERS" in capsys.readouterr().out
