"""The mean of the weights of several runs: one network, as fast as each of them.

Runs that share a start end in one wide basin, so their mean is as good as the best of them or better, and what one of
them learnt is not lost to what another did (Wortsman et al. 2022, arXiv:2203.05482 and arXiv:2109.01903).
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from lengnuan.model.bundle import TOKENIZER
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import build_classifier, encode_dev, selection_of
from lengnuan.training.judge import BEST, Judge
from lengnuan.training.optimise import Hardware
from lengnuan.training.runlog import RunLog

log = logging.getLogger(__name__)


def average(config: TrainConfig, tokenizer: Tokenizer, corpus: Corpus, run_folder: Path, hardware: Hardware) -> None:
    """Put the mean of `config.average`'s best weights into `run_folder/best.safetensors`, with its dev score.

    Raises:
        UsageError: a run without trained weights, of another shape, other labels or another tokenizer.
    """
    for folder in config.average:
        _check_alike(folder, tokenizer, corpus.labels.names)
    model = build_classifier(config, tokenizer, len(corpus.labels.names), None)
    runs = [load_file(folder / BEST) for folder in config.average]
    try:
        for weights in runs:
            model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(f"average: a run does not fit [model]: {error}") from error
    model.load_state_dict({name: torch.stack([weights[name] for weights in runs]).mean(dim=0) for name in runs[0]})
    judge = Judge(encode_dev(config, tokenizer, corpus), config, hardware, run_folder)
    with RunLog(run_folder, "fit", steps=0) as run_log:
        run_log.record(0, judge.consider(model.to(hardware.device), step=0))


def average_tokenizer(runs: Sequence[Path]) -> Tokenizer:
    """The tokenizer of the first run.

    Raises:
        UsageError: it has none.
    """
    try:
        return Tokenizer.from_file(runs[0] / TOKENIZER)
    except (OSError, ValueError) as error:
        raise UsageError(f"average: {error}") from error


def _check_alike(folder: Path, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
    score = selection_of(folder / BEST).best_score
    if average_tokenizer([folder]).fingerprint() != tokenizer.fingerprint():
        raise UsageError(f"average: {folder} has another tokenizer than the other runs: give runs with one start")
    try:
        found = json.loads((folder / "data.json").read_text(encoding="utf-8"))["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"average: {folder}: {error}") from error
    if found != list(labels):
        raise UsageError(f"average: {folder} answers with {found}, not with {list(labels)}")
    log.info("average: %s, dev %.4f", folder, score)
