"""Which figures lead to PROMOTE, HOLD and REJECT; each limit on its own."""

from typing import Any

import pytest

from lengnuan.training.errors import UsageError
from lengnuan.training.verdict import Limits, decide, judge, reasons


def figures(**changes: Any) -> dict[str, Any]:
    """A candidate that is better in every way."""
    found: dict[str, Any] = {
        "majority_share": 0.5,
        "candidate": {"version": "a", "accuracy": 0.9, "ece": 0.02},
        "live": {"version": "b", "accuracy": 0.85, "ece": 0.02},
        "same_bundle": False,
        "mcnemar": {"gained": 80, "lost": 30, "p": 0.001},
        "bootstrap": {
            "accuracy": {"difference": 0.05, "interval": (0.03, 0.07)},
            "macro_f1": {"difference": 0.05, "interval": (0.03, 0.07)},
        },
        "domains": {"hotel": {"rows": 500, "candidate": 0.9, "live": 0.85, "p": 0.01}},
        "behaviour": {"negation": {"rows": 100, "candidate": 90, "live": 90}},
        "churn": {"negative_flip_share": 0.03},
        "size": {"ratio": 1.0},
        "time": {"ratio": 1.0},
    }
    return found | changes


def outcome(found: dict[str, Any], **limits: Any) -> tuple[str, set[str]]:
    """The decision, and the checks that are not ok."""
    checks = judge(found, Limits(**limits))
    return decide(checks), {check.name for check in checks if check.outcome != "ok"}


def bootstrap(low: float, high: float) -> dict[str, Any]:
    interval = {"difference": (low + high) / 2, "interval": (low, high)}
    return {"accuracy": interval, "macro_f1": interval}


def test_better_in_every_way_is_promoted() -> None:
    assert outcome(figures()) == ("PROMOTE", set())


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"domains": {"hotel": {"rows": 9, "candidate": 0.8, "live": 0.82, "p": 0.01}}}, "domains"),
        ({"behaviour": {"negation": {"rows": 100, "candidate": 86, "live": 90}}}, "behaviour"),
        ({"candidate": {"version": "a", "accuracy": 0.9, "ece": 0.05}}, "calibration"),
        ({"candidate": {"version": "a", "accuracy": 0.5, "ece": 0.02}}, "learnt"),
        ({"churn": {"negative_flip_share": 0.06}}, "churn"),
        ({"size": {"ratio": 2.1}}, "size"),
        ({"time": {"ratio": 1.6}}, "speed"),
        ({"bootstrap": bootstrap(0.03, 0.07) | {"macro_f1": bootstrap(-0.03, -0.01)["macro_f1"]}}, "macro-F1"),
    ],
)
def test_one_thing_past_its_limit_is_enough_to_reject(changes: dict[str, Any], name: str) -> None:
    assert outcome(figures(**changes)) == ("REJECT", {name})


@pytest.mark.parametrize(
    "changes",
    [
        {"domains": {"hotel": {"rows": 9, "candidate": 0.8, "live": 0.82, "p": 0.5}}},  # may be chance
        {"behaviour": {"negation": {"rows": 100, "candidate": 87, "live": 90}}},  # three points, not more
        {"candidate": {"version": "a", "accuracy": 0.9, "ece": 0.04}},
    ],
)
def test_what_is_at_its_limit_or_may_be_chance_is_allowed(changes: dict[str, Any]) -> None:
    assert outcome(figures(**changes)) == ("PROMOTE", set())


def test_a_floor_counts_for_its_domain_and_the_general_one_for_the_others() -> None:
    assert outcome(figures(), floor=0.95, floors={"hotel": 0.9}) == ("PROMOTE", set())
    assert outcome(figures(), floor=0.95) == ("REJECT", {"floors"})
    assert outcome(figures(), floors={"hotel": 0.91}) == ("REJECT", {"floors"})


def test_a_floor_for_a_domain_without_rows_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no row is of hotels; the domains are hotel"):
        judge(figures(), Limits(floors={"hotels": 0.9}))


def test_a_gain_that_may_be_chance_is_held() -> None:
    held = ("HOLD", {"accuracy"})
    assert outcome(figures(mcnemar={"p": 0.06})) == held
    assert outcome(figures(bootstrap=bootstrap(-0.001, 0.05))) == held


def test_a_loss_that_is_no_chance_is_rejected_and_one_that_may_be_is_held() -> None:
    assert outcome(figures(bootstrap=bootstrap(-0.05, 0.0))) == ("REJECT", {"accuracy"})
    assert outcome(figures(bootstrap=bootstrap(-0.05, 0.0), mcnemar={"p": 0.2})) == ("HOLD", {"accuracy"})


def test_where_not_worse_is_enough_the_interval_has_to_show_it() -> None:
    nearly = {"bootstrap": bootstrap(-0.004, 0.004), "mcnemar": {"p": 1.0}}
    assert outcome(figures(**nearly), require="not_worse", margin=0.005) == ("PROMOTE", set())
    assert outcome(figures(**nearly), require="not_worse", margin=0.003) == ("HOLD", {"accuracy"})
    assert outcome(figures(**nearly)) == ("HOLD", {"accuracy"})


def test_the_live_bundle_itself_is_held() -> None:
    assert outcome(figures(same_bundle=True)) == ("HOLD", {"identity"})


def test_without_a_live_bundle_floors_and_bounds_count_alone() -> None:
    first = {key: value for key, value in figures().items() if key in ("majority_share", "candidate", "domains")}
    first |= {"live": None, "behaviour": {}}
    assert outcome(first) == ("PROMOTE", set())
    assert outcome(first, floor=0.95, max_ece=0.01) == ("REJECT", {"floors", "calibration"})


def test_the_reasons_are_those_of_the_decision() -> None:
    checks = judge(figures(size={"ratio": 3.0}, mcnemar={"p": 0.3}), Limits())
    assert [reason.split(":")[0] for reason in reasons(decide(checks), checks)] == ["size"]
    promoted = judge(figures(), Limits())
    assert "accuracy: +5.00" in reasons(decide(promoted), promoted)[0]
