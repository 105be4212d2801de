"""Scoring a finished bundle on labelled files, in float32."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine, Logits, score
from lengnuan.model.probabilities import softmax
from lengnuan.model.text import normalise
from lengnuan.training.config import DataConfig
from lengnuan.training.data import LabelSet, check_rejected, read_examples, read_texts, source_of
from lengnuan.training.errors import UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.near import seen_keys
from lengnuan.training.scores import Scored, answered, summary
from lengnuan.training.shortcuts import find_shortcuts
from lengnuan.training.splits import identity_of, text_key

log = logging.getLogger(__name__)

_SPLIT_NAME = re.compile(r"(train|dev|test|valid|validation)", re.IGNORECASE)


def logits_of(bundle: Bundle, engine: Engine, examples: Sequence[Example]) -> Logits:
    """What the bundle answers, before the temperature: float32 [N, K]."""
    return score(engine, [bundle.tokenizer.encode(e.text) for e in examples], bundle.manifest.max_tokens)


def scored(examples: Sequence[Example], logits: Logits, temperature: float, leaked: set[str]) -> Scored:
    """Logits to calibrated probabilities, with what a report needs to know of each row; `leaked`: keys of texts."""
    return Scored(
        labels=np.array([example.label for example in examples], dtype=np.int64),
        probabilities=softmax(logits / temperature),
        domains=[example.domain for example in examples],
        leaked=np.array([text_key(example.text) in leaked for example in examples], dtype=bool),
    )


def evaluate_files(
    bundle: Bundle, engine: Engine, files: Sequence[Path], data: DataConfig, train_files: Sequence[Path] = ()
) -> dict[str, Any]:
    """Figures for each file: name -> `summary`, plus `mean` over the files when there are several.

    Args:
        bundle: its labels and the spellings it was trained with read the label column.
        engine: runs its graph.
        files: labelled files; one that lies in a folder of its own (`hotel/test.tsv`) is named after the folder.
        data: the columns.
        train_files: rows whose text, or a near copy, is in one of these, whatever its label, are scored apart, as
            leaked.

    Raises:
        UsageError: a file that can't be read, or is empty.
        DataRefused: more lines than `data.max_rejected_share` have no text or no label of this bundle.
    """
    labels = LabelSet(bundle.labels, bundle.manifest.data.get("label_spellings", {}))
    names = source_names(files)
    train_keys = {text_key(text) for path in train_files for text in read_texts(source_of(path, data))}
    found: dict[str, Any] = {}
    for name, path in names.items():
        examples, account = read_examples(source_of(path, data), labels, data, name)
        check_rejected(account, data.max_rejected_share)
        if not examples:
            raise UsageError(f"{account}: no row to score")
        leaked = seen_keys(map(text_key, examples.texts), train_keys) if train_keys else set()
        found[name] = _figures(bundle, engine, examples, leaked) | {
            "identity": identity_of(examples),
            "lines": account.lines,
            "rejected": account.rejected,
        }
    return {"bundle": bundle.manifest.name, "version": bundle.version, "files": found, "mean": mean_scores(found)}


def _figures(bundle: Bundle, engine: Engine, examples: Examples, leaked: set[str]) -> dict[str, Any]:
    """Of one file; where marks give labels away, also with these taken out of the texts."""
    temperature = bundle.manifest.temperature
    answers = scored(examples, logits_of(bundle, engine, examples), temperature, leaked)
    figures = summary(answers, bundle.labels) | {"answered": answered(answers, bundle.manifest.abstain_threshold)}
    shortcuts = find_shortcuts(examples)
    if not shortcuts.share:
        return figures
    stripped = [example for example in shortcuts.without(examples) if normalise(example.text)]
    without = scored(stripped, logits_of(bundle, engine, stripped), temperature, set())
    return figures | {
        "shortcuts": shortcuts.facts(bundle.labels),
        "without_shortcuts": {key: value for key, value in summary(without, bundle.labels).items() if key != "domains"},
    }


def mean_scores(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Unweighted mean over the sources of accuracy, macro-F1 and ECE."""
    return {
        key: float(np.mean([figures[key] for figures in found.values()])) for key in ("accuracy", "macro_f1", "ece")
    }


def source_names(files: Sequence[Path]) -> dict[str, Path]:
    """What each file is called: one that lies in a folder of its own (`hotel/test.tsv`) after the folder."""
    names: dict[str, Path] = {}
    for path in files:
        stem = path.name.split(".")[0]
        name = path.resolve().parent.name if _SPLIT_NAME.fullmatch(stem) else stem
        if name in names:
            name = str(path)
        names[name] = path
    return names


def recorded_referee(bundle: Bundle, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The n-gram referee's figures on the same rows, if the bundle's report has them for every one of these files."""
    report = bundle.path / "report" / "metrics.json"
    if not report.is_file():
        return None
    try:
        metrics = json.loads(report.read_text(encoding="utf-8"))
        by_identity = {metrics["data"]["identity"]["test"][name]: f for name, f in metrics["referee"]["test"].items()}
        return {name: by_identity[figures["identity"]] for name, figures in found["files"].items()}
    except (KeyError, TypeError, ValueError):  # a report of another release, or other rows
        return None


def table(found: Mapping[str, Any], referee: Mapping[str, Any] | None = None) -> str:
    """The figures as lines of text; `referee`: figures of the same sources, shown beside."""
    head = f"{'':24}{'rows':>7}{'accuracy':>10}{'95 % interval':>16}{'macro-F1':>10}{'ECE':>8}{'by chance':>11}"
    lines = [head + (f"{'n-grams':>10}" if referee else "")]
    for name, figures in found["files"].items():
        lines.append(_table_row(name, figures) + (f"{100 * referee[name]['accuracy']:10.2f}" if referee else ""))
        parts = {"clean": "clean rows", "leaked": "leaked rows", "without_shortcuts": "without its marks"}
        for kind, title in parts.items():
            if figures.get(kind, {}).get("rows"):
                lines.append(_table_row(f"  {title}", figures[kind]))
    if len(found["files"]) > 1:
        mean = found["mean"]
        line = f"{'mean':24}{'':7}{100 * mean['accuracy']:10.2f}{'':16}{100 * mean['macro_f1']:10.2f}{mean['ece']:8.3f}"
        lines.append(line + (f"{'':11}{100 * mean_scores(referee)['accuracy']:10.2f}" if referee else ""))
    return "\n".join(lines) + "\n"


def _table_row(name: str, figures: Mapping[str, Any]) -> str:
    low, high = figures["accuracy_interval"]
    interval = f"{100 * low:.2f}-{100 * high:.2f}"
    return (
        f"{name[:24]:24}{figures['rows']:7d}{100 * figures['accuracy']:10.2f}{interval:>16}"
        f"{100 * figures['macro_f1']:10.2f}{figures['ece']:8.3f}{figures['ece_by_chance']:11.3f}"
    )


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """The figures, for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
