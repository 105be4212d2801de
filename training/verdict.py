"""PROMOTE, HOLD or REJECT: what a comparison's figures say under stated limits (docs/promotion.md).

REJECT: something is worse than its limit allows. HOLD: nothing is, but nothing shows that the candidate is better.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lengnuan.training.errors import UsageError

Outcome = Literal["ok", "hold", "reject"]
Decision = Literal["PROMOTE", "HOLD", "REJECT"]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Ratio = Annotated[float, Field(gt=0.0)]


class Limits(BaseModel):
    """What a candidate must keep to. Shares, not percentage points: 0.03 is three points."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    require: Literal["better", "not_worse"] = "better"  # not_worse: no more than `margin` worse, shown by the interval
    margin: _Share = 0.005
    significance: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05  # McNemar's p below this is no chance
    floor: _Share = 0.0  # accuracy that every domain must reach
    floors: dict[str, _Share] = {}  # the same for single domains, in place of `floor`
    max_domain_loss: _Share = 0.01  # accuracy that a domain may lose; counted where the loss is no chance
    max_ece: _Share = 0.1
    max_ece_increase: _Share = 0.02  # over the live bundle's, on the same rows
    max_behaviour_loss: _Share = 0.03  # in any category of the behaviour file
    max_negative_flip_share: _Share = 0.05  # of the rows that the live bundle gets right
    max_size_ratio: _Ratio = 2.0  # of what serving loads
    max_time_ratio: _Ratio = 1.5  # of the processor time a text
    bootstrap_rounds: Annotated[int, Field(ge=100)] = 2000
    timing_rounds: Annotated[int, Field(ge=1)] = 3
    seed: Annotated[int, Field(ge=0)] = 0

    def floor_of(self, domain: str) -> float:
        """The accuracy that this domain must reach."""
        return self.floors.get(domain, self.floor)


@dataclass(frozen=True)
class Check:
    """One question that was asked, and its answer for a person to read."""

    name: str
    outcome: Outcome
    detail: str

    def facts(self) -> dict[str, str]:
        """For decision.json."""
        return asdict(self)


def decide(checks: Sequence[Check]) -> Decision:
    """The worst outcome counts."""
    outcomes = {check.outcome for check in checks}
    return "REJECT" if "reject" in outcomes else "HOLD" if "hold" in outcomes else "PROMOTE"


def reasons(decision: Decision, checks: Sequence[Check]) -> list[str]:
    """Why it is not PROMOTE; or, if it is, what speaks for it."""
    wanted = {"PROMOTE": "ok", "HOLD": "hold", "REJECT": "reject"}[decision]
    return [f"{check.name}: {check.detail}" for check in checks if check.outcome == wanted]


def judge(figures: Mapping[str, Any], limits: Limits) -> list[Check]:
    """Every check that the figures allow; without a live bundle those that need none.

    Args:
        figures: of `training/compare.py`.
        limits: what is asked.

    Raises:
        UsageError: `floors` names a domain that has no row, so that its limit would never be looked at.
    """
    unknown = sorted(limits.floors.keys() - figures["domains"].keys())
    if unknown:
        raise UsageError(f"floors: no row is of {', '.join(unknown)}; the domains are {', '.join(figures['domains'])}")
    checks = [_learnt(figures), _floors(figures, limits)]
    if not figures["live"]:
        return [*checks, _bound("calibration", figures["candidate"]["ece"], limits.max_ece, "ECE")]
    return [
        *([_same(figures)] if figures["same_bundle"] else []),
        _accuracy(figures, limits),
        _macro_f1(figures, limits),
        *checks,
        _domains(figures, limits),
        _calibration(figures, limits),
        *([_behaviour(figures, limits)] if figures["behaviour"] else []),
        _bound("churn", figures["churn"]["negative_flip_share"], limits.max_negative_flip_share, _FLIPS),
        _bound("size", figures["size"]["ratio"], limits.max_size_ratio, "size over the live one's"),
        _bound("speed", figures["time"]["ratio"], limits.max_time_ratio, "processor time over the live one's"),
    ]


_FLIPS = "of the rows that the live one gets right are wrong now:"


def _same(figures: Mapping[str, Any]) -> Check:
    return Check("identity", "hold", f"candidate and live are one bundle, {figures['candidate']['version']}")


def _learnt(figures: Mapping[str, Any]) -> Check:
    accuracy, guessing = figures["candidate"]["accuracy"], figures["majority_share"]
    detail = f"accuracy {_percent(accuracy)}, the most frequent class alone {_percent(guessing)}"
    return Check("learnt", "ok" if accuracy > guessing else "reject", detail)


