"""What `scaling.py` found: tables, a picture of a panel each, and the goals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goals import Goal, lines

CORES, LENGTHS, CLIENTS, LISTS, DEPTHS = PANELS = (
    *("cores", "characters a text", "clients", "texts a request"),
    "texts that wait",
)


@dataclass(frozen=True)
class Point:
    """One load.

    Args:
        panel: what grows; one of `PANELS`.
        place: how far.
        size: texts a request.
        figures: medians of requests_s, p50_ms, p99_ms, errors; over `DEPTHS` also of loop_us, the microseconds of the
            event loop for a text.
    """

    panel: str
    place: int
    size: int
    figures: Mapping[str, float]

    @property
    def texts_s(self) -> float:
        """Texts a second."""
        return self.size * self.figures["requests_s"]


def panel_of(points: Sequence[Point], panel: str) -> list[Point]:
    """Its points, the smallest work first."""
    return sorted((point for point in points if point.panel == panel), key=lambda point: point.place)


def drop(points: Sequence[Point]) -> float:
    """The lowest throughput over the highest with less work: 1 where it never falls."""
    rates = [point.texts_s for point in points]
    return min((rate / max(rates[:place]) for place, rate in enumerate(rates) if place), default=1.0)


def goals(points: Sequence[Point], figures: Mapping[str, float]) -> list[Goal]:
    """What is wanted of the service by itself, and what was found; each a ratio that is to be as large as the aim."""
    one = {(point.panel, point.place): point for point in points}
    lone, many, lists = one[CLIENTS, 1], one[CLIENTS, 64], one[LISTS, 32]
    direct = figures.get("direct_p50_ms")
    near = None if direct is None else (direct + 1.0) / lone.figures["p50_ms"]
    cores = panel_of(points, CORES)
    return [
        Goal("64 clients: texts/s over those of the engine alone", 0.9, 0.85, many.texts_s / figures["engine_texts_s"]),
        Goal("1 client: 1 ms more than without batching, over the median", 1.0, 1.0, near),
        Goal("32 texts a request, one core: texts/s over 1,500 (AMX)", 1.0, 0.67, lists.texts_s / 1500),
        Goal("2 s over the time from start to first answer", 1.0, 1.0, 2 / figures["start_s"]),
        Goal("350 MB over what is resident on one core", 1.0, 1.0, 350 / figures["resident_mb"]),
        Goal(f"{cores[-1].place} cores: texts/s over those of one", 1.5, 1.2, cores[-1].texts_s / cores[0].texts_s),
        Goal("clients: lowest throughput over the highest with fewer", 0.9, 0.8, drop(panel_of(points, CLIENTS))),
        Goal("texts a request: the same", 0.9, 0.8, drop(panel_of(points, LISTS))),
        Goal("texts that wait: the same", 0.9, 0.8, drop(panel_of(points, DEPTHS))),
    ]


def tables(points: Sequence[Point], figures: Mapping[str, float], wanted: Sequence[Goal]) -> Iterator[str]:
    """Everything, as lines for a terminal."""
    for panel in PANELS:
        yield ""
        head = f"{panel:>18}{'requests/s':>12}{'texts/s':>9}{'ms a text':>11}{'p50 ms':>9}{'p99 ms':>9}{'errors':>8}"
        yield head + (f"{'loop us':>9}" if panel == DEPTHS else "")
        for point in panel_of(points, panel):
            row = point.figures
            speeds = f"{row['requests_s']:12.1f}{point.texts_s:9.0f}{1e3 / point.texts_s:11.2f}"
            loop = f"{row['loop_us']:9.0f}" if panel == DEPTHS else ""
            yield f"{point.place:18d}{speeds}{row['p50_ms']:9.1f}{row['p99_ms']:9.1f}{row['errors']:8.0f}{loop}"
    yield ""
    for name, figure in figures.items():
        yield f"{name:30}{figure:10.1f}"
    yield ""
    yield from lines(wanted)


def plot(points: Sequence[Point], path: Path) -> None:
    """Texts a second, and the median latency, over each kind of work; an SVG file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A fixed salt and no date: the same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": "lengnuan", "svg.fonttype": "none"}):
        figure = Figure((9.0, 9.3), layout="constrained")
        panels = figure.subplots(3, 2).flat
        for axes in panels[len(PANELS) :]:
            axes.set_axis_off()
        for axes, panel in zip(panels, PANELS, strict=False):
            part = panel_of(points, panel)
            places = [point.place for point in part]
            axes.plot(places, [point.texts_s for point in part], marker="o", color="#1f6f8b")
            # Logarithmic, but for a zero, which stands one step before the smallest.
            axes.set_xscale("symlog", base=2, linthresh=min(place for place in places if place))
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_xlabel(panel)
            axes.set_ylabel("texts/s", color="#1f6f8b")
            latency = axes.twinx()
            latency.plot(places, [point.figures["p50_ms"] for point in part], marker=".", color="#c8553d", linewidth=1)
            latency.set_ylim(bottom=0)
            latency.set_ylabel("p50 ms", color="#c8553d")
            axes.grid(alpha=0.3)
        figure.savefig(path, format="svg", metadata={"Date": None})
