"""`data split`: dev and test cut off, with repeats and near copies on one side.

Texts that are equal by `text_key` or near each other are one group; a group falls where the hash of its smallest key
says. So the split depends on the texts and the seed alone, never on the order of the rows.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lengnuan.training.config import DataConfig
from lengnuan.training.data import Accounting, LabelSet, check_rejected, read_labels, read_rows_of, source_of
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example
from lengnuan.training.near import groups, near_pairs
from lengnuan.training.splits import share_of, text_key
from lengnuan.training.tables import TABLES, write_table

log = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Group:
    """Rows that stay together; `labels`: how many of each class, `at`: where its hash puts it in [0, 1)."""

    rows: list[int]
    labels: dict[int, int]
    at: float


def divide_file(path: Path, output: Path, data: DataConfig, seed: int) -> dict[str, dict[str, int]]:
    """Write train, dev and test into the folder `output`, each row as it stands in the file.

    Args:
        path: TSV, CSV, JSONL or Parquet; Parquet is written as JSONL.
        output: must not hold such files yet.
        data: the columns, the shares and how many lines may be rejected.
        seed: another one, another split.

    Returns:
        The number of rows of each split by label.

    Raises:
        UsageError: the file can't be read, or the output is there already.
        DataRefused: too many rejected lines, fewer than two labels, or too few rows.
    """
    ending = next((suffix for suffix in reversed(path.suffixes) if suffix in TABLES), ".jsonl")
    files = {name: output / f"{name}{ending}" for name in SPLITS}
    there = [file for file in files.values() if file.exists()]
    if there:
        raise UsageError(f"{there[0]} is there already: choose another --output")
    source = source_of(path, data)
    labels = LabelSet.infer(read_labels(source, data.label_column))
    account = Accounting(str(source.path))
    rows = list(read_rows_of(source, labels, data, "", account))
    check_rejected(account, data.max_rejected_share)
    place = divide([example for example, _ in rows], data.dev_share, data.test_share, seed)
    output.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        chosen = (row.fields for (_, row), at in zip(rows, place, strict=True) if at == name)
        write_table(file, list(rows[0][1].fields), chosen, data.text_column)
    counts = Counter((at, example.label) for (example, _), at in zip(rows, place, strict=True))
    return {name: {label: counts[name, index] for index, label in enumerate(labels.names)} for name in SPLITS}


def divide(examples: Sequence[Example], dev_share: float, test_share: float, seed: int) -> list[str]:
    """Where each row goes: train, dev or test, with the same share of every class up to the size of a group.

    Raises:
        DataRefused: a split that was asked for gets no row.
    """
    wanted = {"test": test_share, "dev": dev_share}
    total: dict[int, int] = {}
    for example in examples:
        total[example.label] = total.get(example.label, 0) + 1
    place = ["train"] * len(examples)
    filled: dict[str, dict[int, int]] = {name: dict.fromkeys(total, 0) for name in wanted}
    for group in sorted(text_groups(examples, seed), key=lambda group: group.at):
        for name, share in wanted.items():
            if _fits(group, filled[name], total, share):
                for label, rows in group.labels.items():
                    filled[name][label] += rows
                for row in group.rows:
                    place[row] = name
                break
    empty = [name for name in SPLITS if name not in place and wanted.get(name, 1.0)]
    if empty:
        raise DataRefused(f"{len(examples)} rows are too few, or too alike: {' and '.join(empty)} would have none")
    return place


def _fits(group: Group, filled: dict[int, int], total: dict[int, int], share: float) -> bool:
    """True when no class goes further past its share than it is short of it now."""
    short = {label: share * total[label] - filled[label] for label in group.labels}
    return all(short[label] > 0 and rows - short[label] <= short[label] for label, rows in group.labels.items())


def text_groups(examples: Sequence[Example], seed: int) -> list[Group]:
    """The rows by groups of repeats and near copies; the seed decides `at`."""
    keys = [text_key(example.text) for example in examples]
    distinct = sorted(set(keys))
    number = dict(zip(distinct, groups(len(distinct), near_pairs(distinct)).tolist(), strict=True))
    smallest: dict[int, str] = {}
    for key in distinct:
        smallest.setdefault(number[key], key)
    found = {group: Group([], {}, share_of(key, seed)) for group, key in smallest.items()}
    for row, (key, example) in enumerate(zip(keys, examples, strict=True)):
        group = found[number[key]]
        group.rows.append(row)
        group.labels[example.label] = group.labels.get(example.label, 0) + 1
    log.info("%d rows, %d texts, %d groups of repeats and near copies", len(keys), len(distinct), len(found))
    return list(found.values())
