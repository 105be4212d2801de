"""What the rounds of `against_peers.py` come to: medians, ratios, goals, a table and a picture."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from goals import Goal, lines

OURS = "Lengnuan"
ASSEMBLY = "mosec + OpenVINO"
CLIENTS = {"1 client": 1, "16 clients": 16, "64 clients": 64, "256 clients": 256}
LISTS = "8 clients x 32 texts"
MIXED = "64 clients, mixed lengths"

# Cells[load][server] = the figures of each round, in the same order for all servers.
Cells = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each figure's median over the rounds; errors are added up."""
    found = {key: statistics.median(figures[key] for figures in rounds) for key in ("requests_s", "p50_ms", "p99_ms")}
    return found | {"errors": sum(figures["errors"] for figures in rounds)}


def ratio(cells: Cells, load: str, key: str, pair: tuple[str, str]) -> float | None:
    """The median of the rounds' own ratios of the first server to the second; None where one is missing."""
    over, under = (cells[load].get(name, ()) for name in pair)
    found = [first[key] / second[key] for first, second in zip(over, under, strict=False) if second[key]]
    return statistics.median(found) if found else None


def best_product(cells: Cells, load: str, products: Sequence[str]) -> str | None:
    """The product with the highest median of requests a second."""
    found = {name: medians(rounds)["requests_s"] for name, rounds in cells[load].items() if name in products}
    return max(found, key=lambda name: found[name], default=None)


def goals(cells: Cells, products: Sequence[str]) -> list[Goal]:
    """All that is wanted of Lengnuan against the others, and what was found."""
    found = []
    for load in ("16 clients", "64 clients", "256 clients", MIXED):
        best = best_product(cells, load, products)
        figure = ratio(cells, load, "requests_s", (OURS, best)) if best else None
        aim, least = (4.0, 4.0) if load == MIXED else (2.0, 1.5)
        found.append(Goal(f"{load}: requests/s over the best product ({best})", aim, least, figure))
    for load in CLIENTS:
        aim, least = (1.0, 1.0) if load == "1 client" else (1.3, 1.1)
        figure = ratio(cells, load, "requests_s", (OURS, ASSEMBLY))
        found.append(Goal(f"{load}: requests/s over {ASSEMBLY}", aim, least, figure))
    for load in CLIENTS:
        figure = ratio(cells, load, "p99_ms", (ASSEMBLY, OURS))
        found.append(Goal(f"{load}: p99 of {ASSEMBLY} over Lengnuan's", 1.0, 1.0, figure))
    return found


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """Everything, as lines for a terminal."""
    servers: Mapping[str, Any] = results["servers"]
    checks = f"{'checked':>9}{'outside':>9}{'largest':>10}"
    yield f"{'':20}{'precision':>11}{'memory MB':>11}{'start s':>9}{checks}  versions"
    for name, facts in servers.items():
        start = f"{name:20}{facts['precision']:>11}{facts['resident_mb']:11.0f}{facts['start_s']:9.1f}"
        checks = f"{facts['checked']:9d}{facts['outside']:9d}{facts['largest_difference']:10.1e}"
        yield f"{start}{checks}  {facts['versions']}"
    for load, rounds in results["cells"].items():
        yield ""
        yield f"{load:26}{'requests/s':>12}{'texts/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'errors':>8}{'Lengnuan is':>13}"
        for name, figures in rounds.items():
            row = medians(figures)
            factor = ratio(results["cells"], load, "requests_s", (OURS, name))
            times = f"{factor:.2f} x" if factor is not None and name != OURS else ""
            texts = row["requests_s"] * results["texts_a_request"][load]
            speeds = f"{row['requests_s']:12.1f}{texts:9.0f}{row['p50_ms']:9.1f}{row['p99_ms']:9.1f}"
            yield f"  {name:24}{speeds}{row['errors']:8.0f}{times:>13}".rstrip()
    yield ""
    yield from lines(Goal(goal["name"], goal["aim"], goal["least"], goal["figure"]) for goal in results["goals"])


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Requests a second over clients, a line a server, the rounds' range around it; an SVG file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A fixed salt and no date: the same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": "lengnuan", "svg.fonttype": "none"}):
        figure = Figure((7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, facts in results["servers"].items():
            rounds = {clients: results["cells"][load].get(name, []) for load, clients in CLIENTS.items()}
            found = [(clients, [part["requests_s"] for part in parts]) for clients, parts in rounds.items() if parts]
            clients = [place for place, _ in found]
            style: dict[str, Any] = {"linewidth": 2.5, "color": "#1f6f8b"} if name == OURS else {"linewidth": 1.2}
            label = f"{name}, {facts['precision']}"
            (line,) = axes.plot(clients, [statistics.median(r) for _, r in found], marker="o", label=label, **style)
            low, high = ([edge(r) for _, r in found] for edge in (min, max))
            axes.fill_between(clients, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(CLIENTS.values()), [str(clients) for clients in CLIENTS.values()])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("clients, one text a request")
        axes.set_ylabel("requests/s, one core")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})
