"""`data check`: everything that can be known about labelled files before a model is trained on them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.model.decoding import sniff_encoding
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import DataConfig, GateConfig
from lengnuan.training.corpus import account_facts
from lengnuan.training.data import Accounting, LabelSet, clean_label, read_examples, read_labels, source_of
from lengnuan.training.data_options import SPLITS
from lengnuan.training.errors import DataRefused
from lengnuan.training.examples import Examples
from lengnuan.training.gate import Judged, Measured, gate_facts, judge, label_shift
from lengnuan.training.likeness import Likeness
from lengnuan.training.shortcuts import find_shortcuts

MAX_TOKENISED = 100_000  # rows of a split, evenly spread, whose tokens are counted: shares need no more
RARE = 5  # rows; a label with fewer is more likely a slip

Splits = dict[str, Examples]


@dataclass(frozen=True)
class Ruler:
    """How the length of a text is measured: in tokens of `tokenizer`, or in characters without one."""

    tokenizer: Tokenizer | None
    limit: int


@dataclass(frozen=True)
class Checked:
    """Facts for a report and what the limits say about them; `problems`: what must be mended whatever the limits."""

    facts: dict[str, Any]
    judged: list[Judged]
    problems: list[str]

    def refuse(self) -> None:
        """Say what is past its limit.

        Raises:
            DataRefused: something is, and it isn't acknowledged.
        """
        wrong = [*self.problems, *(str(found) for found in self.judged if found.refused)]
        if wrong:
            raise DataRefused("the data is not fit to train on:\n  " + "\n  ".join(wrong))


def check_files(
    files: Sequence[tuple[str, Path]],
    data: DataConfig,
    gate: GateConfig,
    ruler: Ruler,
    spellings: Mapping[str, Sequence[str]],
) -> Checked:
    """Read every file and measure it.

    Args:
        files: (split, file); files of one split are joined.
        data: the columns.
        gate: the limits.
        ruler: how long a text may be.
        spellings: the classes as under `[labels]`; empty to take them from the files.

    Raises:
        UsageError: a file that can't be read.
        DataRefused: fewer than two labels.
    """
    written = {path: Counter(map(_written, read_labels(source_of(path, data), data.label_column))) for _, path in files}
    labels, notes = _labels(written.values(), spellings)
    order = ["train", *(name for name, _ in files if name not in SPLITS.values()), "dev", "test"]
    splits: Splits = {name: Examples() for name in dict.fromkeys(order) if name in dict(files)}
    accounts: list[dict[str, Any]] = []
    problems = [*notes]
    for name, path in files:
        examples, account = read_examples(source_of(path, data), labels, data, path.stem)
        splits[name] = Examples(chain(splits[name], examples))
        accounts.append(account_facts(account) | {"split": name, "encoding": _encoding(Path(data.root, path))})
        problems += _rejected(account, data.max_rejected_share)
    problems += [f"{name}: no row that can be used" for name, rows in splits.items() if not rows]
    counted = sum(written.values(), Counter[str]())
    facts: dict[str, Any] = {"files": accounts, "labels": _label_facts(counted, labels, splits), "problems": problems}
    judged = judge(_measured({name: rows for name, rows in splits.items() if rows}, labels, ruler, facts), gate)
    facts["gate"] = gate_facts(judged)
    return Checked(facts, judged, problems)


def _measured(splits: Splits, labels: LabelSet, ruler: Ruler, facts: dict[str, Any]) -> Iterable[Measured]:
    """What has a limit; every figure goes into the facts on the way."""
    facts["lengths"] = {name: _lengths(rows, ruler) for name, rows in splits.items()}
    likeness = Likeness(splits)
    facts |= {"repeats": likeness.repeats(), "conflicts": likeness.conflicts(), "leaks": likeness.leaks()}
    for found in facts["leaks"]:
        yield Measured("leaked", found["near"] / found["of"], f"{found['rows_of']} in {found['also_in']}")
    for name, rows in splits.items():
        conflicts = facts["conflicts"][name]  # counted once: a text with two labels is no repeat, as in training
        repeats = facts["repeats"][name]["letters"] - (conflicts["rows_by_letters"] - conflicts["texts_by_letters"])
        yield Measured("conflicting", conflicts["rows_by_letters"] / len(rows), name)
        yield Measured("duplicate", repeats / len(rows), name)
    facts["shortcuts"], facts["label_shift"] = {}, {}
    for name, rows in splits.items():
        shortcuts = find_shortcuts(rows)
        facts["shortcuts"][name] = shortcuts.facts(labels.names)
        yield Measured("shortcut", shortcuts.share, name)
    first, *others = splits
    for name in others:
        shift = label_shift(splits[first], splits[name])
        facts["label_shift"][f"{first} against {name}"] = shift
        if shift is not None:
            yield Measured("label_shift", shift, f"{first} against {name}")


def _written(value: Any) -> str:
    """A label as it stands in the file; what is no string, as JSON would write it."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _labels(written: Iterable[Counter[str]], spellings: Mapping[str, Sequence[str]]) -> tuple[LabelSet, list[str]]:
    """The classes, and what is wrong with how they are written."""
    if spellings:
        return LabelSet(tuple(spellings), spellings), []
    found = sorted({clean_label(value) for values in written for value in values} - {""})
    try:
        return LabelSet.infer(found), []
    except DataRefused as error:
        return LabelSet(found, {}), [str(error)]


