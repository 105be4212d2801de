"""The whole job on texts made here: data in, bundle out, and the invariant that everything rests on."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import SMALL_TOML, sentences, small_config, write_tsv

from lengnuan.model.bundle import Bundle
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine, replay_golden
from lengnuan.model.padding import pad
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.training import __main__ as command
from lengnuan.training.config import load_config
from lengnuan.training.errors import UsageError
from lengnuan.training.job import Job
from lengnuan.training.splits import text_key

pytestmark = pytest.mark.integration


def test_the_bundle_loads_and_answers_as_recorded(run: Path) -> None:
    bundle = Bundle.load(run / "bundle")
    assert bundle.labels == ("negative", "positive")
    assert replay_golden(bundle, OnnxEngine(bundle.model_file, "cpu", 1)) <= 1e-4


def test_it_learnt_the_task(run: Path) -> None:
    found = json.loads((run / "bundle" / "report" / "metrics.json").read_text(encoding="utf-8"))
    assert found["test"]["mean"]["accuracy"] > 0.9
    assert found["training"]["dev_accuracy_of_bundle"] == pytest.approx(found["training"]["best_score"], abs=1e-9)


def test_the_report_states_the_margin_over_the_referee_with_an_interval(run: Path) -> None:
    found = json.loads((run / "bundle" / "report" / "metrics.json").read_text(encoding="utf-8"))
    low, high = found["margin_over_referee"]["mean"]["interval"]
    assert low <= found["margin_over_referee"]["mean"]["margin"] <= high
    page = (run / "bundle" / "report" / "report.html").read_text(encoding="utf-8")
    assert "n-gram referee" in page
    assert page.count("<svg") == 5


def test_the_model_card_names_every_file_s_rows_and_the_scores(run: Path) -> None:
    card = (run / "bundle" / "report" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "training rows" in card
    assert re.search(r"\| test \| \d+ \| \d+\.\d+ ", card)


def test_no_path_of_this_machine_is_in_the_bundle(run: Path) -> None:
    here = str(run.parent).encode()
    assert all(here not in file.read_bytes() for file in (run / "bundle").rglob("*") if file.is_file())


def test_padding_and_neighbours_never_change_an_answer(run: Path) -> None:
    """The same text alone, among 31 others, and padded to the limit: in the network and in the graph."""
    bundle = Bundle.load(run / "bundle")
    network = Classifier(EncoderConfig(**bundle.manifest.encoder), 2)
    network.load_state_dict(load_file(run / "bundle" / "weights.safetensors"))
    network.eval()
    rows = [bundle.tokenizer.encode(text)[:32] for text, _ in sentences(32, seed=3)]
    rows[5] = rows[5][:6]
    limit = bundle.manifest.max_tokens
    alone, company, padded = pad([rows[5]], PAD_ID), pad(rows, PAD_ID), pad([rows[5], [7] * limit], PAD_ID)
    for run_batch in (_torch(network), OnnxEngine(bundle.model_file, "cpu", 1).run):
        expected = softmax(run_batch(*alone))[0]
        assert np.abs(softmax(run_batch(*company))[5] - expected).max() <= 1e-5
        assert np.abs(softmax(run_batch(*padded))[0] - expected).max() <= 1e-5


def _torch(network: Classifier):  # type: ignore[no-untyped-def]
    def run_batch(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(token_ids), torch.from_numpy(mask)).numpy()

    return run_batch


def arguments(run: Path) -> list[str]:
    return ["--config", str(run.parent / "small.toml"), "--data", str(run.parent), "--output", str(run)]


def test_a_finished_run_repeats_only_its_last_stage(run: Path) -> None:
    before = (run / "best.safetensors").stat().st_mtime_ns
    assert command.main(["export", *arguments(run)]) == 0
    assert (run / "best.safetensors").stat().st_mtime_ns == before
    Bundle.load(run / "bundle")


@pytest.mark.parametrize("change", ["seed=2", "model.width=32", "fit.epochs=7", 'labels.negative=["0", "坏"]'])
def test_another_training_in_the_same_folder_is_refused(
    run: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(["run", *arguments(run), "--set", change]) == 2
    assert change.split("=", maxsplit=1)[0].split(".negative", maxsplit=1)[0] in caplog.text


@pytest.mark.parametrize("change", ["name=other", "export.abstain_accuracy=0.99", "threads=2"])
def test_what_decides_no_weights_may_change(run: Path, change: str) -> None:
    job = Job(load_config(run.parent / "small.toml", [f'data.root="{run.parent}"', change]), run)
    assert job.corpus.train


def test_other_rows_in_the_same_folder_are_refused(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(401))
    config = ["--config", str(run.parent / "small.toml"), "--output", str(run)]
    assert command.main(["export", *config, "--data", str(tmp_path)]) == 2
    assert "other labels or rows" in caplog.text


def test_classes_in_another_order_are_refused(run: Path, tmp_path: Path) -> None:
    swapped = (
        (run.parent / "small.toml")
        .read_text(encoding="utf-8")
        .replace('negative = ["0"]\npositive = ["1"]', 'positive = ["1"]\nnegative = ["0"]')
    )
    (tmp_path / "swapped.toml").write_text(swapped, encoding="utf-8")
    config = ["--config", str(tmp_path / "swapped.toml"), "--data", str(run.parent), "--output", str(run)]
    assert command.main(["export", *config]) == 2


def test_training_can_start_from_a_bundle(run: Path, tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60, seed=4))
    config = small_config(tmp_path, start_from=run / "bundle", fit={"epochs": 1, "optimiser": {"learning_rate": 1e-9}})
    bundle = Bundle.load(Job(config, tmp_path / "run").run())
    assert bundle.manifest.fingerprint == Bundle.load(run / "bundle").manifest.fingerprint
    old, new = (load_file(folder / "weights.safetensors") for folder in (run / "bundle", bundle.path))
    assert torch.allclose(old["encoder.norm.weight"], new["encoder.norm.weight"], atol=1e-6)


def test_training_cannot_start_from_a_graph_of_another_program(tmp_path: Path, tiny_bundle: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    with pytest.raises(UsageError, match="does not tell its weights apart"):
        Job(small_config(tmp_path, start_from=tiny_bundle), tmp_path / "run").run()


def test_dev_and_test_rows_are_not_pretrained_on(run: Path) -> None:
    job = Job(load_config(run.parent / "small.toml", [f'data.root="{run.parent}"']), run)
    assert not {text_key(text) for text in job.corpus_texts()} & job.corpus.held_out_keys()


def test_eight_rows_train_and_export(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [(char, index % 2) for index, char in enumerate("坏好差棒烂赞劣优")])
    write_tsv(tmp_path / "dev.tsv", [("行", 1), ("糟", 0)])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "dev": {"a": "dev.tsv"}, "test_share": 0.0}
    bundle = Bundle.load(Job(small_config(tmp_path, data=data), tmp_path / "run").run())
    assert bundle.manifest.data["train_rows"] == 8


def test_export_without_trained_weights_says_so(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(60))
    with pytest.raises(UsageError, match="no trained weights"):
        Job(small_config(tmp_path), tmp_path / "run").export()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "--config", "missing.toml", "--output", "x"], 2),
        (["evaluate", "--bundle", "missing", "--data", "missing.tsv"], 2),
        (["data", "fetch", "no-such-set"], 2),
    ],
)
def test_a_wrong_argument_ends_with_a_message_and_its_code(arguments: list[str], code: int) -> None:
    assert command.main(arguments) == code


def test_data_that_cannot_be_trained_on_ends_with_its_code(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("好" * n, 1) for n in range(1, 9)])
    (tmp_path / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    arguments = ["--config", str(tmp_path / "small.toml"), "--data", str(tmp_path), "--output", str(tmp_path / "run")]
    assert command.main(["run", *arguments]) == 3
