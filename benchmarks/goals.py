"""What the benchmarks aim at, and whether it was reached.

    python benchmarks/goals.py

prints every goal in benchmarks/results/*.json: what was found when each was last written, on the machine that it names.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Goal:
    """A ratio that is wanted.

    Args:
        name: of what, where.
        aim: what is wanted.
        least: what has to be.
        figure: what was found; None: not measured.
    """

    name: str
    aim: float
    least: float
    figure: float | None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.figure is None:
            return "not measured"
        return "met" if self.figure >= self.aim else "at the least" if self.figure >= self.least else "not met"

    def told(self) -> dict[str, object]:
        """As it is kept in a file."""
        return asdict(self) | {"verdict": self.verdict}


def lines(goals: Iterable[Goal]) -> Iterator[str]:
    """A table."""
    yield f"{'goal':76}{'aim':>6}{'least':>7}{'found':>8}"
    for goal in goals:
        figure = "" if goal.figure is None else f"{goal.figure:.2f}"
        yield f"{goal.name:76}{goal.aim:6.2f}{goal.least:7.2f}{figure:>8}  {goal.verdict}"


def main() -> None:
    """Print those of every file."""
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "goals" in found:
            goals = [Goal(entry["name"], entry["aim"], entry["least"], entry["figure"]) for entry in found["goals"]]
            print("\n".join([f"{path.name}: {found['head'][0].splitlines()[0]}", *lines(goals), ""]))


if __name__ == "__main__":
    main()
