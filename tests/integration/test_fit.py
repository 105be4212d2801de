import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.tokenizer import MASK_ID, Tokenizer
from lengnuan.training import judge
from lengnuan.training.batches import Collator, Ragged, training_order
from lengnuan.training.config import ModelConfig, TrainConfig
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.errors import TrainingCollapsed, UsageError
from lengnuan.training.fit import (
    build_classifier,
    encode_examples,
    encode_texts,
    fit,
    hide_tokens,
    load_trained,
    plan_steps,
)
from lengnuan.training.judge import predict
from lengnuan.training.lesson import labelled_lesson
from lengnuan.training.optimise import Optimiser, choose_hardware
from lengnuan.training.tokenise import train_tokenizer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Tokenizer, Corpus]:
    root = tmp_path_factory.mktemp("data")
    write_tsv(root / "train.tsv", sentences(400))
    config = small_config(root)
    corpus = read_corpus(config)
    return config, train_tokenizer((e.text for e in corpus.train), config.tokenizer), corpus


def changed(config: TrainConfig, **fit_settings: object) -> TrainConfig:
    return config.model_copy(update={"fit": config.fit.model_copy(update=fit_settings)})


def last_checkpoint(run_folder: Path) -> dict[str, torch.Tensor]:
    (folder,) = (run_folder / "fit-checkpoints").iterdir()
    found: dict[str, torch.Tensor] = load_file(folder / "tensors.safetensors")
    return found


def test_it_learns_a_learnable_task(prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path) -> None:
    config, tokenizer, corpus = prepared
    model, selection = fit(
        config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path, choose_hardware(config)
    )
    assert selection.best_score > 0.9
    assert not model.training


def test_the_kept_weights_are_the_best_and_score_what_was_logged(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path
) -> None:
    config, tokenizer, corpus = prepared
    hardware = choose_hardware(config)
    model, selection = fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path, hardware)
    dev = encode_examples(tokenizer, corpus.dev["dev"], config.model.max_tokens)
    answers = predict(model, dev.rows, 512, hardware).argmax(axis=1)
    assert float((answers == dev.labels).mean()) == selection.best_score


def test_same_seed_same_weights(prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path) -> None:
    config, tokenizer, corpus = prepared
    for name in ("a", "b"):
        fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path / name, choose_hardware(config))
    first, second = (load_file(tmp_path / name / "best.safetensors") for name in ("a", "b"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_interrupted_run_ends_with_the_same_weights(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tokenizer, corpus = prepared
    hardware = choose_hardware(config)
    fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path / "whole", hardware)
    original = Optimiser.update

    def stop_midway(optimiser: Optimiser) -> tuple[float, float]:
        if optimiser.step == 2 * optimiser.steps // 3:
            raise KeyboardInterrupt
        return original(optimiser)

    with monkeypatch.context() as patch:
        patch.setattr(Optimiser, "update", stop_midway)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path / "stopped", hardware)
    fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path / "stopped", hardware)
    whole, stopped = (last_checkpoint(tmp_path / name) for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[key], stopped[key]) for key in whole)
    whole_log, stopped_log = ((tmp_path / name / "metrics.jsonl").read_text("utf-8") for name in ("whole", "stopped"))
    assert whole_log == stopped_log


