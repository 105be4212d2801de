"""One system's figures: trained or loaded, judged on the test sets, timed. What took long is kept in a cache."""

import hashlib
import importlib.metadata
import inspect
import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from baselines import Classifier, Floats, System, bytes_of, dev_accuracy

from lengnuan.model.bundle import MODEL, TOKENIZER, Bundle
from lengnuan.model.engine import Engine, OnnxEngine, score
from lengnuan.model.opening import open_engine
from lengnuan.model.probabilities import softmax
from lengnuan.model.rows import Row, Source, read_rows
from lengnuan.model.text import TEXT_VERSION
from lengnuan.training.calibrate import fit_temperature
from lengnuan.training.corpus import Corpus
from lengnuan.training.examples import Example
from lengnuan.training.scores import Scored, summary
from lengnuan.training.splits import text_key

KEPT = ("rows", "accuracy", "accuracy_interval", "macro_f1", "macro_f1_interval", "ece")
BATCH = 32
ROUNDS = 3
TEXTS_A_SET = 250


class BundleClassifier:
    """A bundle on one thread: in ONNX Runtime and float32, or in the engine that is given."""

    def __init__(self, bundle: Bundle, engine: Engine | None = None) -> None:
        self.bundle = bundle
        self._engine = engine or OnnxEngine(bundle.model_file, "cpu", threads=1)

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """See `baselines.Classifier.probabilities`."""
        rows = [self.bundle.tokenizer.encode(text) for text in texts]
        return softmax(score(self._engine, rows, self.bundle.manifest.max_tokens) / self.bundle.manifest.temperature)


def bundle_system(folder: Path) -> System:
    """A bundle folder as a row of the tables, named as its manifest says."""
    bundle = Bundle.load(folder)

    def serve() -> tuple[Classifier, str]:
        engine = open_engine(bundle, "cpu", threads=1)
        return BundleClassifier(bundle, engine), f"{engine.runtime}, {engine.precision}"

    return System(
        name=bundle.manifest.name,
        fit=lambda _corpus, _folder: {},
        load=lambda _folder: BundleClassifier(bundle),
        size=lambda _folder: bytes_of([folder / MODEL, folder / TOKENIZER]),
        packages=("onnxruntime",),
        version=bundle.version,
        trained=False,
        serve=serve,
    )


@dataclass(frozen=True)
class Answers:
    """What a system says.

    Args:
        classifier: to ask more.
        test: float64 [N, K] by test set.
        facts: how it came about, and its size.
    """

    classifier: Classifier
    test: dict[str, Floats]
    facts: dict[str, Any]


def key_of(system: System, corpus: Corpus) -> str:
    """Changes with the rows, the code of the baseline and the packages it is made with."""
    content = {
        "data": corpus.identity(),
        "text": TEXT_VERSION,
        "code": [inspect.getsource(module) for module in system.code],
        "packages": {name: importlib.metadata.version(name) for name in system.packages},
        "version": system.version,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def answers(system: System, corpus: Corpus, cache: Path) -> Answers:
    """Out of the cache, or worked out and put there."""
    folder = cache / f"{system.name}-{key_of(system, corpus)}"
    if not (folder / "facts.json").exists():  # written last
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "model").mkdir(parents=True)
        _work_out(system, corpus, folder)
    with np.load(folder / "test.npz") as test:
        found = {name: test[name] for name in corpus.test}
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return Answers(Sharpened(system.load(folder / "model"), facts["temperature"]), found, facts)


