"""How many replicas, cores and gigabytes a load takes, from what `scaling.py` measured last.

    python benchmarks/capacity.py --rate 100 --characters 40 [--utilisation 0.6] [--cores 1] [--price 0.04]
    python benchmarks/capacity.py --texts 1e9 --hours 8 --characters 40
    python benchmarks/capacity.py --write      # the worked plans into docs/capacity.md

Reads benchmarks/results/scaling.json, or --results of a run on the machine that you will buy: another processor may be
several times as fast. The price is yours, per core and hour; without one cores and core hours are told.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from growth import LENGTHS, LISTS

RESULTS = Path(__file__).parent / "results" / "scaling.json"
PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
# Requests come in bunches: at 60 % of what a queue can do, waits are about as long as the work itself.
UTILISATION = 0.6
FEWEST_REPLICAS = 2  # one can be replaced while the other answers
SHORT = 40  # characters of the texts in the measurement of lists


@dataclass(frozen=True)
class Measured:
    """What one core does.

    Args:
        seconds: of one core for a text, by its number of characters, ascending.
        list_gain: how many times as many texts come through in lists of 256 as one a request.
        resident_mb: memory of a replica with one core; a second core adds `more_mb`.
    """

    seconds: tuple[tuple[int, float], ...]
    list_gain: float
    resident_mb: float
    more_mb: float

    def seconds_for(self, characters: float) -> float:
        """Between the measured lengths on a straight line in logarithms; beyond them as the nearest."""
        if characters <= self.seconds[0][0]:
            return self.seconds[0][1]
        for (low, fast), (high, slow) in pairwise(self.seconds):
            if characters <= high:
                share = math.log(characters / low) / math.log(high / low)
                return float(fast * (slow / fast) ** share)
        return self.seconds[-1][1]


@dataclass(frozen=True)
class Plan:
    """What a load takes. `core_hours`: of a night's work, or of an hour's service."""

    replicas: int
    cores: int
    memory_gb: float
    core_hours: float


def read(path: Path) -> tuple[list[str], Measured]:
    """The machine, and what was measured on it.

    Raises:
        SystemExit: there is no such file.
    """
    if not path.exists():
        raise SystemExit(f"{path}: not there; `python benchmarks/scaling.py --write` measures it")
    found = json.loads(path.read_text(encoding="utf-8"))
    by_length = _texts_s(found["points"], LENGTHS)
    lists = dict(_texts_s(found["points"], LISTS))
    figures = found["figures"]
    one = figures["resident_mb"]
    measured = Measured(
        seconds=tuple((length, 1 / rate) for length, rate in by_length),
        list_gain=lists[256] / dict(by_length)[SHORT],
        resident_mb=one,
        more_mb=figures.get("resident_mb_2_cores", one) - one,
    )
    return found["head"], measured


def _texts_s(points: Sequence[dict[str, Any]], panel: str) -> list[tuple[int, float]]:
    return sorted((p["place"], p["figures"]["requests_s"] * p["size"]) for p in points if p["panel"] == panel)


def online(measured: Measured, rate: float, characters: float, utilisation: float, cores: int) -> Plan:
    """Texts a second, one a request, with replicas of `cores` cores each."""
    needed = rate * measured.seconds_for(characters) / utilisation
    replicas = max(FEWEST_REPLICAS, math.ceil(needed / cores))
    return Plan(replicas, replicas * cores, _memory_gb(measured, replicas, cores), float(replicas * cores))


def offline(measured: Measured, texts: float, hours: float, characters: float, cores: int) -> Plan:
    """So many texts in so many hours, in lists or by `lengnuan-classify`; nothing is kept in reserve."""
    core_hours = texts * measured.seconds_for(characters) / max(1.0, measured.list_gain) / 3600
    replicas = math.ceil(core_hours / hours / cores)
    return Plan(replicas, replicas * cores, _memory_gb(measured, replicas, cores), core_hours)


def _memory_gb(measured: Measured, replicas: int, cores: int) -> float:
    return replicas * (measured.resident_mb + (cores - 1) * measured.more_mb) / 1024


def rows(plans: Sequence[tuple[str, Plan]], price: float | None) -> Iterator[str]:
    """A table in Markdown."""
    yield "| load | replicas | cores | memory GB | core hours |" + (" cost |" if price is not None else "")
    yield "|---|---|---|---|---|" + ("---|" if price is not None else "")
    for name, plan in plans:
        cost = f" {plan.core_hours * price:,.2f} |" if price is not None else ""
        hours = f"{plan.core_hours:,.0f}"
        yield f"| {name} | {plan.replicas:,} | {plan.cores:,} | {plan.memory_gb:,.1f} | {hours} |{cost}"


def worked(head: Sequence[str], measured: Measured) -> str:
    """The plans of docs/capacity.md."""
    plans = [
        (f"{rate:,} requests/s, {characters} characters, an hour", online(measured, rate, characters, UTILISATION, 1))
        for rate in (1, 100, 10_000)
        for characters in (40, 160)
    ]
    night = [
        (f"1,000,000,000 texts of {characters} characters in 8 hours", offline(measured, 1e9, 8, characters, 2))
        for characters in (40, 160)
    ]
    lengths = ", ".join(f"{length}: {1e3 * seconds:.1f}" for length, seconds in measured.seconds)
    return "\n".join(
        [
            f"Measured on {head[0].splitlines()[0]}, {head[1]}.",
            f"One core, milliseconds a text by its characters: {lengths}. In lists {measured.list_gain:.2f} times as "
            f"many. A replica with one core keeps {measured.resident_mb:.0f} MB, a second core adds "
            f"{measured.more_mb:.0f}.",
            "",
            *rows(plans, None),
            "",
            *rows(night, None),
        ]
    )


def main() -> None:
    """Print the plan for one load, or write the worked ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--rate", type=float, help="requests a second, one text each")
    load.add_argument("--texts", type=float, help="texts to be done offline")
    load.add_argument("--write", action="store_true", help=f"the worked plans into {PAGE.name}")
    parser.add_argument("--hours", type=float, default=8.0, help="in which --texts are to be done")
    parser.add_argument("--characters", type=float, default=40.0, help="of a text, on average")
    parser.add_argument("--utilisation", type=float, default=UTILISATION, help="share of the capacity to be used")
    parser.add_argument("--cores", type=int, default=1, help="of a replica")
    parser.add_argument("--price", type=float, help="of a core for an hour")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not 0 < arguments.utilisation <= 1 or min(arguments.hours, arguments.characters, arguments.cores) <= 0:
        parser.error("--utilisation is between 0 and 1; hours, characters and cores are above 0")
    head, measured = read(arguments.results)
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{worked(head, measured)}\n{END}{after}", encoding="utf-8")
        return
    if arguments.rate is not None:
        plan = online(measured, arguments.rate, arguments.characters, arguments.utilisation, arguments.cores)
        name = f"{arguments.rate:g} requests/s, an hour"
    else:
        plan = offline(measured, arguments.texts, arguments.hours, arguments.characters, arguments.cores)
        name = f"{arguments.texts:g} texts in {arguments.hours:g} hours"
    sys.stdout.write("\n".join([*head, "", *rows([(name, plan)], arguments.price), ""]))


if __name__ == "__main__":
    main()
