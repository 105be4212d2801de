import json
from pathlib import Path

import pytest

from lengnuan.training import __main__ as command
from lengnuan.training.config import load_config
from lengnuan.training.dry_run import forecast
from lengnuan.training.trial import STEPS

pytestmark = pytest.mark.integration

SETTINGS = ["fit.epochs=12", "fit.patience=99", "fit.accumulate=2", "pretrain.epochs=3"]


def arguments(root: Path, run: Path, *more: str) -> list[str]:
    found = ["run", "--config", str(root / "small.toml"), "--data", str(root), "--output", str(run), *more]
    return [*found, *(part for setting in SETTINGS for part in ("--set", setting))]


def test_the_steps_are_those_of_the_run(root: Path, tmp_path: Path) -> None:
    found = forecast(load_config(root / "small.toml", [*SETTINGS, f'data.root="{root}"']))
    assert command.main(arguments(root, tmp_path / "run")) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    for stage, judged in (("pretrain", "held_out_loss"), ("fit", "dev_loss")):
        of_stage = [row for row in rows if row["stage"] == stage]
        assert found.steps(stage) == max(row["step"] for row in of_stage) > STEPS
        assert found.steps(f"{stage}: evaluations") == sum(judged in row for row in of_stage)


def test_it_tells_the_time_of_each_stage_and_the_memory_and_keeps_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments(root, tmp_path / "run", "--dry-run")) == 0
    shown = capsys.readouterr().out
    for words in ("read", "sub-words", "pretrain  ", "fit  ", "fit: evaluations", "memory at its peak", "not tried"):
        assert words in shown
    assert f"predicted from {STEPS} steps" in shown
    assert not (tmp_path / "run").exists()


def test_teachers_and_both_students_are_counted(run: Path, root: Path) -> None:
    teacher = f'distill.teachers=["{run}"]'
    settings = [*SETTINGS, f'data.root="{root}"']
    one, two = (forecast(load_config(root / "small.toml", [*settings, *more])) for more in ([], [teacher]))
    assert two.steps("fit") == 2 * one.steps("fit")
    assert "teachers" in [stage.name for stage in two.stages]


def test_what_the_run_is_refused_for_the_trial_is_refused_for_too(root: Path, tmp_path: Path) -> None:
    assert command.main(arguments(root, tmp_path / "run", "--dry-run", "--set", "gate.max_leaked_share=0.0")) == 0
    (tmp_path / "train.tsv").write_text("label\ttext\n0\t好\n", encoding="utf-8")
    assert command.main(arguments(tmp_path_config(root, tmp_path), tmp_path / "run", "--dry-run")) == 3


def tmp_path_config(root: Path, folder: Path) -> Path:
    (folder / "small.toml").write_bytes((root / "small.toml").read_bytes())
    return folder


def test_a_run_of_fewer_steps_than_the_trial_is_forecast_too(root: Path) -> None:
    few = ["fit.epochs=1", "fit.min_steps=1", "pretrain.epochs=1", f'data.root="{root}"']
    found = forecast(load_config(root / "small.toml", few))
    assert 0 < found.steps("fit") < STEPS
