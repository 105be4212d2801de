"""Plans follow from what was measured, and the page holds what the command computes."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts are no package
capacity = importlib.import_module("capacity")
MEASURED = capacity.Measured(((10, 0.002), (40, 0.004), (160, 0.016)), 2.0, 300.0, 100.0)


@pytest.mark.parametrize(
    ("characters", "seconds"), [(5, 0.002), (10, 0.002), (20, 0.0028284), (40, 0.004), (80, 0.008), (999, 0.016)]
)
def test_time_a_text_lies_between_those_of_the_lengths_around_it(characters: int, seconds: float) -> None:
    assert MEASURED.seconds_for(characters) == pytest.approx(seconds, rel=1e-4)


def test_online_cores_are_the_work_over_the_utilisation() -> None:
    plan = capacity.online(MEASURED, rate=1500, characters=40, utilisation=0.5, cores=2)
    assert (plan.replicas, plan.cores, plan.core_hours) == (6, 12, 12.0)
    assert plan.memory_gb == pytest.approx(6 * 400 / 1024)


def test_online_has_two_replicas_for_the_smallest_load() -> None:
    assert capacity.online(MEASURED, rate=0.1, characters=40, utilisation=0.6, cores=1).replicas == 2


def test_offline_counts_what_lists_gain_and_no_reserve() -> None:
    plan = capacity.offline(MEASURED, texts=3.6e6, hours=1, characters=40, cores=1)
    assert (plan.core_hours, plan.replicas) == (pytest.approx(2.0), 2)


def test_the_page_holds_what_the_command_computes_from_the_results() -> None:
    head, measured = capacity.read(capacity.RESULTS)
    assert capacity.worked(head, measured) in capacity.PAGE.read_text(encoding="utf-8")


def test_a_missing_measurement_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"scaling\.py --write"):
        capacity.read(tmp_path / "none.json")


def test_the_command_prints_a_plan_with_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [
        {"panel": panel, "place": place, "size": size, "figures": {"requests_s": rate}}
        for panel, place, size, rate in (
            (capacity.LENGTHS, 10, 1, 500.0),
            (capacity.LENGTHS, 40, 1, 250.0),
            (capacity.LISTS, 256, 256, 2.0),
        )
    ]
    found = {"head": ["a machine", "a bundle"], "points": points, "figures": {"resident_mb": 300.0}}
    (tmp_path / "found.json").write_text(json.dumps(found), encoding="utf-8")
    options = ["--rate", "1000", "--utilisation", "0.5", "--price", "0.05", "--results", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", ["capacity.py", *options])
    capacity.main()
    assert "| 1000 requests/s, an hour | 8 | 8 | 2.3 | 8 | 0.40 |" in capsys.readouterr().out
