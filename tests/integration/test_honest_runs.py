"""What a run claims to do, seen from outside: its rates, its skipped steps, its weights for rare classes, its best."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.encoder import Classifier
from lengnuan.training import __main__ as command
from lengnuan.training.config import TrainConfig
from lengnuan.training.fit import build_classifier, encode_examples, load_trained
from lengnuan.training.job import Job
from lengnuan.training.judge import predict
from lengnuan.training.losses import Objective
from lengnuan.training.optimise import MAX_BAD_STEPS, Optimiser, learning_rate_at

pytestmark = pytest.mark.integration


def fit_arguments(root: Path, run: Path, *settings: str) -> list[str]:
    found = ["fit", "--config", str(root / "small.toml"), "--data", str(root), "--output", str(run)]
    for setting in settings:
        found += ["--set", setting]
    return found


def log_of(run: Path, key: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if key in row]


# The schedule


def test_every_step_has_its_closed_form_s_rate_with_parts_and_after_a_kill(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: dict[int, float] = {}
    deaths: list[int] = []
    update = Optimiser.update

    def watched(optimiser: Optimiser) -> tuple[float, float]:
        step = optimiser.step
        found = update(optimiser)
        rates[step] = optimiser._adamw.param_groups[0]["lr"]
        if step == 13 and not deaths:
            deaths.append(step)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Optimiser, "update", watched)
    config = small_config(root, fit={"epochs": 10, "accumulate": 3, "batch_tokens": 256, "patience": 99})
    with pytest.raises(KeyboardInterrupt):
        Job(config, tmp_path / "run").fit()
    Job(config, tmp_path / "run").fit()
    steps = max(rates) + 1
    assert sorted(rates) == list(range(steps))
    assert steps > 30
    expected = {step: learning_rate_at(step, steps, config.fit.optimiser) for step in rates}
    assert rates == expected


# Steps that are not finite


def spoiled(bad: Callable[[int], bool]) -> Callable[[Objective, torch.Tensor, torch.Tensor], torch.Tensor]:
    """The objective, but NaN in those calls."""
    calls = 0
    original = Objective.__call__

    def loss(objective: Objective, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(objective, logits, targets) * (math.nan if bad(calls) else 1.0)

    return loss


def test_a_few_bad_steps_are_skipped_and_counted_in_the_log(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objective, "__call__", spoiled(lambda call: call in (3, 4, 15)))
    assert command.main(fit_arguments(root, tmp_path / "run")) == 0
    assert log_of(tmp_path / "run", "skipped_steps")[0]["skipped_steps"] == 3


def test_too_many_in_a_row_end_the_run_with_6(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Objective, "__call__", spoiled(lambda call: call > 12))
    assert command.main(fit_arguments(root, tmp_path / "run")) == 6
    assert f"{MAX_BAD_STEPS} steps in a row were not finite" in caplog.text


# Rare classes


def judged(root: Path, run: Path, **fit: object) -> tuple[float, float]:
    """(recall of the rare class, balanced accuracy) on the test rows."""
    labels = {"common": ["0"], "rare": ["1"]}
    settings = {"epochs": 3, "min_steps": 1, "batch_tokens": 512, "allow_collapsed": True, "metric": "macro_f1"} | fit
    config = small_config(root, labels=labels, fit=settings | {"optimiser": {"learning_rate": 3e-3}})
    job = Job(config, run)
    tokenizer, corpus = job.tokenizer(), job.corpus
    job.fit()
    model = job_model(config, job)
    rows = encode_examples(tokenizer, corpus.test["test"], config.model.max_tokens)
    answers = predict(model, rows.rows, 512, job.hardware).argmax(axis=1)
    return float(recall_score(rows.labels, answers)), float(balanced_accuracy_score(rows.labels, answers))


def job_model(config: TrainConfig, job: Job) -> Classifier:
    model = build_classifier(config, job.tokenizer(), 2, None)
    load_trained(model, job.folder / "best.safetensors", allow_collapsed=True)
    return model.eval()


def test_weights_find_more_of_a_class_that_is_twenty_times_rarer(tmp_path: Path) -> None:
    common = [row for row in sentences(2400, seed=1) if row[1] == 0]
    rare = [row for row in sentences(120, seed=2) if row[1] == 1]
    write_tsv(tmp_path / "train.tsv", common + rare)
    plain_recall, plain_balanced = judged(tmp_path, tmp_path / "plain")
    recall, balanced = judged(tmp_path, tmp_path / "balanced", class_weight="balanced")
    assert recall >= plain_recall + 0.10
    assert balanced >= plain_balanced


# Best is best


def test_an_unknown_metric_is_an_error_before_anything_starts(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(fit_arguments(root, tmp_path / "run", "fit.metric=acuracy")) == 2
    assert "fit.metric" in caplog.text
    assert not (tmp_path / "run").exists()


def test_the_best_evaluation_of_the_log_is_what_is_kept_and_what_it_scores(tmp_path: Path) -> None:
    wrong = [(text, 1 - label if index % 5 == 0 else label) for index, (text, label) in enumerate(sentences(300))]
    write_tsv(tmp_path / "train.tsv", wrong)  # so that training on too long makes it worse
    config = small_config(tmp_path, fit={"epochs": 8, "batch_tokens": 512, "optimiser": {"learning_rate": 0.1}})
    job = Job(config, tmp_path / "run")
    tokenizer, corpus = job.tokenizer(), job.corpus
    job.fit()
    evaluations = log_of(job.folder, "dev_accuracy")
    dev = encode_examples(tokenizer, corpus.dev["dev"], config.model.max_tokens)
    answers = predict(job_model(config, job), dev.rows, 512, job.hardware).argmax(axis=1)
    scores = [row["dev_accuracy"] for row in evaluations]
    assert round(float(np.mean(answers == dev.labels)), 6) == max(scores)
    assert scores[-1] < max(scores), "the last is not the best here, so keeping the last would be seen"


# Options off by default


@pytest.mark.parametrize(
    "setting", ["fgm_epsilon=0.5", "r_drop=1.0", "dropout_samples=4", "focal_gamma=2", 'class_weight="effective"']
)
def test_an_option_trains_to_other_weights_and_still_learns(setting: str, root: Path, tmp_path: Path) -> None:
    settings = [f"fit.{setting}", "model.dropout=0.1"]
    assert command.main(fit_arguments(root, tmp_path / "with", *settings)) == 0
    assert command.main(fit_arguments(root, tmp_path / "without", "model.dropout=0.1")) == 0
    assert max(row["dev_accuracy"] for row in log_of(tmp_path / "with", "dev_accuracy")) > 0.9
    losses = [[row["loss"] for row in log_of(tmp_path / name, "loss")] for name in ("with", "without")]
    assert losses[0] != losses[1]


def test_adversarial_training_of_an_unknown_parameter_is_a_usage_error(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(fit_arguments(root, tmp_path / "run", "fit.fgm_epsilon=1", "fit.fgm_parameter=word_emb")) == 2
    assert "'word_emb' is in no parameter's name" in caplog.text