def _label_facts(written: Counter[str], labels: LabelSet, splits: Splits) -> dict[str, Any]:
    spelt: dict[str, dict[str, int]] = {}
    for value, rows in sorted(written.items()):
        index = labels.index(value)
        spelt.setdefault("" if index is None else labels.names[index], {})[value] = rows
    by_split = {
        name: dict(zip(labels.names, np.bincount(rows.labels, minlength=len(labels.names)).tolist(), strict=True))
        for name, rows in splits.items()
    }
    return {
        "names": list(labels.names),
        "by_split": by_split,
        "unknown": spelt.pop("", {}),
        "spellings": spelt,
        "notes": list(_label_notes(written, labels, by_split)),
    }


def _label_notes(written: Counter[str], labels: LabelSet, by_split: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    trimmed = sum(rows for value, rows in written.items() if value != value.strip())
    wide = sum(rows for value, rows in written.items() if value.strip() != clean_label(value))
    if trimmed:
        yield f"{trimmed:,} labels have blanks before or behind them: read without"
    if wide:
        yield f"{wide:,} labels have full-width or compatibility characters: read as the plain ones"
    if all(re.fullmatch(r"\d+", name) for name in labels.names) and int(labels.names[0]) == 1:
        yield "labels are counted from 1: they are names here, so that is fine, but other programs may want 0"
    for split, counts in by_split.items():
        for label, rows in counts.items():
            if rows < RARE:
                yield f"label {label!r} has {rows} rows in {split}: a slip, or too few to learn from or to judge by"


def _encoding(path: Path) -> str:
    return "parquet" if path.suffix.lower() == ".parquet" else sniff_encoding(path)


def _rejected(account: Accounting, limit: float) -> list[str]:
    share = account.rejected / max(1, account.lines - account.header)
    if share <= limit:
        return []
    return [f"{account.path}: {share:.2%} of the lines were rejected, past the limit of {limit:.2%}"]


def _lengths(rows: Examples, ruler: Ruler) -> dict[str, Any]:
    """Lengths in characters of all rows; in tokens of some of them, where there is a tokenizer."""
    characters = np.fromiter(map(len, rows.texts), dtype=np.int64, count=len(rows))
    facts: dict[str, Any] = {
        "characters": _quantiles(characters),
        "lost_characters": sum("\ufffd" in text for text in rows.texts),
        "limit": ruler.limit,
    }
    if ruler.tokenizer is None:
        return facts | {"unit": "characters", "truncated_share": float((characters > ruler.limit).mean())}
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), MAX_TOKENISED)).astype(np.int64)
    tokens, unknown = np.zeros(len(chosen), dtype=np.int64), np.zeros(len(chosen))
    for place, row in enumerate(chosen):
        ids = ruler.tokenizer.encode(rows[row].text)
        tokens[place], unknown[place] = len(ids), ruler.tokenizer.unknown_share(ids)
    return facts | {
        "unit": "tokens",
        "rows_tokenised": len(chosen),
        "tokens": _quantiles(tokens),
        "truncated_share": float((tokens > ruler.limit).mean()),
        "unknown_token_share": float(unknown.mean()),
        "rows_with_unknown_tokens": int((unknown > 0).sum()),
    }


def _quantiles(values: Any) -> dict[str, int]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: int(np.quantile(values, share, method="higher")) for name, share in shares.items()}
