"""Figures as a person reads them, the same in the report and on the model card."""

from collections.abc import Mapping
from typing import Any

SCORE_HEAD = ("rows", "accuracy %", "95 % interval", "macro-F1 %", "ECE", "ECE by chance")


def verdict(figures: Mapping[str, Any]) -> str:
    """One sentence: is the network worth having over the referee?"""
    if not figures["margin_over_referee"]:
        dev = figures["training"]["dev_accuracy_of_bundle"]
        return (
            f"No test rows. Dev accuracy {100 * dev:.2f} %, n-grams {100 * figures['referee']['dev_accuracy']:.2f} %."
        )
    found = figures["margin_over_referee"]["mean"]
    low, high = (100 * bound for bound in found["interval"])
    kind = "above" if low > 0 else "below" if high < 0 else "not distinguishable from"
    mean = 100 * figures["test"]["mean"]["accuracy"]
    return (
        f"Mean test accuracy {mean:.2f} %, {100 * found['margin']:+.2f} points against the n-gram referee "
        f"(95 % interval {low:+.2f} to {high:+.2f}): {kind} it."
    )


def score_cells(found: Mapping[str, Any]) -> list[str]:
    """One a column of `SCORE_HEAD`; the last is what a perfectly calibrated model stays under 19 times in 20."""
    accuracy = [percent(found["accuracy"]), span(found["accuracy_interval"])]
    return [
        f"{found['rows']:,}",
        *accuracy,
        percent(found["macro_f1"]),
        f"{found['ece']:.3f}",
        f"{found['ece_by_chance']:.3f}",
    ]


def percent(share: float) -> str:
    """A share as percent, with two decimals and no sign."""
    return f"{100 * share:.2f}"


def span(bounds: tuple[float, float], *, signed: bool = False) -> str:
    """Two shares as percent."""
    low, high = bounds
    return f"{100 * low:+.2f} to {100 * high:+.2f}" if signed else f"{100 * low:.2f}–{100 * high:.2f}"
