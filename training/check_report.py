"""What `data check` found, as lines of text for a person."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lengnuan.training.check import Checked

_SHOWN = 8


def check_report(checked: Checked) -> str:
    """Every section, and the verdict last."""
    facts = checked.facts
    sections: dict[str, Iterable[str]] = {
        "Files": _files(facts["files"]),
        "Labels": _labels(facts["labels"]),
        "Lengths": _lengths(facts["lengths"]),
        "Repeated rows (of the same split)": _repeats(facts["repeats"]),
        "Texts with several labels": _conflicts(facts["conflicts"]),
        "Leaks between splits": _leaks(facts["leaks"]),
        "Shortcuts": _shortcuts(facts["shortcuts"]),
        "Label shift": _shift(facts["label_shift"]),
        "Limits": [*checked.problems, *map(str, checked.judged)],
    }
    refused = bool(checked.problems) or any(found.refused for found in checked.judged)
    parts = ["\n  ".join([title, *lines]) for title, lines in sections.items()]
    verdict = "REFUSED: training would not start" if refused else "FIT to train on"
    # A section without a line is left out.
    return "\n\n".join([*(part for part in parts if "\n" in part), verdict]) + "\n"


def _files(files: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for found in files:
        counts = ", ".join(f"{found[key]:,} {key}" for key in ("accepted", "blank", "rejected", "continued", "header"))
        yield f"{found['split']}: {found['path']}, {found['encoding']}, {found['lines']:,} lines = {counts}"
        yield from (f"  line {number}: {reason}" for number, reason in found["first_rejected"])
        more = found["rejected"] - len(found["first_rejected"])
        if more:
            yield f"  and {more:,} more"


def _labels(facts: Mapping[str, Any]) -> Iterator[str]:
    for split, counts in facts["by_split"].items():
        total = max(1, sum(counts.values()))
        shown = ", ".join(f"{label} {rows:,} ({rows / total:.1%})" for label, rows in counts.items())
        yield f"{split}: {shown}"
    for label, written in facts["spellings"].items():
        if list(written) != [label]:
            yield f"{label!r} is written " + ", ".join(f"{value!r} ({rows:,})" for value, rows in written.items())
    if facts["unknown"]:
        most = sorted(facts["unknown"].items(), key=lambda item: -item[1])[:_SHOWN]
        yield "not a label: " + ", ".join(f"{value[:20]!r} ({rows:,})" for value, rows in most)
    yield from facts["notes"]


def _lengths(facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for split, found in facts.items():
        for unit in ("characters", "tokens"):
            if unit in found:
                yield f"{split}: {unit} " + ", ".join(f"{name} {value:,}" for name, value in found[unit].items())
        of = f" (of {found['rows_tokenised']:,} rows)" if "rows_tokenised" in found else ""
        yield f"{split}: {found['truncated_share']:.2%} are longer than {found['limit']:,} {found['unit']}{of}"
        if "unknown_token_share" in found:
            rows = found["rows_with_unknown_tokens"]
            yield f"{split}: {found['unknown_token_share']:.4%} of the tokens are unknown, in {rows:,} rows"
        if found["lost_characters"]:
            yield f"{split}: {found['lost_characters']:,} rows hold U+FFFD: a character was lost before this file"


def _repeats(facts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for split, found in facts.items():
        yield f"{split}: {_levels(found)}, of {found['rows']:,}"


def _conflicts(facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for split, found in facts.items():
        by_letters = f"{found['texts_by_letters']:,} by letters and digits alone"
        yield f"{split}: {found['texts']:,} texts ({found['rows']:,} rows); {by_letters}"
        yield from (f"  {text}" for text in found["examples"])


def _leaks(facts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for found in facts:
        share = found["near"] / found["of"]
        yield f"{found['rows_of']} in {found['also_in']}: {_levels(found)}, of {found['of']:,} ({share:.1%})"
        if found["with_another_label"]:
            yield f"  {found['with_another_label']:,} of them with another label"
        yield from (f"  {text}" for text in found["examples"])


def _levels(found: Mapping[str, int]) -> str:
    return (
        f"{found['verbatim']:,} word for word, {found['normalised']:,} after normalisation, {found['letters']:,} by "
        f"letters and digits, {found['near']:,} with near copies"
    )


def _shortcuts(facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for split, found in facts.items():
        if found["marks"]:
            yield f"{split}: marks alone label {found['share']:.1%} of the rows, {found['right']:.1%} of them rightly"
        for kind in ("marks", "words"):
            if found[kind]:
                yield f"{split}: {kind} that nearly always go with one label"
                yield from map(_token, found[kind][:_SHOWN])


def _token(found: Mapping[str, Any]) -> str:
    return f"  {found['token']} -> {found['label']}: in {found['coverage']:.1%} of the rows, pure {found['purity']:.1%}"


def _shift(facts: Mapping[str, float | None]) -> Iterator[str]:
    for which, share in facts.items():
        yield f"{which}: " + ("too few rows to tell" if share is None else f"{share:.1%} of the labels")
