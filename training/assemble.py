"""From a trained network to a bundle: export, prove, calibrate, judge, describe, seal."""

import importlib.metadata
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.model.bundle import (
    GOLDEN,
    MODEL,
    REFERENCE,
    TOKENIZER,
    WEIGHTS,
    Bundle,
    Manifest,
    Precision,
)
from lengnuan.model.encoder import Classifier
from lengnuan.model.engine import Engine, Logits, OnnxEngine, replay_golden, score
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.calibrate import Calibration, coverage_curve, fit_temperature, fit_threshold
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.evaluate import mean_scores, scored
from lengnuan.training.examples import Examples
from lengnuan.training.export import INPUTS, check_parity, export_onnx, graph_outputs, round_weights
from lengnuan.training.files import write_tensors
from lengnuan.training.judge import Selection
from lengnuan.training.nonsense import CONFIDENT, KINDS, WANTED_SHARE, nonsense_figures
from lengnuan.training.reduced import measure
from lengnuan.training.referee import Referee
from lengnuan.training.reference import Profiler, Reference
from lengnuan.training.report import Findings, write_report
from lengnuan.training.scores import Scored, answered, calibration_error, margin, summary
from lengnuan.training.splits import share_of

log = logging.getLogger(__name__)

GOLDEN_DEV_TEXTS = 24
# Texts that exercise the pipeline rather than the task: width, traditional characters, emoji, runs, unknown
# characters, a single character, and one far over any limit.
PROBES = (
    "好",
    "服务太差了",
    "這部電影雖然前半段節奏很慢，但結尾非常精彩",
    "ＡＢＣ１２３ abc123 Very GOOD!!!!!!",
    "😭😭😭😭 悲伤的音乐[泪]\u200b\u3000\ufeff",
    "\U00020bb7野家 ꙮ かな Ωмир",
    "一开始不喜欢，后来越看越好看。" * 100,
)


@dataclass(frozen=True)
class Trained:
    """A network and everything that made it.

    `students`: dev score of the distilled and of the plain one, if taught; `seeds`: what `seeds.json` holds, if it is
    the median of several.
    """

    config: TrainConfig
    corpus: Corpus
    tokenizer: Tokenizer
    model: Classifier
    selection: Selection
    students: dict[str, float]
    seeds: dict[str, Any] = field(default_factory=dict)


def make_bundle(trained: Trained, run_folder: Path) -> Path:
    """Write `run_folder/bundle`; an older one there is replaced only when the new one is whole.

    Raises:
        ParityFailed: network and graph do not answer alike.
        BundleRefused: the finished folder does not load or does not answer as recorded.
    """
    config = trained.config
    folder = run_folder / "bundle.writing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    round_weights(trained.model, config.export.weight_type)
    metadata = {"labels": json.dumps(trained.corpus.labels.names), "fingerprint": trained.tokenizer.fingerprint()}
    export_onnx(trained.model, folder / MODEL, config.export.weight_type, metadata)
    engine = OnnxEngine(folder / MODEL, "cpu", config.threads)
    parity = check_parity(trained.model, engine)
    trained.tokenizer.to_file(folder / TOKENIZER)
    if config.export.include_weights:
        write_tensors(folder / WEIGHTS, trained.model.state_dict())
    _write_json(folder / GOLDEN, _golden(trained, engine))
    logits = {name: _logits(trained, engine, rows) for name, rows in trained.corpus.dev.items()}
    calibration, dev = _calibrate(trained, logits)
    _reference(trained, calibration, dev).write(folder / REFERENCE)
    findings = _judge(trained, engine, calibration, dev, parity)
    write_report(folder / "report", config, findings, run_folder)
    precision = _precision(trained, folder / MODEL, logits)
    Bundle.write(folder, _manifest(trained, calibration, findings, precision))
    bundle = Bundle.load(folder)
    log.info("bundle: golden answers differ by at most %.1e", replay_golden(bundle, engine))
    target = run_folder / "bundle"
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    return target


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _logits(trained: Trained, engine: Engine, examples: Examples) -> Logits:
    rows = [trained.tokenizer.encode(example.text) for example in examples]
    return score(engine, rows, trained.config.model.max_tokens)


