"""The labelled rows of a run: every source read, repeats dropped, splits made, leaks counted."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.training.augment import synthetic_rows
from lengnuan.training.config import DataConfig, TrainConfig
from lengnuan.training.data import Accounting, LabelSet, check_rejected, read_labels, read_rows_of, source_of
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.gate import Judged, Measured, gate_facts, judge, label_shift
from lengnuan.training.near import seen_keys
from lengnuan.training.shortcuts import find_shortcuts
from lengnuan.training.splits import (
    Codes,
    code_of,
    codes_of,
    drop_repeats,
    identity_of,
    split_by_text,
    text_key,
    without,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """What a run trains and is judged on.

    Args:
        labels: the classes in the order of the outputs.
        train: one row a text, in file order.
        dev: rows by source; chooses the weights, the temperature and the threshold.
        test: rows by source; read once, at the end.
        facts: counts for the report: line accounting, repeats, conflicts, leaks, the gate's findings.
        synthetic: rows that `[augment]` made; the network learns from them too, the n-gram referee does not.
        leaked: `text_key` of the dev and test rows whose text, or a near copy, is in train.
        gate: what the limits of the config say about it.
    """

    labels: LabelSet
    train: Examples
    dev: dict[str, Examples]
    test: dict[str, Examples]
    facts: dict[str, Any]
    synthetic: Examples = field(default_factory=Examples)
    leaked: set[str] = field(default_factory=set)
    gate: Sequence[Judged] = ()

    def train_keys(self) -> set[str]:
        """The texts of the training rows, as `text_key` sees them."""
        return {text_key(example.text) for example in self.train}

    def held_out_keys(self) -> set[str]:
        """The texts of the dev and test rows."""
        return {text_key(row.text) for rows in (*self.dev.values(), *self.test.values()) for row in rows}

    def identity(self) -> dict[str, Any]:
        """What it is, in a few hashes: equal exactly when labels, rows and splits are."""
        found = {
            "labels": list(self.labels.names),
            "train": identity_of(self.train),
            "dev": {name: identity_of(rows) for name, rows in self.dev.items()},
            "test": {name: identity_of(rows) for name, rows in self.test.items()},
        }
        # No key for none, so that a run folder of before there were any still fits.
        return found | ({"synthetic": identity_of(self.synthetic)} if self.synthetic else {})


def read_corpus(config: TrainConfig) -> Corpus:
    """Read and split what `config.data` names.

    Raises:
        UsageError: no training source, or a file that can't be read.
        DataRefused: too many rejected lines, a class without rows, or nothing left to choose the weights by.
    """
    data = config.data
    if not data.train:
        raise UsageError('config: [data.train] is empty: name at least one file, for instance mine = "reviews.tsv"')
    labels = _labels(config)
    accounts: list[Accounting] = []
    files = data.train.items()
    as_read = Examples(chain.from_iterable(_rows(name, path, labels, data, accounts) for name, path in files))
    dev, test = (
        {name: Examples(_rows(name, path, labels, data, accounts)) for name, path in sources.items()}
        for sources in (data.dev, data.test)
    )
    train, repeats, conflicts = drop_repeats(as_read)
    dev_share = data.dev_share
    if not test and data.test_share:
        train, part = split_by_text(train, data.test_share, config.data_seed)
        test = {"test": part}
        dev_share /= 1.0 - data.test_share  # of what is left
    if not dev and dev_share:
        train, part = split_by_text(train, dev_share, config.data_seed + 1)
        dev = {"dev": part}
    facts = {
        "files": [account_facts(account) for account in accounts],
        "train_repeats_dropped": repeats,
        "train_conflicts_dropped": conflicts,
        "train_leaked_dropped": 0,
        "dev_rows_also_in_test": _count(dev.values(), codes_of(test.values())),
    }
    if data.drop_leaked:
        dev = {name: without(rows, codes_of(test.values())) for name, rows in dev.items()}
        kept = without(train, codes_of([*dev.values(), *test.values()]))
        facts["train_leaked_dropped"] = len(train) - len(kept)
        train = kept
    dev, test = ({name: rows for name, rows in split.items() if rows} for split in (dev, test))
    held_out = codes_of([*dev.values(), *test.values()])
    synthetic, facts["synthetic_rows"] = synthetic_rows(config.augment, labels, train, held_out, config.data_seed)
    leaked = seen_keys(_keys([*dev.values(), *test.values()]), _keys([train]))
    corpus = Corpus(labels, train, dev, test, facts, synthetic, leaked)
    _check(corpus)
    _complete(corpus)
    judged = judge(_measured(corpus, as_read), config.gate)
    facts["gate"] = gate_facts(judged)
    return replace(corpus, gate=judged)


def _measured(corpus: Corpus, as_read: Examples) -> Iterable[Measured]:
    """What the gate judges: the train files as they are, and what is trained on against what it is judged by."""
    total = max(1, len(as_read))
    yield Measured("conflicting", corpus.facts["train_conflicts_dropped"] / total, "train files")
    yield Measured("duplicate", corpus.facts["train_repeats_dropped"] / total, "train files")
    shortcuts = find_shortcuts(as_read)
    corpus.facts["shortcuts"] = shortcuts.facts(corpus.labels.names)
    yield Measured("shortcut", shortcuts.share, "train files")
    for name, sources in {"dev": corpus.dev, "test": corpus.test}.items():
        rows = [example for source in sources.values() for example in source]
        if rows:
            yield Measured("leaked", _count(sources.values(), _codes(corpus.leaked)) / len(rows), name)
        shift = label_shift(corpus.train, rows)
        if shift is not None:
            yield Measured("label_shift", shift, f"train against {name}")


def _labels(config: TrainConfig) -> LabelSet:
    found = LabelSet(tuple(config.labels), config.labels) if config.labels else _inferred_labels(config)
    unknown = config.display_names.keys() - set(found.names)
    if unknown:
        raise UsageError(f"[display_names]: {sorted(unknown)} are no labels; the labels are {list(found.names)}")
    return found


def _inferred_labels(config: TrainConfig) -> LabelSet:
    paths = config.data.train.values()
    found = LabelSet.infer(v for p in paths for v in read_labels(source_of(p, config.data), config.data.label_column))
    log.info("labels, in the order of the outputs: %s", ", ".join(found.names))
    return found


def _rows(name: str, path: Path, labels: LabelSet, data: DataConfig, accounts: list[Accounting]) -> Iterator[Example]:
    source = source_of(path, data)
    account = Accounting(str(source.path))
    yield from (example for example, _ in read_rows_of(source, labels, data, name, account))
    check_rejected(account, data.max_rejected_share)
    accounts.append(account)


def _check(corpus: Corpus) -> None:
    for name, rows in _by_label(corpus.train, corpus.labels).items():
        if not rows:
            raise DataRefused(f"class {name!r} has no training row (of {len(corpus.train)}): mend the data or [labels]")
    if not corpus.dev:
        raise DataRefused("no dev rows to choose the weights by: name [data.dev], or give more rows or a dev_share")


def _complete(corpus: Corpus) -> None:
    """Add to the facts what can be counted once everything is split; say what a person should know."""
    facts, train, leaked = corpus.facts, codes_of([corpus.train]), _codes(corpus.leaked)
    splits = {"dev": corpus.dev, "test": corpus.test}
    facts["identity"] = corpus.identity()
    facts["train_rows"] = len(corpus.train)
    facts["train_rows_by_label"] = _by_label(corpus.train, corpus.labels)
    facts |= {f"{split}_rows": {name: len(rows) for name, rows in found.items()} for split, found in splits.items()}
    sources = {f"{split} {name}": rows for split, found in splits.items() for name, rows in found.items()}
    facts["leaks"] = {name: _count([rows], train) for name, rows in sources.items()}
    facts["leaks_with_near"] = {name: _count([rows], leaked) for name, rows in sources.items()}
    for where, count in facts["leaks_with_near"].items():
        if count:
            log.warning("%s: %d rows are also in train, %d of them edited", where, count, count - facts["leaks"][where])
    log.info(
        "train: %d rows; dropped %d repeats, %d with two labels, %d also in dev or test",
        len(corpus.train), *(facts[f"train_{why}_dropped"] for why in ("repeats", "conflicts", "leaked")),
    )  # fmt: skip


def _count(sources: Iterable[Examples], codes: Codes) -> int:
    """Rows whose text has one of these codes."""
    return sum(int(np.isin(rows.codes, codes).sum()) for rows in sources)


def _codes(keys: set[str]) -> Codes:
    return np.fromiter(map(code_of, keys), dtype=np.uint64, count=len(keys))


def _keys(sources: Iterable[Examples]) -> Iterator[str]:
    return (text_key(text) for rows in sources for text in rows.texts)


def _by_label(examples: Examples, labels: LabelSet) -> dict[str, int]:
    counts = np.bincount(examples.labels, minlength=len(labels.names)).tolist()
    return dict(zip(labels.names, counts, strict=True))


def account_facts(account: Accounting) -> dict[str, Any]:
    """What became of the lines of a file, for a report: the file by its last two names only."""
    return {
        "path": "/".join(Path(account.path).parts[-2:]),
        "lines": account.lines,
        "header": account.header,
        "accepted": account.accepted,
        "blank": account.blank,
        "rejected": account.rejected,
        "continued": account.continued,
        "reasons": dict(account.reasons),
        "first_rejected": account.first_rejected,
    }
