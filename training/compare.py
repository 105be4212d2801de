"""`lengnuan-train compare`: a candidate and the live bundle on the same frozen rows, in one process."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine, OnnxEngine
from lengnuan.model.probabilities import softmax
from lengnuan.training.config import DataConfig
from lengnuan.training.costs import sizes, times
from lengnuan.training.data import LabelSet, check_rejected, read_examples, read_texts, source_of
from lengnuan.training.errors import UsageError
from lengnuan.training.evaluate import logits_of, source_names
from lengnuan.training.examples import Example
from lengnuan.training.near import seen_keys
from lengnuan.training.paired import Bools, Paired, bootstrap, churn, mcnemar
from lengnuan.training.scores import Floats, Labels, Scored, calibration_error, summary
from lengnuan.training.splits import identity_of, text_key
from lengnuan.training.verdict import Check, Decision, Limits, decide, judge, reasons

FORMAT = 1


@dataclass(frozen=True)
class Frozen:
    """Labelled rows that no candidate is trained on, and where they are from.

    Args:
        examples: the rows; `domain` groups them.
        behaviour: sentences whose `domain` is their category; may be none.
        facts: of the files, for decision.json.
    """

    examples: Sequence[Example]
    behaviour: Sequence[Example]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What was found, and what it says."""

    decision: Decision
    checks: Sequence[Check]
    facts: Mapping[str, Any]

    def text(self) -> str:
        """The content of decision.json."""
        return json.dumps(self.facts, ensure_ascii=False, indent=2) + "\n"


def shared_labels(candidate: Bundle, live: Bundle | None) -> LabelSet:
    """The candidate's classes, with the spellings that either bundle was trained with.

    Raises:
        UsageError: the bundles answer with different classes.
    """
    if live is not None and set(candidate.labels) != set(live.labels):
        raise UsageError(
            f"the candidate's labels are {list(candidate.labels)}, the live one's {list(live.labels)}: these can't be "
            "compared. A new set of labels is a new model: give it an alias of its own"
        )
    spellings: dict[str, list[str]] = {name: [] for name in candidate.labels}
    for bundle in (candidate, live):
        given = bundle.manifest.data.get("label_spellings", {}) if bundle else {}
        for name in spellings:
            spellings[name] += given.get(name, ())
    return LabelSet(candidate.labels, spellings)


def read_frozen(
    files: Sequence[Path], labels: LabelSet, data: DataConfig, train: Sequence[Path], behaviour: Path | None
) -> Frozen:
    """The rows of the files, without those whose text, or a near copy, is in a `train` file.

    Raises:
        UsageError: a file can't be read, or has no row.
        DataRefused: too many lines are rejected; of the behaviour file none may be.
    """
    train_keys = {text_key(text) for path in train for text in read_texts(source_of(path, data))}
    rows: list[Example] = []
    facts: dict[str, Any] = {}
    for name, path in source_names(files).items():
        found, account = read_examples(source_of(path, data), labels, data, name)
        check_rejected(account, data.max_rejected_share)
        seen = seen_keys(map(text_key, found.texts), train_keys) if train_keys else set()
        kept = [example for example in found if text_key(example.text) not in seen]
        if not kept:
            raise UsageError(f"{account}: no row to compare on")
        rows += kept
        facts[name] = {"rows": len(kept), "identity": identity_of(kept), "rejected": account.rejected,
                       "left_out": len(found) - len(kept)}  # fmt: skip
    sentences = _read_behaviour(behaviour, labels) if behaviour else []
    return Frozen(rows, sentences, {"rows": len(rows), "identity": identity_of(rows), "files": facts,
                                    "behaviour": identity_of(sentences) if sentences else None})  # fmt: skip


def _read_behaviour(path: Path, labels: LabelSet) -> Sequence[Example]:
    data = DataConfig(domain_column="category")
    found, account = read_examples(source_of(path, data), labels, data, "all")
    check_rejected(account, 0.0)
    if not found:
        raise UsageError(f"{account}: a behaviour file has the columns category, label and text")
    return found


def compare(candidate: Bundle, live: Bundle | None, frozen: Frozen, limits: Limits, threads: int = 0) -> Comparison:
    """Every figure, and the decision under the limits. Without a live bundle only floors and bounds count.

    Raises:
        UsageError: a limit names a domain that isn't there.
    """
    bundles = [candidate] if live is None else [candidate, live]
    engines = [OnnxEngine(bundle.model_file, "cpu", threads) for bundle in bundles]
    figures = _figures(bundles, engines, frozen, limits)
    checks = judge(figures, limits)
    decision = decide(checks)
    facts = {
        "format": FORMAT,
        "decision": decision,
        "reasons": reasons(decision, checks),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "candidate": _identity(candidate),
        "live": _identity(live) if live else None,
        "data": frozen.facts,
        "limits": limits.model_dump(mode="json"),
        "checks": [check.facts() for check in checks],
        "figures": figures,
    }
    return Comparison(decision, checks, facts)


