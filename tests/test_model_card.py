"""The model card says what was measured, and of what was not measured that it is unknown."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from lengnuan.training.config import TrainConfig
from lengnuan.training.model_card import model_card


def scores(accuracy: float, rows: int, ece: float = 0.01) -> dict[str, Any]:
    interval = (accuracy - 0.02, accuracy + 0.02)
    found = {"rows": rows, "accuracy": accuracy, "accuracy_interval": interval, "macro_f1": accuracy, "ece": ece}
    answered = {"threshold": 0.7, "rows": rows, "coverage": 0.8, "accuracy": 0.97, "accuracy_interval": (0.96, 0.98)}
    return found | {"ece_by_chance": 0.015, "answered": answered}


def kind(share: float) -> dict[str, Any]:
    return {"texts": 1000, "below_limit": share, "mean_confidence": 0.7}


def metrics(**changes: Any) -> dict[str, Any]:
    """What a run writes into metrics.json, as far as the card reads it."""
    found: dict[str, Any] = {
        "labels": ["negative", "positive"],
        "data": {
            "files": [{"path": "a/train.tsv", "lines": 1001, "accepted": 990, "blank": 1, "rejected": 9}],
            "train_rows": 900,
            "train_rows_by_label": {"negative": 450, "positive": 450},
            **{f"train_{why}_dropped": 30 for why in ("repeats", "conflicts", "leaked")},
            "synthetic_rows": {"generated": 0, "noisy_copies": 0, "held_out_dropped": 0, "nonsense": 0},
            "identity": {"train": "0123456789abcdef"},
            "tokens": {"train": {"truncated_share": 0.0}},
        },
        "training": {"dev_accuracy_of_bundle": 0.9},
        "calibration": {
            **{"temperature": 1.2, "abstain_threshold": 0.7, "dev_ece_before": 0.05, "dev_ece_after": 0.02},
            **{"dev_coverage": 0.8, "dev_accuracy_covered": 0.961, "wanted_accuracy": 0.96},
        },
        "nonsense": {"common": kind(0.95), "any": kind(0.93), "limit": 0.8, "wanted_share": 0.9, "passed": True},
        "test": {"files": {"reviews": scores(0.95, 1200)}, "mean": {"accuracy": 0.95}},
        "referee": {"method": "n-grams", "dev_accuracy": 0.88, "test": {"reviews": {"accuracy": 0.9}}},
        "margin_over_referee": {
            "mean": {"margin": 0.05, "interval": (0.03, 0.07)},
            "sources": {"reviews": {"margin": 0.05, "interval": (0.03, 0.07)}},
        },
        "made_with": {"python": "3", "torch": "2", "machine": "x"},
        "effort": {
            **{"seconds": {"fit": 3725.0}, "processor_seconds": 7000.0, "joules": None},
            **{"hardware": ["A processor, 2 cores"], "processes": 1},
        },
    }
    return found | changes


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return small_config(tmp_path)


def test_scores_stand_beside_their_interval_the_referee_and_the_margin(config: TrainConfig) -> None:
    card = model_card(config, metrics())
    assert "| reviews | 1,200 | 95.00 | 93.00–97.00 | 95.00 | 0.010 | 0.015 | 90.00 | +5.00 (+3.00 to +7.00) |" in card


def test_rows_are_accounted_for_and_identified(config: TrainConfig) -> None:
    card = model_card(config, metrics())
    assert "| a/train.tsv | 1,001 | 990 | 1 | 9 |" in card
    assert "`0123456789abcdef`" in card


def test_the_licence_of_a_source_is_what_the_config_says(tmp_path: Path) -> None:
    described = small_config(tmp_path, sources={"reviews": "our shop"}, licences={"reviews": "ours alone"})
    assert "- **reviews**: our shop. Licence: ours alone" in model_card(described, metrics())
    assert "- **reviews**: our shop. Licence: not stated" in model_card(
        small_config(tmp_path, sources={"reviews": "our shop"}), metrics()
    )
    assert "- **reviews**: not described. Licence: not stated" in model_card(small_config(tmp_path), metrics())


def test_a_licence_of_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[licences\]: \['other'\]"):
        small_config(tmp_path, licences={"other": "MIT"})


def test_abstaining_states_what_was_asked_and_what_it_does_on_each_test(config: TrainConfig) -> None:
    card = model_card(config, metrics())
    assert "below a confidence of 0.700, the lowest at which dev is 96.00 % right" in card
    assert "| reviews | 80.00 | 97.00 | 96.00–98.00 |" in card


def test_without_a_wanted_accuracy_it_says_that_it_never_abstains(config: TrainConfig) -> None:
    calibration = metrics()["calibration"] | {"wanted_accuracy": None}
    assert "It never abstains" in model_card(config, metrics(calibration=calibration))


def test_limits_come_from_the_figures(config: TrainConfig) -> None:
    assert "chance explains" not in model_card(config, metrics())
    weak = {"files": {"reviews": scores(0.95, 300, ece=0.04)}, "mean": {"accuracy": 0.95}}
    nonsense = metrics()["nonsense"] | {"passed": False}
    card = model_card(config, metrics(test=weak, nonsense=nonsense))
    assert "Fewer than 500 test rows, so wide intervals: reviews (300)." in card
    assert "off by more than chance explains on: reviews (0.040)." in card
    assert "too sure of random characters" in card


def test_an_error_that_few_rows_explain_is_no_limit(config: TrainConfig) -> None:
    few = scores(0.95, 300, ece=0.04) | {"ece_by_chance": 0.05}
    card = model_card(config, metrics(test={"files": {"reviews": few}, "mean": {"accuracy": 0.95}}))
    assert "chance explains" not in card


def test_a_run_without_tests_has_no_scores_and_says_so(config: TrainConfig) -> None:
    card = model_card(config, metrics(test={}, margin_over_referee={}))
    assert "never judged on test rows" in card
    assert "No test rows. Dev accuracy 90.00 %, n-grams 88.00 %." in card


def test_time_is_stated_and_energy_only_where_it_was_measured(config: TrainConfig) -> None:
    card = model_card(config, metrics())
    assert "Time: fit 1 h 2 min; 1 h 56 min of processor time; energy was not measured" in card
    measured = metrics()["effort"] | {"joules": 7.2e6}
    assert "2 kWh of the processor packages" in model_card(config, metrics(effort=measured))


def test_the_clean_rows_have_a_line_of_their_own(config: TrainConfig) -> None:
    leaked = scores(0.95, 1200) | {"clean": scores(0.93, 852)}
    card = model_card(config, metrics(test={"files": {"reviews": leaked}, "mean": {"accuracy": 0.95}}))
    assert "| reviews, clean rows | 852 | 93.00 |" in card
