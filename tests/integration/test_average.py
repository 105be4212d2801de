"""One network from several runs: the mean of their weights, and what can't be averaged is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import BRIEF, sentences, small_config, write_tsv

from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import selection_of
from lengnuan.training.job import Job
from lengnuan.training.judge import BEST
from lengnuan.training.start import START, start_from

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and another that began with its bundle."""
    root = tmp_path_factory.mktemp("runs")
    write_tsv(root / "train.tsv", sentences(200))
    Job(small_config(root), root / "first").run()
    Job(small_config(root, fit=BRIEF, start_from=root / "first" / "bundle"), root / "second").fit()
    return root / "first", root / "second"


def test_training_starts_from_a_run_as_it_was_trained(runs: tuple[Path, Path], tmp_path: Path) -> None:
    start_from(runs[1], tmp_path)
    begun, given = load_file(tmp_path / START), load_file(runs[1] / BEST)
    assert begun.keys() == {name.removeprefix("encoder.") for name in given if name.startswith("encoder.")}
    assert all(torch.equal(begun[name], given[f"encoder.{name}"]) for name in begun)


def averaging(runs: tuple[Path, ...], **changes: object) -> TrainConfig:
    return small_config(runs[0].parent, average=list(runs), **changes)


def test_the_weights_are_the_mean_and_nothing_is_trained(runs: tuple[Path, Path], tmp_path: Path) -> None:
    bundle = Job(averaging(runs), tmp_path).run()
    first, second, found = (load_file(folder / BEST) for folder in (*runs, tmp_path))
    assert all(torch.allclose(found[name], (first[name] + second[name]) / 2, atol=1e-7) for name in first)
    assert not torch.equal(first["head.weight"], second["head.weight"])
    training = json.loads((bundle / "report" / "metrics.json").read_text(encoding="utf-8"))["training"]
    assert training["dev_accuracy_of_bundle"] == pytest.approx(selection_of(tmp_path / BEST).best_score, abs=1e-9)
    assert training["dev_scores_of_students"] == {run.name: selection_of(run / BEST).best_score for run in runs}


def test_what_is_not_alike_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(90, seed=9))
    Job(small_config(tmp_path, fit=BRIEF), tmp_path / "other").fit()
    with pytest.raises(UsageError, match="other has another tokenizer"):
        Job(averaging((runs[0], tmp_path / "other")), tmp_path / "a").fit()
    with pytest.raises(UsageError, match=r"does not fit \[model\]"):
        Job(averaging(runs, model={"max_tokens": 32, "width": 8, "heads": 2}), tmp_path / "b").fit()
    with pytest.raises(UsageError, match="no trained weights"):
        Job(averaging((runs[0], tmp_path / "nothing")), tmp_path / "c").fit()
    with pytest.raises(UsageError, match="missing"):
        Job(averaging((tmp_path / "missing",)), tmp_path / "d").fit()
