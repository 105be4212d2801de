"""The labelled rows of a run: every source read, repeats dropped, splits made, leaks counted."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengnuan.training.config import DataConfig, TrainConfig
from lengnuan.training.data import (
    Accounting,
    Example,
    LabelSet,
    drop_repeats,
    read_examples,
    read_labels,
    source_of,
    split_by_text,
    text_key,
)
from lengnuan.training.errors import DataRefused, UsageError

log = logging.getLogger(__name__)

Examples = list[Example]


@dataclass(frozen=True)
class Corpus:
    """What a run trains and is judged on.

    Args:
        labels: the classes in the order of the outputs.
        train: one row a text, in file order.
        dev: rows by source; chooses the weights, the temperature and the threshold.
        test: rows by source; read once, at the end.
        facts: counts for the report: line accounting, repeats, conflicts, leaks.
    """

    labels: LabelSet
    train: Examples
    dev: dict[str, Examples]
    test: dict[str, Examples]
    facts: dict[str, Any]

    def train_keys(self) -> set[str]:
        """The texts of the training rows, as `text_key` sees them."""
        return {text_key(example.text) for example in self.train}


def read_corpus(config: TrainConfig) -> Corpus:
    """Read and split what `config.data` names.

    Raises:
        UsageError: no training source, or a file that can't be read.
        DataRefused: too many rejected lines, fewer than two classes, or nothing left to train or choose on.
    """
    data = config.data
    if not data.train:
        raise UsageError('config: [data.train] is empty: name at least one file, for instance mine = "reviews.tsv"')
    labels = _labels(config)
    accounts: list[Accounting] = []
    train = [e for rows in _read_all(data.train, labels, data, accounts).values() for e in rows]
    dev = _read_all(data.dev, labels, data, accounts)
    test = _read_all(data.test, labels, data, accounts)
    train, repeats, conflicts = drop_repeats(train)
    if not test and data.test_share:
        train, part = split_by_text(train, data.test_share, config.seed)
        test = {"test": part}
    if not dev and data.dev_share:
        train, part = split_by_text(train, data.dev_share / (1.0 - data.test_share), config.seed + 1)
        dev = {"dev": part}
    leaked_rows = 0
    if data.drop_leaked:
        train, leaked_rows = _without_leaked(train, [*dev.values(), *test.values()])
    dev, test = ({name: rows for name, rows in split.items() if rows} for split in (dev, test))
    facts = {
        "files": [_account_facts(account) for account in accounts],
        "train_rows": len(train),
        "train_rows_by_label": _by_label(train, labels),
        "train_repeats_dropped": repeats,
        "train_conflicts_dropped": conflicts,
        "train_leaked_dropped": leaked_rows,
        "dev_rows": {name: len(rows) for name, rows in dev.items()},
        "test_rows": {name: len(rows) for name, rows in test.items()},
    }
    corpus = Corpus(labels, train, dev, test, facts)
    _check(corpus)
    facts["leaks"] = _leaks(corpus)
    log.info(
        "train: %d rows; dropped %d repeats, %d with two labels, %d also in dev or test",
        len(train), repeats, conflicts, leaked_rows,
    )  # fmt: skip
    return corpus


def _labels(config: TrainConfig) -> LabelSet:
    if config.labels:
        return LabelSet(tuple(config.labels), config.labels)
    paths = config.data.train.values()
    found = LabelSet.infer(v for p in paths for v in read_labels(source_of(p, config.data), config.data.label_column))
    log.info("labels, in the order of the outputs: %s", ", ".join(found.names))
    return found


def _read_all(
    sources: dict[str, Path], labels: LabelSet, data: DataConfig, accounts: list[Accounting]
) -> dict[str, Examples]:
    found = {}
    for name, path in sources.items():
        examples, account = read_examples(source_of(path, data), labels, data, name)
        accounts.append(account)
        log.info("%s", account)
        share = account.rejected / max(1, account.lines - account.header)
        if share > data.max_rejected_share:
            raise DataRefused(
                f"{account}\n{share:.1%} of the lines were rejected, data.max_rejected_share is "
                f"{data.max_rejected_share:.1%}: mend the file, name its columns, or raise the limit"
            )
        found[name] = examples
    return found


def _check(corpus: Corpus) -> None:
    classes = {example.label for example in corpus.train}
    if len(classes) < 2:
        raise DataRefused(f"the {len(corpus.train)} training rows have {len(classes)} class(es): two are needed")
    if not corpus.dev:
        raise DataRefused("no dev rows to choose the weights by: name [data.dev], or give more rows or a dev_share")


def _by_label(examples: Sequence[Example], labels: LabelSet) -> dict[str, int]:
    counts = Counter(example.label for example in examples)
    return {name: counts[index] for index, name in enumerate(labels.names)}


def _account_facts(account: Accounting) -> dict[str, Any]:
    return {
        "path": "/".join(Path(account.path).parts[-2:]),
        "lines": account.lines,
        "accepted": account.accepted,
        "blank": account.blank,
        "rejected": account.rejected,
        "reasons": dict(account.reasons),
        "first_rejected": account.first_rejected,
    }


def _without_leaked(train: Examples, held_out: Sequence[Examples]) -> tuple[Examples, int]:
    keys = {text_key(example.text) for rows in held_out for example in rows}
    kept = [example for example in train if text_key(example.text) not in keys]
    return kept, len(train) - len(kept)


def _leaks(corpus: Corpus) -> dict[str, int]:
    """Dev and test rows whose text is also a training row."""
    keys = corpus.train_keys()
    leaks = {}
    for split, sources in (("dev", corpus.dev), ("test", corpus.test)):
        for name, rows in sources.items():
            leaks[f"{split} {name}"] = sum(text_key(example.text) in keys for example in rows)
            if leaks[f"{split} {name}"]:
                log.warning("%s %s: %d rows are also in train", split, name, leaks[f"{split} {name}"])
    return leaks
