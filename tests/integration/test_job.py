"""The whole job on texts made here: data in, bundle out, and the invariant that everything rests on."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.bundle import Bundle
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine, replay_golden, score
from lengnuan.model.padding import pad
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.training import __main__ as command
from lengnuan.training.errors import UsageError
from lengnuan.training.job import Job

pytestmark = pytest.mark.integration

CONFIG = """
name = "small"
threads = 1
precision = "float32"
[labels]
negative = ["0"]
positive = ["1"]
[data.train]
reviews = "train.tsv"
[tokenizer]
pieces = 60
min_count = 2
[model]
max_tokens = 32
width = 16
layers = 1
heads = 2
feed_forward_width = 32
[pretrain]
corpus = ["train.tsv"]
epochs = 2
max_tokens = 32
batch_tokens = 512
[fit]
epochs = 6
batch_tokens = 512
ema_decay = 0.9
[fit.optimiser]
learning_rate = 1e-2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("job")
    write_tsv(root / "train.tsv", sentences(400))
    (root / "small.toml").write_text(CONFIG, encoding="utf-8")
    arguments = ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(root / "run")]
    assert command.main(["run", *arguments]) == 0
    return root / "run"


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


def test_evaluate_gives_the_report_s_figures_from_the_files_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_tsv(tmp_path / "fresh.tsv", sentences(60, seed=5))
    arguments = ["evaluate", "--bundle", str(run / "bundle"), "--data", str(file), "--json", str(tmp_path / "out.json")]
    assert command.main(arguments) == 0
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["files"]["fresh"]
    bundle = Bundle.load(run / "bundle")
    rows = [bundle.tokenizer.encode(text) for text, _ in sentences(60, seed=5)]
    answers = score(OnnxEngine(bundle.model_file, "cpu", 1), rows, 32).argmax(axis=1)
    assert found["accuracy"] == float(np.mean(answers == [label for _, label in sentences(60, seed=5)]))
    assert f"{100 * found['accuracy']:.2f}" in capsys.readouterr().out


def test_a_finished_run_repeats_only_its_last_stage(run: Path) -> None:
    root = run.parent
    before = (run / "best.safetensors").stat().st_mtime_ns
    arguments = ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(run)]
    assert command.main(["export", *arguments]) == 0
    assert (run / "best.safetensors").stat().st_mtime_ns == before
    Bundle.load(run / "bundle")


def test_another_config_in_the_same_folder_is_refused(run: Path) -> None:
    root = run.parent
    arguments = ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(run)]
    assert command.main(["run", *arguments, "--set", "seed=2"]) == 2


def test_eight_rows_train_and_export(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [(char, index % 2) for index, char in enumerate("坏好差棒烂赞劣优")])
    write_tsv(tmp_path / "dev.tsv", [("行", 1), ("糟", 0)])
    data = {"root": tmp_path, "train": {"a": "train.tsv"}, "dev": {"a": "dev.tsv"}, "test_share": 0.0}
    Bundle.load(Job(small_config(tmp_path, data=data), tmp_path / "run").run())


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
    (tmp_path / "small.toml").write_text(CONFIG, encoding="utf-8")
    arguments = ["--config", str(tmp_path / "small.toml"), "--data", str(tmp_path), "--output", str(tmp_path / "run")]
    assert command.main(["run", *arguments]) == 3
