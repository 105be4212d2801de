"""What trainings that differ by their seed alone have scored on dev, and how a report says it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SEEDS = "seeds.json"  # in a run folder: the figures below


def spread(scores: Sequence[float]) -> dict[str, float]:
    """Mean, sample standard deviation (0 for a single score) and the least of them."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return {"mean": statistics.fmean(scores), "sd": deviation, "min": min(scores)}


def seed_figures(
    metric: str, scores: Mapping[int, float], sources: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """The content of seeds.json.

    Args:
        metric: what the scores are, such as accuracy.
        scores: dev score by seed, the mean over the dev sources; the median one is kept, of an even number the lower
            of the two in the middle, of equal ones the one with the least seed.
        sources: by seed, the score of every dev source.
    """
    order = sorted(scores, key=lambda seed: (scores[seed], seed))
    by_source = {name: {seed: found[name] for seed, found in sources.items()} for name in next(iter(sources.values()))}
    return {
        "metric": metric,
        "median_seed": order[(len(order) - 1) // 2],
        **_of(scores),
        "sources": {name: _of(found) for name, found in by_source.items()},
    }


def _of(scores: Mapping[int, float]) -> dict[str, Any]:
    return {"scores": {str(seed): score for seed, score in scores.items()}, **spread(list(scores.values()))}


def read_seeds(run_folder: Path) -> dict[str, Any]:
    """The figures of a folder whose weights are those of the median seed; {} where one seed was trained."""
    file = run_folder / SEEDS
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def seeds_sentence(figures: Mapping[str, Any]) -> str:
    """What the dev score depends on luck, in a sentence; nothing for one seed."""
    found = figures.get("seeds")
    if not found:
        return ""
    mean, deviation, least = (f"{100 * found[key]:.2f}" for key in ("mean", "sd", "min"))
    return (
        f"Of {len(found['scores'])} seeds: dev {found['metric'].replace('_', '-')} {mean} % on average, standard "
        f"deviation {deviation} points, least {least} %. This is the median one, seed {found['median_seed']}."
    )


def seeds_table(figures: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: for each dev source, and the mean over them, the score of every seed and their spread."""
    found = figures["seeds"]
    rows = {**found["sources"], "mean of the sources": found}
    head = ["dev source", *(f"seed {seed} %" for seed in found["scores"]), "mean %", "sd", "least %"]
    cells = {name: [*row["scores"].values(), row["mean"], row["sd"], row["min"]] for name, row in rows.items()}
    return head, [[name, *(f"{100 * score:.2f}" for score in row)] for name, row in cells.items()]


def seeds_text(figures: Mapping[str, Any]) -> str:
    """The same as lines of text."""
    head, rows = seeds_table(figures)
    return "".join(
        f"{name[:24]:24}" + "".join(f"{cell:>10}" for cell in cells) + "\n" for name, *cells in [head, *rows]
    )