def _work_out(system: System, corpus: Corpus, folder: Path) -> None:
    begin = time.process_time()
    facts: dict[str, Any] = {"chosen": system.fit(corpus, folder / "model"), "temperature": 1.0}
    classifier = system.load(folder / "model")
    if system.trained:
        facts["cpu_seconds"] = round(time.process_time() - begin)
        facts["dev_accuracy"] = dev_accuracy(classifier, corpus.dev)
        dev = [row for rows in corpus.dev.values() for row in rows]
        logits = np.log(np.maximum(classifier.probabilities([row.text for row in dev]), 1e-12)).astype(np.float32)
        facts["temperature"] = fit_temperature(logits, np.array([row.label for row in dev], dtype=np.int64))
    answering = Sharpened(classifier, facts["temperature"])
    test = {name: answering.probabilities([row.text for row in rows]) for name, rows in corpus.test.items()}
    np.savez(folder / "test.npz", **test)
    facts["bytes"] = system.size(folder / "model")
    (folder / "facts.json").write_text(json.dumps(facts, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


class Sharpened:
    """A classifier whose confidence was fitted on dev; a temperature of 1 leaves it alone."""

    def __init__(self, classifier: Classifier, temperature: float) -> None:
        self._classifier, self._temperature = classifier, temperature

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """See `baselines.Classifier.probabilities`."""
        found = self._classifier.probabilities(texts)
        if self._temperature == 1.0:
            return found
        return softmax(np.log(np.maximum(found, 1e-12)) / self._temperature)


def scored(rows: Sequence[Example], probabilities: Floats, leaked: npt.NDArray[np.bool_]) -> Scored:
    """What `training/scores.py` works on; the domains of a set are not shown."""
    labels = np.array([row.label for row in rows], dtype=np.int64)
    return Scored(labels, probabilities, [""] * len(rows), leaked)


def figures(part: Scored, labels: Sequence[str]) -> dict[str, Any]:
    """What the tables show of one test set."""
    found = summary(part, labels)
    kept = {key: found[key] for key in KEPT}
    return kept | {kind: {key: found[kind].get(key) for key in KEPT} for kind in ("clean", "leaked") if kind in found}


def published_keys(folder: Path) -> set[str]:
    """Keys of a published train file, which is `train.tsv.gz` and the train rows of `removed.tsv.gz`; {} without it."""
    if not (folder / "removed.tsv.gz").exists():
        return set()
    removed = _fields(folder / "removed.tsv.gz")
    rows = [*_fields(folder / "train.tsv.gz"), *(row for row in removed if row["split"] == "train")]
    return {text_key(row["text"]) for row in rows}


def _fields(path: Path) -> list[dict[str, Any]]:
    return [line.fields for line in read_rows(Source(path)) if isinstance(line, Row)]


def behaviour_rows(path: Path) -> dict[str, list[tuple[str, int]]]:
    """(text, label) by category, from a table with the columns category, label (0 or 1) and text."""
    found: dict[str, list[tuple[str, int]]] = {}
    for row in _fields(path):
        found.setdefault(row["category"], []).append((row["text"], int(row["label"])))
    return found


def behaviour(classifier: Classifier, rows: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, int]:
    """How many sentences of each category it gets right."""
    found = {}
    for category, sentences in rows.items():
        given = classifier.probabilities([text for text, _ in sentences]).argmax(axis=1)
        found[category] = int((given == [label for _, label in sentences]).sum())
    return found


def timing_texts(test: Mapping[str, Sequence[Example]]) -> list[str]:
    """The texts that every system is timed on: as many of each set, spread over it, short ones first.

    By length, because a batch is padded to its longest text: in chance order most of the work would be padding.
    """
    texts = []
    for rows in test.values():
        places = np.linspace(0, len(rows) - 1, min(TEXTS_A_SET, len(rows))).astype(int)
        texts += [rows[place].text for place in places]
    return sorted(texts, key=len)


def texts_per_second(classifier: Classifier, texts: Sequence[str]) -> float:
    """Median of the rounds; by this process's processor time, so that other work on the machine counts little."""
    classifier.probabilities(texts[:BATCH])  # dictionaries and caches are loaded once, not per text
    rates = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        for start in range(0, len(texts), BATCH):
            classifier.probabilities(texts[start : start + BATCH])
        rates.append(len(texts) / (time.process_time() - begin))
    return statistics.median(rates)