def _golden(trained: Trained, engine: Engine) -> list[dict[str, Any]]:
    """Probes and a few dev texts with the ids and logits that they have now."""
    dev = {example.text for rows in trained.corpus.dev.values() for example in rows}
    chosen = sorted(dev, key=lambda text: share_of(text, trained.config.seed))[:GOLDEN_DEV_TEXTS]
    texts = [*PROBES, *chosen]
    ids = [trained.tokenizer.encode(text) for text in texts]
    logits = score(engine, ids, trained.config.model.max_tokens)
    return [
        {"text": text, "ids": row, "logits": [float(x) for x in found]}
        for text, row, found in zip(texts, ids, logits, strict=True)
    ]


def _precision(trained: Trained, model_file: Path, logits: Mapping[str, Logits]) -> Precision:
    """How weights are kept, and what cheaper arithmetic does to the dev answers; `logits` are in float32, by source."""
    config = trained.config
    texts = (example.text for name in logits for example in trained.corpus.dev[name])
    rows = [trained.tokenizer.encode(text) for text in texts]
    exact = np.concatenate(list(logits.values()))
    found = measure(model_file, rows, exact, config.model.max_tokens, config.threads)
    return Precision(weights=config.export.weight_type, reduced={name: entry for name, entry in found.items() if entry})


def _calibrate(trained: Trained, logits: Mapping[str, Logits]) -> tuple[Calibration, dict[str, Scored]]:
    """Temperature and threshold from all dev rows together; and the calibrated dev predictions by source."""
    labels = np.array([example.label for rows in trained.corpus.dev.values() for example in rows], dtype=np.int64)
    temperature = fit_temperature(np.concatenate(list(logits.values())), labels)
    keys = trained.corpus.leaked
    dev = {name: scored(trained.corpus.dev[name], found, temperature, keys) for name, found in logits.items()}
    everything = np.concatenate([part.probabilities for part in dev.values()])
    threshold = fit_threshold(labels, everything, trained.config.export.abstain_accuracy)
    before = calibration_error(labels, softmax(np.concatenate(list(logits.values()))))
    after = calibration_error(labels, everything)
    log.info("calibrate: temperature %.3f (ECE %.3f before, %.3f after)", temperature, before, after)
    answered = everything.max(axis=1) >= threshold
    right = everything.argmax(axis=1) == labels
    accuracy = float(right[answered].mean()) if answered.any() else 0.0
    log.info("abstain below %.3f: %.1f %% answered, %.2f %% right", threshold, 100 * answered.mean(), 100 * accuracy)
    return Calibration(temperature, threshold, before, after, float(answered.mean()), accuracy), dev


def _judge(
    trained: Trained, engine: Engine, calibration: Calibration, dev: dict[str, Scored], parity: dict[str, Any]
) -> Findings:
    """Test and dev figures of the graph that ships, with the referee's beside them."""
    corpus, labels = trained.corpus, trained.corpus.labels.names
    keys = corpus.leaked
    referee = Referee(corpus)
    test, test_referee = {}, {}
    for name, rows in corpus.test.items():
        test[name] = scored(rows, _logits(trained, engine, rows), calibration.temperature, keys)
        test_referee[name] = Scored(
            test[name].labels,
            referee.probabilities([example.text for example in rows]),
            test[name].domains,
            test[name].leaked,
        )
    threshold = calibration.abstain_threshold
    summaries = {name: summary(part, labels) | {"answered": answered(part, threshold)} for name, part in test.items()}
    figures = {
        "labels": list(labels),
        "data": corpus.facts | {"tokens": _token_shares(trained)},
        "training": asdict(trained.selection)
        | {"dev_accuracy_of_bundle": _mean_accuracy(dev), "dev_scores_of_students": trained.students},
        **({"seeds": trained.seeds} if trained.seeds else {}),
        "parity": parity,
        "calibration": asdict(calibration) | _curve(trained, dev),
        "nonsense": _nonsense(trained, engine, calibration.temperature),
        "dev": {name: summary(part, labels) for name, part in dev.items()},
        "test": {"files": summaries, "mean": mean_scores(summaries)} if summaries else {},
        "referee": {
            "method": f"character 1-3-gram TF-IDF + logistic regression, C = {referee.inverse_penalty:g}",
            "dev_accuracy": referee.dev_accuracy,
            "test": {name: summary(part, labels) for name, part in test_referee.items()},
        },
        "margin_over_referee": margin(test, test_referee) if test else {},
    }
    return Findings(figures, dev, test, corpus.test)