def test_training_that_learns_nothing_is_called_collapsed(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tokenizer, corpus = prepared
    monkeypatch.setattr(judge, "predict", lambda model, rows, tokens, hardware: np.tile([[1.0, 0.0]], (len(rows), 1)))
    with pytest.raises(TrainingCollapsed, match="no better than guessing"):
        fit(config, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path, choose_hardware(config))
    with pytest.raises(TrainingCollapsed):
        load_trained(build_classifier(config, tokenizer, 2, None), tmp_path / "best.safetensors")
    overridden = changed(config, allow_collapsed=True)
    assert fit(overridden, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path, choose_hardware(config))[
        1
    ].collapsed


def test_what_is_kept_is_the_moving_average(prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path) -> None:
    config, tokenizer, corpus = prepared
    fit(
        changed(config, epochs=1, evaluations_per_epoch=1),
        tokenizer,
        corpus,
        labelled_lesson(corpus.train, 2),
        tmp_path,
        choose_hardware(config),
    )
    kept, state = load_file(tmp_path / "best.safetensors"), last_checkpoint(tmp_path)
    assert torch.equal(kept["head.weight"], state["average.head.weight"])
    assert not torch.equal(kept["head.weight"], state["model.head.weight"])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_label_smoothing_is_what_it_says(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoothing: float
) -> None:
    """The first loss: the mean of (1 - s) * -log p[label] + s / K * sum of -log p, by hand."""
    config, tokenizer, corpus = prepared
    settings = changed(config, label_smoothing=smoothing)
    settings = settings.model_copy(update={"model": quiet(settings)})
    model = build_classifier(settings, tokenizer, 2, None)
    train = encode_examples(tokenizer, corpus.train, config.model.max_tokens)
    first = training_order(train.rows.lengths, 512, seed=config.seed, epoch=0)[0]
    batch = Collator(train.rows, labelled_lesson(corpus.train, 2).targets, torch.device("cpu"))(first)
    minus_log = -torch.log_softmax(model(batch.token_ids, batch.mask), dim=1)
    chosen = minus_log[torch.arange(len(first)), train.labels[first]]
    expected = ((1 - smoothing) * chosen + smoothing * minus_log.mean(dim=1)).mean().item()
    losses: list[float] = []

    def stop_at_once(optimiser: Optimiser, loss: torch.Tensor) -> None:
        losses.append(loss.item())
        raise KeyboardInterrupt

    monkeypatch.setattr(Optimiser, "descend", stop_at_once)
    with pytest.raises(KeyboardInterrupt):
        fit(settings, tokenizer, corpus, labelled_lesson(corpus.train, 2), tmp_path, choose_hardware(settings))
    assert losses == pytest.approx([expected], rel=1e-5)


def quiet(config: TrainConfig) -> ModelConfig:
    """Without dropout, so that a loss can be computed twice."""
    return config.model.model_copy(update={"dropout": 0.0})


def test_few_rows_get_more_epochs(prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path) -> None:
    config, tokenizer, corpus = prepared
    few = Corpus(corpus.labels, corpus.train[:8], corpus.dev, corpus.test, {})
    fit(
        changed(config, epochs=2, min_steps=20, patience=99),
        tokenizer,
        few,
        labelled_lesson(few.train, 2),
        tmp_path,
        choose_hardware(config),
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    evaluations = [row["step"] for row in rows if "dev_accuracy" in row]
    assert evaluations[-1] == 20
    assert len(evaluations) == 4


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 5), (1.0, 10), (1.3, 13), (2, 20), (0.01, 1)])
def test_the_last_epoch_may_be_a_part(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], epochs: float, steps: int
) -> None:
    rows = Ragged([[1] * 8] * 40)
    planned, _ = plan_steps(rows, changed(prepared[0], epochs=epochs, min_steps=1, batch_tokens=32))
    assert len(planned) == steps
    first = np.concatenate([indices for step in planned[:10] for indices in step])
    assert len(set(first.tolist())) == len(first)


def test_patience_stops_early(prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path) -> None:
    config, tokenizer, corpus = prepared
    fit(
        changed(config, epochs=40, patience=2),
        tokenizer,
        corpus,
        labelled_lesson(corpus.train, 2),
        tmp_path,
        choose_hardware(config),
    )
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = sum("dev_accuracy" in line for line in lines)
    assert 3 <= evaluations < 80


def test_an_encoder_in_the_run_folder_is_where_training_starts(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path
) -> None:
    config, tokenizer, _ = prepared
    source = build_classifier(config.model_copy(update={"seed": 7}), tokenizer, 2, None)
    file = tmp_path / "encoder.safetensors"
    save_file({name: value.contiguous() for name, value in source.encoder.state_dict().items()}, file)
    built = build_classifier(config, tokenizer, 2, file)
    assert torch.equal(built.encoder.embeddings.tokens.weight, source.encoder.embeddings.tokens.weight)
    assert not torch.equal(built.head.weight, source.head.weight)


def test_an_encoder_of_another_shape_is_refused(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path
) -> None:
    config, tokenizer, _ = prepared
    save_file({"norm.weight": torch.ones(3)}, tmp_path / "encoder.safetensors")
    with pytest.raises(UsageError, match=r"does not fit \[model\]"):
        build_classifier(config, tokenizer, 2, tmp_path / "encoder.safetensors")


def test_weights_without_a_trained_head_are_refused(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path
) -> None:
    config, tokenizer, _ = prepared
    model = build_classifier(config, tokenizer, 2, None)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "best.safetensors")
    with pytest.raises(UsageError, match="no trained head"):
        load_trained(model, tmp_path / "best.safetensors")


def test_long_texts_are_cut_and_counted(prepared: tuple[TrainConfig, Tokenizer, Corpus]) -> None:
    _, tokenizer, corpus = prepared
    found = encode_examples(tokenizer, corpus.train, 5)
    assert found.rows.lengths.max() == 5
    texts = [example.text for example in corpus.train]
    assert 0.0 < encode_texts(tokenizer, texts, 5)[1] < 1.0
    assert encode_texts(tokenizer, texts, 500)[1] == 0.0


def test_token_dropout_hides_about_its_share_and_zero_hides_nothing() -> None:
    token_ids = torch.full((100, 100), 7)
    hidden = hide_tokens(token_ids, 0.2)
    assert set(hidden.unique().tolist()) == {MASK_ID, 7}
    assert 0.17 < float((hidden == MASK_ID).float().mean()) < 0.23
    assert torch.equal(hide_tokens(token_ids, 0.0), token_ids)


def test_a_label_sorted_file_trains_like_a_shuffled_one(
    prepared: tuple[TrainConfig, Tokenizer, Corpus], tmp_path: Path
) -> None:
    config, tokenizer, corpus = prepared
    rows = sorted(corpus.train, key=lambda example: example.label)
    by_label = Corpus(corpus.labels, rows, corpus.dev, corpus.test, {})
    _, selection = fit(
        config, tokenizer, by_label, labelled_lesson(by_label.train, 2), tmp_path, choose_hardware(config)
    )
    assert selection.best_score > 0.9