def _accuracy(figures: Mapping[str, Any], limits: Limits) -> Check:
    """Both tests must agree that it is better, or the interval that it is hardly worse."""
    found, p = figures["bootstrap"]["accuracy"], figures["mcnemar"]["p"]
    low, high = found["interval"]
    certain = p < limits.significance
    detail = f"{_points(found['difference'])} (95 % {_points(low)} to {_points(high)}), McNemar p = {p:.3g}"
    if limits.require == "not_worse" and low >= -limits.margin:
        return Check("accuracy", "ok", f"{detail}: no more than {100 * limits.margin:.2f} points worse")
    if certain and found["difference"] < 0.0:
        return Check("accuracy", "reject", f"{detail}: worse, and no chance")
    if limits.require == "better" and certain and low > 0.0:
        return Check("accuracy", "ok", f"{detail}: better, and no chance")
    wanted = "that it is better" if limits.require == "better" else f"a loss below {100 * limits.margin:.2f} points"
    return Check("accuracy", "hold", f"{detail}: these rows don't show {wanted}")


def _macro_f1(figures: Mapping[str, Any], limits: Limits) -> Check:
    found = figures["bootstrap"]["macro_f1"]
    low, high = found["interval"]
    allowed = limits.margin if limits.require == "not_worse" else 0.0
    detail = f"{_points(found['difference'])} (95 % {_points(low)} to {_points(high)})"
    return Check("macro-F1", "reject" if high < -allowed else "ok", detail)


def _floors(figures: Mapping[str, Any], limits: Limits) -> Check:
    below = [
        f"{name} {_percent(part['candidate'])} (floor {_percent(limits.floor_of(name))})"
        for name, part in figures["domains"].items()
        if part["candidate"] < limits.floor_of(name)
    ]
    return Check("floors", "reject" if below else "ok", "; ".join(below) or "every domain is at its floor or above")


def _domains(figures: Mapping[str, Any], limits: Limits) -> Check:
    lost = [
        f"{name} {_points(part['candidate'] - part['live'])}, p = {part['p']:.3g}"
        for name, part in figures["domains"].items()
        if part["live"] - part["candidate"] > limits.max_domain_loss and part["p"] < limits.significance
    ]
    fine = f"no domain is shown to lose more than {100 * limits.max_domain_loss:.2f} points"
    return Check("domains", "reject" if lost else "ok", "; ".join(lost) or fine)


def _calibration(figures: Mapping[str, Any], limits: Limits) -> Check:
    candidate, live = figures["candidate"]["ece"], figures["live"]["ece"]
    bound = min(limits.max_ece, live + limits.max_ece_increase)
    return _bound("calibration", candidate, bound, f"ECE (live {live:.3f})")


def _behaviour(figures: Mapping[str, Any], limits: Limits) -> Check:
    lost = [
        f"{name} {part['candidate']} of {part['rows']} right, live {part['live']}"
        for name, part in figures["behaviour"].items()
        if (part["live"] - part["candidate"]) / part["rows"] > limits.max_behaviour_loss
    ]
    fine = f"no category loses more than {100 * limits.max_behaviour_loss:.2f} points"
    return Check("behaviour", "reject" if lost else "ok", "; ".join(lost) or fine)


def _bound(name: str, value: float, limit: float, what: str) -> Check:
    return Check(name, "ok" if value <= limit else "reject", f"{what} {value:.3f}, limit {limit:.3f}")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _points(share: float) -> str:
    return f"{100 * share:+.2f}" if share else "0.00"


def table(facts: Mapping[str, Any]) -> str:
    """decision.json as lines of text."""
    figures, live = facts["figures"], facts["live"]
    versions = f"{facts['candidate']['version']:>14}{live['version'] if live else 'none':>14}"
    lines = [f"{'':32}{'rows':>7}{'candidate':>14}{'live':>14}{'difference':>12}", f"{'bundle':39}{versions}"]
    for name in ("accuracy", "macro_f1"):
        lines.append(_line(name.replace("_f1", "-F1"), facts["data"]["rows"], *_both(figures, name)))
    lines += [_line(f"  {name}", part["rows"], part["candidate"], part.get("live"))
              for name, part in figures["domains"].items()]  # fmt: skip
    for name, part in figures["behaviour"].items():
        shares = {who: part[who] / part["rows"] for who in ("candidate", "live") if who in part}
        lines.append(_line(f"  {name} (behaviour)", part["rows"], shares["candidate"], shares.get("live")))
    lines += [f"{check['outcome']:>7}  {check['name']}: {check['detail']}" for check in facts["checks"]]
    return "\n".join([*lines, facts["decision"]]) + "\n"


def _both(figures: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    return figures["candidate"][name], figures["live"][name] if figures["live"] else None


def _line(name: str, rows: int, candidate: float, live: float | None) -> str:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in name)  # each as wide as two letters
    line = f"{name:{max(1, 32 - wide)}}{rows:7d}{_percent(candidate):>14}"
    return line if live is None else f"{line}{_percent(live):>14}{_points(candidate - live):>12}"