def _curve(trained: Trained, dev: dict[str, Scored]) -> dict[str, Any]:
    """What abstaining brings on dev at every threshold, and what was asked of it."""
    labels = np.concatenate([part.labels for part in dev.values()])
    probabilities = np.concatenate([part.probabilities for part in dev.values()])
    return {
        "wanted_accuracy": trained.config.export.abstain_accuracy,
        "dev_curve": coverage_curve(labels, probabilities),
    }


def _nonsense(trained: Trained, engine: Engine, temperature: float) -> dict[str, Any]:
    found = nonsense_figures(trained.tokenizer, engine, trained.config.model.max_tokens, temperature)
    if not found["passed"]:
        log.warning(
            "nonsense: random characters get a confidence under %g in %.1f %% of the cases, %.0f %% wanted: see "
            "[augment] nonsense in docs/training.md",
            *(CONFIDENT, 100 * min(found[kind]["below_limit"] for kind in KINDS), 100 * WANTED_SHARE),
        )
    return found


def _token_shares(trained: Trained) -> dict[str, dict[str, float]]:
    """By split: mean length in tokens, share of rows that are cut, mean share of tokens that are bare bytes."""
    corpus, limit = trained.corpus, trained.config.model.max_tokens
    splits = {"train": [corpus.train], "dev": corpus.dev.values(), "test": corpus.test.values()}
    shares = {}
    for split, sources in splits.items():
        rows = [trained.tokenizer.encode(example.text) for source in sources for example in source]
        if rows:
            shares[split] = {
                "mean_tokens": float(np.mean([len(row) for row in rows])),
                "truncated_share": float(np.mean([len(row) > limit for row in rows])),
                "unknown_token_share": float(np.mean([trained.tokenizer.unknown_share(row) for row in rows])),
            }
    return shares


def _mean_accuracy(parts: dict[str, Scored]) -> float:
    return float(np.mean([part.right.mean() for part in parts.values()]))


def _reference(trained: Trained, calibration: Calibration, dev: dict[str, Scored]) -> Reference:
    """What the training texts and the answers to dev looked like."""
    corpus = trained.corpus
    names = corpus.labels.names
    profiler = Profiler(trained.tokenizer, trained.config.model.max_tokens, names)
    profiler.add_texts([example.text for example in corpus.train])
    for part in dev.values():
        profiler.add_answers(part.probabilities, calibration.abstain_threshold)
    labels = np.array([example.label for example in corpus.train])
    return profiler.finish({name: float((labels == i).mean()) for i, name in enumerate(names)})


def _manifest(trained: Trained, calibration: Calibration, findings: Findings, precision: Precision) -> Manifest:
    config, corpus = trained.config, trained.corpus
    of_seeds = {"seeds": trained.seeds} if trained.seeds else {}
    return Manifest(
        name=config.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        task=config.export.task,
        labels=corpus.labels.names,
        display_names=config.display_names,
        max_tokens=config.model.max_tokens,
        fingerprint=trained.tokenizer.fingerprint(),
        inputs=INPUTS,
        outputs=graph_outputs(len(corpus.labels.names)),
        temperature=calibration.temperature,
        abstain_threshold=calibration.abstain_threshold,
        precision=precision,
        encoder=asdict(trained.model.encoder.config),
        scores=findings.short() | of_seeds,
        data={
            "identity": corpus.facts["identity"],
            "label_spellings": {name: list(spellings) for name, spellings in config.labels.items()},
            "train_rows": len(corpus.train),
            "sources": config.sources,
        },
        code_version=importlib.metadata.version("lengnuan"),
    )
