"""What a run cost: measured, summed over processes, and never made up."""

import json
from pathlib import Path

import pytest

from lengnuan.training import effort
from lengnuan.training.effort import EFFORT, effort_of, measured


def counter(folder: Path, name: str, microjoules: int) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "max_energy_range_uj").write_text("10000000\n", encoding="ascii")
    file = folder / name / "energy_uj"
    file.write_text(f"{microjoules}\n", encoding="ascii")
    return file


def test_time_is_summed_over_the_processes_of_a_stage(tmp_path: Path) -> None:
    for _ in range(2):
        with measured(tmp_path, "fit"):
            sum(range(100_000))
    found = effort_of(tmp_path)
    assert list(found["seconds"]) == ["fit"]
    assert found["processes"] == 2
    assert found["processor_seconds"] >= 0
    assert found["hardware"][0].endswith("cores")


def test_a_stage_that_was_stopped_counts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), measured(tmp_path, "fit"):
        raise KeyboardInterrupt
    assert effort_of(tmp_path)["processes"] == 1


def test_without_counters_no_energy_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "POWERCAP", tmp_path / "none")
    with measured(tmp_path, "fit"):
        pass
    assert effort_of(tmp_path)["joules"] is None


def test_energy_is_what_the_packages_used_and_their_parts_are_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "POWERCAP", tmp_path)
    first, second = counter(tmp_path, "intel-rapl:0", 1_000_000), counter(tmp_path, "intel-rapl:1", 9_000_000)
    part = counter(tmp_path, "intel-rapl:0:0", 0)
    with measured(tmp_path, "fit"):
        first.write_text("3500000", encoding="ascii")
        second.write_text("1000000", encoding="ascii")  # went round at 10 J
        part.write_text("900000", encoding="ascii")
    assert effort_of(tmp_path)["joules"] == pytest.approx(2.5 + 2.0)


def test_energy_of_a_part_is_not_that_of_the_whole(tmp_path: Path) -> None:
    row = {"stage": "fit", "seconds": 1.0, "processor_seconds": 1.0, "joules": 5.0, "hardware": "x"}
    lines = [json.dumps(row | {"joules": joules}) + "\n" for joules in (5.0, None)]
    (tmp_path / EFFORT).write_text("".join(lines), encoding="utf-8")
    assert effort_of(tmp_path)["joules"] is None


def test_a_folder_without_records_costs_nothing_known(tmp_path: Path) -> None:
    assert effort_of(tmp_path)["seconds"] == {}