def _identity(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    listed = json.dumps({name: entry.sha256 for name, entry in sorted(manifest.files.items())})
    return {"version": bundle.version, "name": manifest.name, "created": manifest.created,
            "labels": list(manifest.labels), "fingerprint": manifest.fingerprint,
            "files_sha256": hashlib.sha256(listed.encode()).hexdigest()}  # fmt: skip


def _figures(bundles: Sequence[Bundle], engines: Sequence[Engine], frozen: Frozen, limits: Limits) -> dict[str, Any]:
    """Of the candidate alone, or of the candidate and the live bundle."""
    labels = np.array([example.label for example in frozen.examples], dtype=np.int64)
    names = bundles[0].labels
    given = [
        _probabilities(bundle, engine, frozen.examples, names) for bundle, engine in zip(bundles, engines, strict=True)
    ]
    domains = np.array([example.domain for example in frozen.examples])
    found: dict[str, Any] = {
        "majority_share": max(Counter(labels.tolist()).values()) / len(labels),
        "candidate": _scores(bundles[0], labels, given[0]),
        "live": None,
        "domains": {name: _domain(labels, given, domains == name) for name in sorted(set(domains.tolist()))},
        "behaviour": _behaviour(bundles, engines, frozen.behaviour),
    }
    if len(bundles) == 1:
        return found
    candidate, live = (part.argmax(axis=1) for part in given)
    paired = Paired(labels, candidate, live, len(names))
    rows = np.arange(len(labels))
    return found | {
        "live": _scores(bundles[1], labels, given[1]),
        "same_bundle": bundles[0].version == bundles[1].version,
        "mcnemar": {"gained": paired.gained, "lost": paired.lost, "p": mcnemar(paired.gained, paired.lost)},
        "bootstrap": bootstrap(paired, limits.bootstrap_rounds, limits.seed),
        "churn": churn(paired, *(part[rows, labels] for part in given)),
        "size": sizes(*bundles),
        "time": times(bundles, engines, [example.text for example in frozen.examples], limits.timing_rounds),
    }


def _domain(labels: Labels, given: Sequence[Floats], inside: Bools) -> dict[str, Any]:
    """Accuracy in one domain, and with a live bundle whether a difference is chance."""
    answers = [part[inside].argmax(axis=1) for part in given]
    right = [float((answer == labels[inside]).mean()) for answer in answers]
    found: dict[str, Any] = {"rows": int(inside.sum()), "candidate": right[0]}
    if len(given) == 1:
        return found
    paired = Paired(labels[inside], answers[0], answers[1], given[0].shape[1])
    return found | {"live": right[1], "gained": paired.gained, "lost": paired.lost,
                    "p": mcnemar(paired.gained, paired.lost)}  # fmt: skip


def _probabilities(bundle: Bundle, engine: Engine, examples: Sequence[Example], names: Sequence[str]) -> Floats:
    """Calibrated, float64 [N, K], the classes in the order of `names`."""
    found: Floats = softmax(logits_of(bundle, engine, examples) / bundle.manifest.temperature)
    return found[:, [bundle.labels.index(name) for name in names]]


def _scores(bundle: Bundle, labels: Labels, probabilities: Floats) -> dict[str, Any]:
    none = np.zeros(len(labels), dtype=bool)
    found = summary(Scored(labels, probabilities, [""] * len(labels), none), bundle.labels)
    kept = ("accuracy", "accuracy_interval", "macro_f1", "macro_f1_interval", "mean_confidence")
    return {"version": bundle.version, "ece": calibration_error(labels, probabilities)} | {k: found[k] for k in kept}


def _behaviour(
    bundles: Sequence[Bundle], engines: Sequence[Engine], sentences: Sequence[Example]
) -> dict[str, dict[str, int]]:
    """By category: rows, and how many of them each bundle gets right."""
    if not sentences:
        return {}
    found = {name: {"rows": rows} for name, rows in Counter(sentence.domain for sentence in sentences).items()}
    for who, bundle, engine in zip(("candidate", "live"), bundles, engines, strict=False):
        answers = _probabilities(bundle, engine, sentences, bundles[0].labels).argmax(axis=1)
        for sentence, answer in zip(sentences, answers.tolist(), strict=True):
            part = found[sentence.domain]
            part[who] = part.get(who, 0) + int(answer == sentence.label)
    return found
