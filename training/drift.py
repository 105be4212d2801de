"""Whether recent texts, or the answers to them, still look like those of the training time.

Each signal is a distribution; its distance is the Jensen-Shannon divergence in bits. It is drift when the distance is
above what matters (`ALARM`) plus what so few rows reach by chance, so a handful of texts never alarms on its luck and a
million don't alarm over nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from lengnuan.training.reference import HISTOGRAMS, Reference
from lengnuan.training.sketch import chance_at, divergence_bits

# For the histograms: a population stability index of 0.25, where credit scoring by custom calls a shift major (Siddiqi
# 2006), is about 0.25 / (8 ln 2) bits. Two labels that were even are over it from 75 to 25 on. For the sketch: what two
# public sets of different kinds are apart where they are nearest (docs/drift.md).
ALARM = dict.fromkeys(HISTOGRAMS, 0.045) | {"ngrams": 0.02}
CHANCE = 0.001  # that a histogram of the same distribution is above its allowance


@dataclass(frozen=True)
class Signal:
    """What one signal says.

    Args:
        distance: in bits; None where the reference does not have the signal.
        threshold: above it there is drift: `chance` and `ALARM` together.
        chance: what so few rows reach by chance.
        shares: by bin, (share in the reference, share now); none for the sketch.
    """

    name: str
    distance: float | None
    threshold: float
    chance: float
    shares: dict[str, tuple[float, float]]

    @property
    def drifted(self) -> bool:
        """True when the distance is above its threshold."""
        return self.distance is not None and self.distance > self.threshold

    @property
    def verdict(self) -> str:
        """In words."""
        return "can't be judged" if self.distance is None else "DRIFT" if self.drifted else "no drift"


@dataclass(frozen=True)
class Drift:
    """All signals; `rows`: recent texts, `distinct`: without repeats, which say nothing new about chance."""

    rows: int
    distinct: int
    reference_rows: int
    signals: tuple[Signal, ...]

    @property
    def drifted(self) -> list[str]:
        """Names of the signals that have."""
        return [signal.name for signal in self.signals if signal.drifted]

    @property
    def not_judged(self) -> list[str]:
        """Names of the signals that the reference does not have."""
        return [signal.name for signal in self.signals if signal.distance is None]

    def facts(self) -> dict[str, Any]:
        """For programs."""
        signals = {signal.name: asdict(signal) | {"verdict": signal.verdict} for signal in self.signals}
        for facts in signals.values():
            del facts["name"]
        return {
            **{"rows": self.rows, "distinct_rows": self.distinct, "reference_rows": self.reference_rows},
            **{"drift": bool(self.drifted), "drifted": self.drifted, "not_judged": self.not_judged},
            "signals": signals,
        }


def compare(reference: Reference, recent: Reference, distinct: int) -> Drift:
    """Signal by signal; `distinct`: how many different texts there are among the recent ones."""
    signals = [
        _histogram(name, reference.counts.get(name, {}), recent.counts[name], distinct / recent.rows)
        for name in HISTOGRAMS
    ]
    return Drift(recent.rows, distinct, reference.rows, (*signals, _neighbours(reference, recent, distinct)))


def _histogram(name: str, before: Mapping[str, int], now: Mapping[str, int], distinct_share: float) -> Signal:
    """Two histograms.

    For samples of n and m rows of one distribution over K bins, the divergence times 8 ln 2 / (1 / n + 1 / m) is about
    chi-squared with K - 1 degrees of freedom: to second order it is the chi-squared statistic of the two.
    """
    bins = sorted(before.keys() | now.keys(), key=str if name == "labels" else _bound)
    counts = np.array([[side.get(key, 0) for key in bins] for side in (before, now)], dtype=np.float64)
    rows = counts.sum(axis=1)
    if not rows.all():
        return Signal(name, None, 1.0, 1.0, {})
    old, new = counts / rows[:, None]
    spread = 1.0 / rows[0] + 1.0 / (rows[1] * distinct_share)
    chance = float(chi2.ppf(1.0 - CHANCE, max(1, len(bins) - 1))) * spread / (8.0 * np.log(2.0))
    shares = {key: (float(a), float(b)) for key, a, b in zip(bins, old, new, strict=True)}
    return Signal(name, float(divergence_bits(old, new)), ALARM[name] + chance, chance, shares)


def _neighbours(reference: Reference, recent: Reference, distinct: int) -> Signal:
    before, now = reference.ngrams, recent.ngrams
    if before is None or now is None:
        return Signal("ngrams", None, 1.0, 1.0, {})
    chance = chance_at(before.chance, distinct, before.rows)
    distance = float(divergence_bits(np.array(before.shares), np.array(now.shares)))
    return Signal("ngrams", distance, ALARM["ngrams"] + chance, chance, {})


def _bound(key: str) -> tuple[float, str]:
    """Bins by their number; `>0.5` comes after `<=0.5`."""
    return float(key.lstrip("<=>")), key


def table(drift: Drift) -> str:
    """Lines of text: each signal, and where its shares moved most."""
    lines = [
        f"{drift.rows:,} recent texts ({drift.distinct:,} different) against {drift.reference_rows:,}",
        f"{'signal':12}{'distance':>10}{'threshold':>11}{'by chance':>11}  verdict",
    ]
    for signal in drift.signals:
        if signal.distance is None:
            lines.append(f"{signal.name:12}{'':>32}  {signal.verdict}: the reference does not have it")
            continue
        figures = f"{signal.distance:10.4f}{signal.threshold:11.4f}{signal.chance:11.4f}"
        lines.append(f"{signal.name:12}{figures}  {signal.verdict}{_moved(signal)}")
    return "\n".join(lines) + "\n"


def _moved(signal: Signal) -> str:
    if not signal.drifted or not signal.shares:
        return ""
    key = max(signal.shares, key=lambda name: abs(signal.shares[name][1] - signal.shares[name][0]))
    before, now = signal.shares[key]
    return f": {key} from {100 * before:.1f} to {100 * now:.1f} % of the rows"
