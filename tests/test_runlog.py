"""The log of a run: JSON rows that survive an interruption, a bar or plain lines."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengnuan.training import runlog
from lengnuan.training.runlog import RunLog


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def rows_of(step: int) -> np.ndarray:
    return np.array([step, 2 * step])


def write(folder: Path, stage: str, steps: range, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write a row for each step, from `state` on; returns the state after them."""
    run_log = RunLog(folder, stage, steps=10)
    if state:
        run_log.restore(state)
    with run_log:
        for step in steps:
            run_log.step(step, rows_of(step), 100, {"loss": 1.0 / step})
            run_log.record(step, {"loss": 1.0 / step})
        return run_log.state()


def without_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "row_order"} for row in found]


def test_a_record_is_one_json_row(tmp_path: Path) -> None:
    write(tmp_path, "fit", range(1, 4))
    assert without_order(rows(tmp_path)) == [
        {"stage": "fit", "step": 1, "loss": 1.0},
        {"stage": "fit", "step": 2, "loss": 0.5},
        {"stage": "fit", "step": 3, "loss": 0.333333},
    ]


def test_a_record_is_on_disk_at_once(tmp_path: Path) -> None:
    with RunLog(tmp_path, "fit", steps=1) as run_log:
        run_log.record(1, {"loss": 1.0})
        assert len(rows(tmp_path)) == 1


def test_a_value_that_is_not_finite_is_null(tmp_path: Path) -> None:
    with RunLog(tmp_path, "fit", steps=1) as run_log:
        run_log.record(1, {"loss": math.nan, "norm": math.inf})
    assert without_order(rows(tmp_path)) == [{"stage": "fit", "step": 1, "loss": None, "norm": None}]


def test_a_resumed_run_drops_the_rows_after_its_checkpoint(tmp_path: Path) -> None:
    state = write(tmp_path / "cut", "fit", range(1, 5))
    write(tmp_path / "cut", "fit", range(5, 8), state)
    write(tmp_path / "cut", "fit", range(5, 11), state)
    write(tmp_path / "whole", "fit", range(1, 11))
    assert [row["step"] for row in rows(tmp_path / "cut")] == list(range(1, 11))
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole"), "the row order too"


def test_a_row_of_the_checkpoint_s_own_step_that_it_does_not_know_is_dropped(tmp_path: Path) -> None:
    state = write(tmp_path, "fit", range(1, 5))
    write(tmp_path, "fit", range(4, 5), state)
    write(tmp_path, "fit", range(5, 6), state)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_without_a_checkpoint_a_stage_begins_its_rows_again(tmp_path: Path) -> None:
    write(tmp_path, "pretrain", range(1, 3))
    write(tmp_path, "fit", range(1, 5))
    write(tmp_path, "fit", range(1, 2))
    assert [(row["stage"], row["step"]) for row in rows(tmp_path)] == [("pretrain", 1), ("pretrain", 2), ("fit", 1)]


def test_the_row_order_tells_the_same_rows_in_another_order_apart(tmp_path: Path) -> None:
    for name, order in (("a", [1, 2, 3]), ("b", [2, 1, 3])):
        with RunLog(tmp_path / name, "fit", steps=3) as run_log:
            for step in order:
                run_log.step(step, rows_of(step), 100, {})
            run_log.record(3, {"loss": 1.0})
    assert rows(tmp_path / "a") != rows(tmp_path / "b")
    assert without_order(rows(tmp_path / "a")) == without_order(rows(tmp_path / "b"))


def test_other_stages_keep_their_rows(tmp_path: Path) -> None:
    write(tmp_path, "pretrain", range(1, 8))
    write(tmp_path, "fit", range(1, 3))
    assert [row["stage"] for row in rows(tmp_path)] == ["pretrain"] * 7 + ["fit"] * 2


def test_a_half_written_row_is_dropped(tmp_path: Path) -> None:
    state = write(tmp_path, "fit", range(1, 3))
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"stage": "fit", "st')
    write(tmp_path, "fit", range(3, 4), state)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


def test_tensorboard_gets_the_same_values(tmp_path: Path) -> None:
    write(tmp_path, "fit", range(1, 4))
    assert list((tmp_path / "tensorboard" / "fit").glob("events.*"))


def test_without_a_terminal_there_are_plain_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runlog, "SECONDS_BETWEEN_LINES", -1.0)
    with caplog.at_level(logging.INFO):
        write(tmp_path, "fit", range(1, 3))
    assert "fit 1/10: loss 1" in caplog.text
    assert "min left" in caplog.text
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    write(tmp_path, "fit", range(1, 11))
    assert "10/10" in capsys.readouterr().err
