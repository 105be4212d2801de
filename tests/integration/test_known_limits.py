"""What a run knows of its own limits: random characters, coverage, cost; and that it keeps all of it to itself."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.bundle import REFERENCE, Bundle
from lengnuan.model.probabilities import softmax
from lengnuan.training.commands import run as command
from lengnuan.training.fit import build_classifier, encode_texts, load_trained
from lengnuan.training.job import Job
from lengnuan.training.judge import BEST, predict
from lengnuan.training.nonsense import CHECK_SEED, random_texts
from lengnuan.training.reference import HISTOGRAMS, read_reference

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tsv(folder / "train.tsv", sentences(600))
    return folder


@pytest.fixture(scope="module")
def bundle(root: Path) -> Bundle:
    """Made with every connection refused."""

    def refused(*arguments: Any) -> None:
        raise AssertionError(f"a run without [tracking] opened a connection: {arguments[1:]}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refused)
        patch.setattr(socket, "create_connection", refused)
        return Bundle.load(Job(small_config(root, export={"abstain_accuracy": 0.9}), root / "run").run())


def test_a_run_opens_no_connection_and_logs_on_the_disk(bundle: Bundle) -> None:
    folder = bundle.path.parent
    assert (folder / "metrics.jsonl").exists()
    assert list((folder / "tensorboard" / "fit").glob("events.*"))
    assert not (folder / "mlflow.json").exists()


def test_the_report_states_nonsense_coverage_and_cost(bundle: Bundle) -> None:
    found = json.loads((bundle.path / "report" / "metrics.json").read_text(encoding="utf-8"))
    assert set(found["nonsense"]) == {"common", "any", "limit", "wanted_share", "passed"}
    answered = found["test"]["files"]["test"]["answered"]
    assert answered["threshold"] == bundle.manifest.abstain_threshold
    assert found["calibration"]["dev_curve"][0][1] == 1.0
    assert found["effort"]["seconds"]["fit"] > 0
    page = (bundle.path / "report" / "report.html").read_text(encoding="utf-8")
    assert "nonsense: random characters" in page
    assert "threshold, on dev" in page


def test_the_bundle_s_profile_is_of_train_texts_and_dev_answers(bundle: Bundle) -> None:
    facts = json.loads((bundle.path / "report" / "metrics.json").read_text(encoding="utf-8"))["data"]
    found = read_reference(bundle.path / REFERENCE)
    assert found.rows == facts["train_rows"] == sum(found.counts["length"].values())
    assert sum(found.counts["labels"].values()) == sum(facts["dev_rows"].values())
    assert set(found.counts) == set(HISTOGRAMS)


def test_held_out_rows_of_the_same_kind_are_no_drift_and_others_are(bundle: Bundle, tmp_path: Path) -> None:
    same = write_tsv(tmp_path / "same.tsv", sentences(300, seed=9))
    other = write_tsv(tmp_path / "other.tsv", [(text, 0) for text in random_texts("common", 300, seed=9)])
    assert command(["drift", "--bundle", str(bundle.path), "--data", str(same)]) == 0
    assert command(["drift", "--bundle", str(bundle.path), "--data", str(other)]) == 12


def confidence_in_nonsense(root: Path, folder: Path, rows: int) -> float:
    config = small_config(root, augment={"nonsense": rows})
    job = Job(config, folder)
    job.fit()
    tokenizer = job.tokenizer()
    model = build_classifier(config, tokenizer, 2, None)
    load_trained(model, folder / BEST)
    texts, _ = encode_texts(tokenizer, random_texts("common", 300, CHECK_SEED), config.model.max_tokens)
    return float(np.mean(softmax(predict(model, texts, 512, job.hardware)).max(axis=1)))


def test_rows_of_random_characters_teach_doubt_about_them(root: Path, tmp_path: Path) -> None:
    without = confidence_in_nonsense(root, tmp_path / "without", 0)
    taught = confidence_in_nonsense(root, tmp_path / "taught", 200)
    assert taught < without - 0.05
