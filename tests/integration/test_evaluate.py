"""`lengnuan-train evaluate` on a bundle that a run has left."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import sentences, write_tsv

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import OnnxEngine, score
from lengnuan.model.probabilities import softmax
from lengnuan.training import __main__ as command
from lengnuan.training.calibrate import fit_temperature, fit_threshold
from lengnuan.training.config import load_config
from lengnuan.training.corpus import read_corpus
from lengnuan.training.evaluate import logits_of
from lengnuan.training.job import Job
from lengnuan.training.referee import Referee

pytestmark = pytest.mark.integration


def evaluate(run: Path, out: Path, *arguments: str) -> dict[str, Any]:
    file = out / "figures.json"
    assert command.main(["evaluate", "--bundle", str(run / "bundle"), "--json", str(file), *arguments]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def metrics(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "bundle" / "report" / "metrics.json").read_text(encoding="utf-8"))
    return found


def test_it_scores_what_the_engine_answers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sentences(60, seed=5)
    found = evaluate(run, tmp_path, "--data", str(write_tsv(tmp_path / "fresh.tsv", rows)))["files"]["fresh"]
    bundle = Bundle.load(run / "bundle")
    ids = [bundle.tokenizer.encode(text) for text, _ in rows]
    answers = score(OnnxEngine(bundle.model_file, "cpu", 1), ids, 32).argmax(axis=1)
    assert found["accuracy"] == float(np.mean(answers == [label for _, label in rows]))
    assert f"{100 * found['accuracy']:.2f}" in capsys.readouterr().out


def test_rows_that_are_also_in_train_are_scored_apart_whatever_their_label(run: Path, tmp_path: Path) -> None:
    rows = sentences(60, seed=5)
    file = write_tsv(tmp_path / "fresh.tsv", rows)
    (tmp_path / "seen.txt").write_text("".join(f"{text}!!\n" for text, _ in rows[:20]), encoding="utf-8")
    found = evaluate(run, tmp_path, "--data", str(file), "--train", str(tmp_path / "seen.txt"))["files"]["fresh"]
    assert found["leaked"]["rows"] >= 20
    assert found["leaked"]["rows"] + found["clean"]["rows"] == 60


def test_where_marks_give_labels_away_the_texts_are_also_scored_without_them(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(text + ("[怒]", "[赞]")[label], label) for text, label in sentences(300, seed=5)]
    plain = sentences(300, seed=5)
    files = [str(write_tsv(tmp_path / f"{name}.tsv", part)) for name, part in (("marked", rows), ("plain", plain))]
    found = evaluate(run, tmp_path, "--data", *files)["files"]
    assert found["marked"]["without_shortcuts"]["rows"] == 300
    assert found["marked"]["without_shortcuts"]["accuracy"] == found["plain"]["accuracy"]
    assert {mark["token"] for mark in found["marked"]["shortcuts"]["marks"]} == {"[怒]", "[赞]"}
    assert "without_shortcuts" not in found["plain"]
    assert "without its marks" in capsys.readouterr().out


def test_edited_copies_of_training_rows_are_scored_apart_too(run: Path, tmp_path: Path) -> None:
    rows = sentences(60, seed=5)
    text = "房间很好，味道太差，服务满意，电影糟糕，手机推荐，快递后悔"
    file = write_tsv(tmp_path / "fresh.tsv", [*rows, (text, 1)])
    (tmp_path / "seen.txt").write_text(text[:-2] + "难吃\n", encoding="utf-8")
    found = evaluate(run, tmp_path, "--data", str(file), "--train", str(tmp_path / "seen.txt"))["files"]["fresh"]
    assert (found["leaked"]["rows"], found["clean"]["rows"]) == (1, 60)


def test_labels_that_the_bundle_does_not_know_are_refused_not_left_out(run: Path, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "fresh.tsv", [(text, label + 1) for text, label in sentences(40, seed=5)])
    assert command.main(["evaluate", "--bundle", str(run / "bundle"), "--data", str(file)]) == 3


def test_the_referee_stands_beside_the_rows_it_was_scored_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = read_corpus(load_config(run.parent / "small.toml", [f'data.root="{run.parent}"']))
    rows = [(example.text, example.label) for example in corpus.test["test"]]
    evaluate(run, tmp_path, "--data", str(write_tsv(tmp_path / "same.tsv", rows)))
    assert "n-grams" in capsys.readouterr().out
    evaluate(run, tmp_path, "--data", str(write_tsv(tmp_path / "test.tsv", sentences(len(rows), seed=6))))
    assert "n-grams" not in capsys.readouterr().out


def test_the_report_s_referee_is_one_fitted_on_the_training_rows(run: Path) -> None:
    corpus = read_corpus(load_config(run.parent / "small.toml", [f'data.root="{run.parent}"']))
    rows = corpus.test["test"]
    answers = Referee(corpus).probabilities([example.text for example in rows]).argmax(axis=1)
    expected = float(np.mean(answers == [example.label for example in rows]))
    assert metrics(run)["referee"]["test"]["test"]["accuracy"] == expected


def test_the_bundle_s_temperature_is_fitted_on_its_dev_logits(run: Path) -> None:
    corpus = read_corpus(load_config(run.parent / "small.toml", [f'data.root="{run.parent}"']))
    bundle = Bundle.load(run / "bundle")
    rows = corpus.dev["dev"]
    logits = logits_of(bundle, OnnxEngine(bundle.model_file, "cpu", 1), rows)
    expected = fit_temperature(logits, np.array([example.label for example in rows]))
    assert bundle.manifest.temperature == pytest.approx(expected, rel=1e-3)


def test_the_bundle_s_threshold_is_the_lowest_that_reaches_the_wanted_accuracy(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    changes = [f'data.root="{run.parent}"', "export.abstain_accuracy=1.0"]
    job = Job(load_config(run.parent / "small.toml", changes), tmp_path / "run")
    bundle = Bundle.load(job.export())
    rows = job.corpus.dev["dev"]
    logits = logits_of(bundle, OnnxEngine(bundle.model_file, "cpu", 1), rows)
    labels = np.array([example.label for example in rows])
    expected = fit_threshold(labels, softmax(logits / bundle.manifest.temperature), 1.0)
    assert bundle.manifest.abstain_threshold == pytest.approx(expected, abs=1e-3)
    assert Bundle.load(run / "bundle").manifest.abstain_threshold == 0.0


def test_a_file_without_rows_is_refused(run: Path, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "empty.tsv", [])
    assert command.main(["evaluate", "--bundle", str(run / "bundle"), "--data", str(file)]) == 2
