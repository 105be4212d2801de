"""Training more than once: several seeds, and folds; each run of its own, all on the same rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.model.bundle import Bundle
from lengnuan.training import __main__ as command
from lengnuan.training.judge import BEST
from lengnuan.training.optimise import Optimiser

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    wrong = [(text, 1 - label if index % 7 == 0 else label) for index, (text, label) in enumerate(sentences(300))]
    write_tsv(folder / "train.tsv", wrong)  # so that seeds differ in their score
    (folder / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    return folder


def arguments(root: Path, stage: str, run: Path, *more: str) -> list[str]:
    settings = ["--set", "pretrain.epochs=1", "--set", 'gate.acknowledged=["conflicting"]']
    return [stage, "--config", str(root / "small.toml"), "--data", str(root), "--output", str(run), *settings, *more]


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def seeds(root: Path) -> Path:
    assert command.main(arguments(root, "run", root / "seeds", "--seeds", "3")) == 0
    return root / "seeds"


@pytest.fixture(scope="module")
def folds(root: Path) -> Path:
    assert command.main(arguments(root, "fit", root / "folds", "--folds", "3")) == 0
    return root / "folds"


# Seeds


def test_every_seed_is_a_run_of_its_own_on_the_same_rows(seeds: Path) -> None:
    runs = [seeds / f"seed-{seed}" for seed in (1, 2, 3)]
    weights = [load_file(run / BEST)["head.weight"] for run in runs]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert {(run / "data.json").read_bytes() for run in runs} == {(seeds / "data.json").read_bytes()}
    assert {(run / "encoder.safetensors").read_bytes() for run in runs} == {
        (seeds / "encoder.safetensors").read_bytes()
    }


def test_the_dev_scores_of_all_are_recorded_by_source(seeds: Path) -> None:
    found = read(seeds / "seeds.json")
    dev = {seed: read(seeds / f"seed-{seed}" / "dev.json") for seed in (1, 2, 3)}
    assert found["scores"] == {str(seed): row["score"] for seed, row in dev.items()}
    assert found["sources"]["dev"]["scores"] == {str(seed): row["sources"]["dev"] for seed, row in dev.items()}
    assert found["scores"] == pytest.approx(found["sources"]["dev"]["scores"])  # with a single source
    assert found["min"] == min(found["scores"].values())


def test_the_median_one_is_kept_and_exported(seeds: Path) -> None:
    median = read(seeds / "seeds.json")["median_seed"]
    bundle = Bundle.load(seeds / "bundle")
    kept = load_file(seeds / f"seed-{median}" / BEST)
    assert all(torch.equal(kept[name], value) for name, value in load_file(bundle.path / "weights.safetensors").items())


def test_report_metrics_card_and_manifest_say_so(seeds: Path) -> None:
    found = read(seeds / "seeds.json")
    report = seeds / "bundle" / "report"
    assert read(report / "metrics.json")["seeds"] == found
    assert Bundle.load(seeds / "bundle").manifest.scores["seeds"] == found
    for name in ("report.html", "MODEL_CARD.md"):
        assert f"This is the median one, seed {found['median_seed']}." in (report / name).read_text(encoding="utf-8")


def test_the_log_is_that_of_the_pretraining_and_of_the_median_seed(seeds: Path) -> None:
    median = read(seeds / "seeds.json")["median_seed"]
    rows = [json.loads(line) for line in (seeds / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = (seeds / f"seed-{median}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row["stage"] == "fit"] == [json.loads(line) for line in kept]
    assert {row["stage"] for row in rows} == {"pretrain", "fit"}


def test_seeds_that_are_done_are_not_trained_again_and_more_can_be_added(
    root: Path, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    update = Optimiser.update
    monkeypatch.setattr(Optimiser, "update", lambda optimiser: (steps.append(1), update(optimiser))[1])
    assert command.main(arguments(root, "fit", seeds, "--seeds", "3")) == 0
    assert steps == []
    before = (seeds / "seed-2" / BEST).read_bytes()
    assert command.main(arguments(root, "fit", seeds, "--seeds", "4")) == 0
    assert steps
    assert len(read(seeds / "seeds.json")["scores"]) == 4
    assert (seeds / "seed-2" / BEST).read_bytes() == before


def test_a_stopped_seed_goes_on(root: Path, seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Optimiser.update
    steps = []

    def stop(optimiser: Optimiser) -> tuple[float, float]:
        steps.append(1)
        if len(steps) == 40:  # in the second seed
            raise KeyboardInterrupt
        return update(optimiser)

    with monkeypatch.context() as patch:
        patch.setattr(Optimiser, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            command.main(arguments(root, "fit", tmp_path / "run", "--seeds", "2", "--set", "pretrain.corpus=[]"))
    whole = arguments(root, "fit", tmp_path / "whole", "--seeds", "2", "--set", "pretrain.corpus=[]")
    again = arguments(root, "fit", tmp_path / "run", "--seeds", "2", "--set", "pretrain.corpus=[]")
    assert [command.main(whole), command.main(again)] == [0, 0]
    assert read(tmp_path / "run" / "seeds.json") == read(tmp_path / "whole" / "seeds.json")
    for seed in (1, 2):
        stopped, undisturbed = (load_file(tmp_path / name / f"seed-{seed}" / BEST) for name in ("run", "whole"))
        assert all(torch.equal(stopped[name], value) for name, value in undisturbed.items())


def test_one_seed_and_several_do_not_share_a_folder(
    root: Path, seeds: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(arguments(root, "fit", seeds)) == 2
    assert "several seeds" in caplog.text
    assert command.main(arguments(root, "fit", tmp_path / "one")) == 0
    assert command.main(arguments(root, "fit", tmp_path / "one", "--seeds", "2")) == 2
    assert "one seed" in caplog.text


@pytest.mark.parametrize("options", [["--seeds", "1"], ["--seeds", "2", "--set", 'average=["runs/a"]']])
def test_seeds_of_nothing_are_a_usage_error(root: Path, tmp_path: Path, options: list[str]) -> None:
    assert command.main(arguments(root, "fit", tmp_path / "run", *options)) == 2


# Folds


def test_the_network_learns_in_every_fold_and_judges_the_rest(folds: Path) -> None:
    found = read(folds / "folds-3" / "folds.json")
    lines = (folds / "folds-3" / "out-of-fold.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == found["out_of_fold"]["rows"] == sum(found["rows"])
    assert found["out_of_fold"]["accuracy"] > 0.7  # a seventh of the labels is wrong
    assert min(found["dev"]["scores"]) > 0.6


def test_a_fold_does_not_depend_on_those_before_it(root: Path, folds: Path, tmp_path: Path) -> None:
    file = folds / "folds-3" / "out-of-fold.jsonl"
    before = file.read_bytes()
    third = folds / "folds-3" / "fold-3"
    third.rename(tmp_path / "fold-3")
    file.unlink()
    assert command.main(arguments(root, "fit", folds, "--folds", "3")) == 0
    assert file.read_bytes() == before
    old, new = (load_file(folder / BEST) for folder in (tmp_path / "fold-3", third))
    assert all(torch.equal(old[name], value) for name, value in new.items())


def test_another_config_in_a_fold_s_folder_is_refused(root: Path, folds: Path) -> None:
    assert command.main(arguments(root, "fit", folds, "--folds", "3", "--set", "seed=9")) == 2


def test_folds_by_n_grams_train_no_network(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(root, "fit", tmp_path / "run", "--folds", "3", "--ngrams")) == 0
    assert not list((tmp_path / "run").rglob(BEST))
    assert "out of fold" in capsys.readouterr().out
