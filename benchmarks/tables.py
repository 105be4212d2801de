"""The figures of quality.py as text: for a terminal and the READMEs, and for docs/quality.md."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

START = "<!-- quality:start (written by benchmarks/quality.py --write) -->"
END = "<!-- quality:end -->"
CLEAN = "clean rows"

Results = Mapping[str, Any]
Figures = Mapping[str, Any]


def short_table(results: Results) -> str:
    """Accuracy by test set, a column a system; then the means, the size and the speed."""
    systems = results["systems"]
    titles = [_title(system) for system in systems]
    widths = [max(9, len(title) + 2) for title in titles]
    # The first system's interval stands beside it: it is the one that the page is about.
    lines = [_line("", "rows", titles, "95 % interval", widths)]
    for name, figures in _with_clean_rows(results):
        found = [figures(system) for system in systems]
        accuracies = [_percent(part, "accuracy") for part in found]
        lines.append(_line(name, str(found[0]["rows"]), accuracies, _interval(found[0]), widths))
    for title, key, render in (
        ("mean accuracy", "accuracy", lambda value: f"{100 * value:.2f}"),
        ("mean macro-F1", "macro_f1", lambda value: f"{100 * value:.2f}"),
        ("mean ECE", "ece", lambda value: f"{value:.3f}"),
    ):
        lines.append(_line(title, "", [render(system["mean"][key]) for system in systems], "", widths))
    lines.append(_line("MB on disk", "", [_megabytes(system) for system in systems], "", widths))
    lines.append(_line("texts/s, one core", "", [_speed(system) for system in systems], "", widths))
    if "SnowNLP" in [system["name"] for system in systems]:
        lines.append("† trained by its makers on texts that are also in these test sets")
    return "\n".join(lines) + "\n"


def _line(name: str, rows: str, cells: Sequence[str], interval: str, widths: Sequence[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{name:20}{rows:>6}{first}{interval:>15}{''.join(others)}".rstrip()


def _title(system: Figures) -> str:
    return system["name"] + (" †" if "unseen" in system else "")


def _with_clean_rows(results: Results) -> list[tuple[str, Callable[[Figures], Figures]]]:
    """(name of the line, a system to its figures) for each test set and for its clean rows."""
    found: list[tuple[str, Callable[[Figures], Figures]]] = []
    for name in results["systems"][0]["sets"]:
        found.append((name, lambda system, name=name: system["sets"][name]))
        if "clean" in results["systems"][0]["sets"][name]:
            found.append((f"  {CLEAN}", lambda system, name=name: system["sets"][name]["clean"]))
    return found


def _percent(part: Figures, key: str) -> str:
    return f"{100 * part[key]:.2f}"


def _interval(part: Figures, key: str = "accuracy_interval") -> str:
    low, high = part[key]
    return f"{100 * low:.2f}-{100 * high:.2f}"


def _megabytes(system: Figures) -> str:
    return f"{system['bytes'] / 1e6:.1f}"


def _speed(system: Figures) -> str:
    return "–" if "from" in system else f"{system['texts_per_second']:,.0f}"


def long_tables(results: Results) -> str:
    """Everything, as Markdown, with what it was measured on."""
    systems = results["systems"]
    parts = [f"```\n{measured_on(results)}\n```\n", _overview(results), "Accuracy in %, with its 95 % interval:\n"]
    parts.append(_by_set(results, lambda part: f"{_percent(part, 'accuracy')}<br>({_interval(part)})"))
    parts += _unseen(systems)
    parts += ["Macro-F1 in %:\n", _by_set(results, lambda part: _percent(part, "macro_f1"))]
    parts += ["Expected calibration error:\n", _by_set(results, lambda part: f"{part['ece']:.3f}")]
    if "behaviour" in results:
        parts += ["Behaviour sentences, % right by category:\n", behaviour_table(results)]
    return "\n".join(parts)


def behaviour_table(results: Results) -> str:
    """Per cent of the sentences that each system gets right, by category, as Markdown."""
    systems, rows = results["systems"], results["behaviour"]
    lines = [
        [category, str(count), *(f"{100 * system['behaviour'][category] / count:.0f}" for system in systems)]
        for category, count in rows.items()
    ]
    total = sum(rows.values())
    lines.append(["all", str(total), *(f"{100 * sum(s['behaviour'].values()) / total:.1f}" for s in systems)])
    return _markdown(["category", "sentences", *map(_title, systems)], lines)


def measured_on(results: Results) -> str:
    """Hardware, releases, commit, rows."""
    speed = results["timing"]
    earlier: dict[str, list[str]] = {}
    for system in results["systems"]:
        if "from" in system:
            earlier.setdefault(system["from"], []).append(system["name"])
    timed = {system["name"]: system.get("timed_in") for system in results["systems"] if "from" not in system}
    engines = "".join(f", {name} in {engine}" for name, engine in timed.items() if engine)
    others = "".join(
        f"\n{', '.join(names)}: answers of an earlier run, whose speeds say nothing here:\n{machine}"
        for machine, names in earlier.items()
    )
    return (
        f"{results['machine']}\n{results['packages']}\n"
        f"{results['train_rows']:,} training rows; speed: one thread, {speed['texts']:,} texts of "
        f"{speed['characters']:.0f} characters on average, load of the machine before the run {speed['load']:.1f}"
        f"{engines}"
        f"{others}"
    )


def _overview(results: Results) -> str:
    head = [
        "",
        "accuracy, mean of the sets",
        "above n-grams, points (95 % interval)",
        "macro-F1",
        "ECE",
        "MB",
        "texts/s",
    ]
    head += ["trained for, CPU s", "chosen on dev, or version"]
    lines = []
    for system in results["systems"]:
        mean, margin = system["mean"], system.get("margin")
        low, high = (100 * bound for bound in margin["interval"]) if margin else (0.0, 0.0)
        above = f"{100 * margin['margin']:+.2f} ({low:+.2f} to {high:+.2f})" if margin else "–"
        chosen = ", ".join(f"{key} {value}" for key, value in system.get("chosen", {}).items())
        line = [_title(system), _percent(mean, "accuracy"), above, _percent(mean, "macro_f1"), f"{mean['ece']:.3f}"]
        line += [_megabytes(system), _speed(system), str(system.get("cpu_seconds", "–")), chosen or system["version"]]
        lines.append(line)
    return _markdown(head, lines)


def _by_set(results: Results, cell: Callable[[Figures], str]) -> str:
    lines = []
    for name, figures in _with_clean_rows(results):
        found = [figures(system) for system in results["systems"]]
        lines.append([name.strip(), str(found[0]["rows"]), *map(cell, found)])
    return _markdown(["", "rows", *map(_title, results["systems"])], lines)


def _unseen(systems: Sequence[Figures]) -> list[str]:
    """SnowNLP on the rows that its training file does not hold."""
    found = [system for system in systems if "unseen" in system]
    if not found:
        return []
    lines = []
    for name, part in found[0]["unseen"].items():
        whole = found[0]["sets"][name]
        share = f"{100 * (1 - part['rows'] / whole['rows']):.1f}"
        unseen = f"{_percent(part, 'accuracy')} ({_interval(part)})" if part["rows"] else "–"
        lines.append([name, share, _percent(whole, "accuracy"), unseen])
    head = ["", "% of the rows in its training file", "accuracy, all rows", "accuracy, the other rows"]
    return ["† SnowNLP was trained on part of these tests:\n", _markdown(head, lines)]


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))


def between_markers(page: str, block: str) -> str:
    """The page with `block` in place of what stands between the two markers.

    Raises:
        ValueError: the page has not exactly one pair of them.
    """
    if page.count(START) != 1 or page.count(END) != 1 or page.index(START) > page.index(END):
        raise ValueError(f"the page needs one line {START} and, below it, one line {END}")
    before, rest = page.split(START)
    return f"{before}{START}\n{block.strip()}\n{END}{rest.split(END)[1]}"
