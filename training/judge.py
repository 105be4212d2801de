"""Judging a model while it trains: dev scores, the best weights kept, when to stop, whether it learnt at all."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import f1_score
from torch.nn import functional as F

from lengnuan.model.encoder import Classifier
from lengnuan.training.batches import Collator, Ragged, cut_by_tokens
from lengnuan.training.config import TrainConfig
from lengnuan.training.distributed import all_sum, from_first, is_first, rounds
from lengnuan.training.files import write_tensors
from lengnuan.training.optimise import Hardware, Optimiser
from lengnuan.training.stopping import stop_point

log = logging.getLogger(__name__)

BEST = "best.safetensors"
# With fewer dev rows than this, one predicted class for all may be luck, and guessing all there is to learn.
MIN_ROWS_TO_CALL_COLLAPSE = 50


@dataclass(frozen=True)
class Encoded:
    """Rows ready for the network. labels: int64 [N]."""

    rows: Ragged
    labels: npt.NDArray[np.int64]


@dataclass
class Selection:
    """Which weights are the best so far, and for how many evaluations nothing was better."""

    best_score: float = -1.0
    best_step: int = 0
    without_gain: int = 0
    collapsed: bool = True  # the best weights are no better than guessing

    def prefers(self, score: float, collapsed: bool) -> bool:
        """True when such weights would be better: any that learnt something beat all that did not."""
        return (not collapsed, score) > (not self.collapsed, self.best_score)


class Judge:
    """Evaluates the averaged weights on dev and keeps the best in `run_folder/best.safetensors`."""

    def __init__(self, dev: dict[str, Encoded], config: TrainConfig, hardware: Hardware, run_folder: Path) -> None:
        self.selection = Selection()
        self._dev = dev
        self._config = config
        self._hardware = hardware
        self._run_folder = run_folder

    def state(self) -> dict[str, Any]:
        """For a checkpoint: how the best weights so far were chosen."""
        return asdict(self.selection)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; the best weights themselves are in the run folder."""
        self.selection = Selection(**state)

    def evaluate(self, model: Classifier, optimiser: Optimiser) -> dict[str, float]:
        """Score on dev; returns `dev_loss`, `dev_accuracy` and `dev_macro_f1`, each the mean over the sources."""
        with optimiser.averaged():
            return self.consider(model, optimiser.step)

    def consider(self, model: Classifier, step: int) -> dict[str, float]:
        """Score these weights on dev and keep them if they are the best so far; returns the scores of `evaluate`."""
        logits = {
            name: predict(model, source.rows, self._config.fit.batch_tokens, self._hardware)
            for name, source in self._dev.items()
        }
        scores, collapsed = from_first(lambda: self._scores(logits))
        score = scores[f"dev_{self._config.fit.metric}"]
        self.selection.without_gain += 1
        if self.selection.prefers(score, collapsed):
            self.selection = Selection(score, step, 0, collapsed)
            if is_first():
                _save_weights(model, self._run_folder / BEST, self.selection)
        note = ": no better than guessing" if collapsed else ""
        log.info("fit %d: dev %s %.4f%s", step, self._config.fit.metric, score, note)
        return scores

    def out_of_patience(self) -> bool:
        """True when nothing was better for `fit.patience` evaluations."""
        if self.selection.without_gain < self._config.fit.patience:
            return False
        log.info("fit: no better dev score in %d evaluations, stopped", self.selection.without_gain)
        return True

    def _scores(self, logits: dict[str, npt.NDArray[np.float32]]) -> tuple[dict[str, float], bool]:
        """Mean scores over the sources, and whether the model has collapsed."""
        parts: dict[str, list[float]] = {"dev_loss": [], "dev_accuracy": [], "dev_macro_f1": []}
        predicted: list[npt.NDArray[np.int64]] = []
        losses: list[npt.NDArray[np.float32]] = []
        for name, source in self._dev.items():
            answers = logits[name].argmax(axis=1)
            predicted.append(answers)
            labels = torch.from_numpy(source.labels)
            loss = F.cross_entropy(torch.from_numpy(logits[name]), labels, reduction="none").numpy()
            losses.append(loss)
            parts["dev_loss"].append(float(loss.mean()))
            parts["dev_accuracy"].append(float((answers == source.labels).mean()))
            parts["dev_macro_f1"].append(float(f1_score(source.labels, answers, average="macro", zero_division=0.0)))
        every_label = np.concatenate([source.labels for source in self._dev.values()])
        collapsed = has_collapsed(every_label, np.concatenate(predicted), float(np.concatenate(losses).mean()))
        return {key: float(np.mean(values)) for key, values in parts.items()}, collapsed


def has_collapsed(labels: npt.NDArray[np.int64], answers: npt.NDArray[np.int64], loss: float) -> bool:
    """True when a model does no better than guessing from how often each class occurs.

    That is: one class for every row; or neither more right answers than the commonest class would give, nor a loss
    below the entropy of the labels. Never for fewer than `MIN_ROWS_TO_CALL_COLLAPSE` rows, or rows of one class.

    Args:
        labels: int64 [N].
        answers: int64 [N], the predicted classes.
        loss: mean cross-entropy, natural log.
    """
    if len(labels) < MIN_ROWS_TO_CALL_COLLAPSE:
        return False
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    if len(shares) < 2:
        return False  # one class is the truth here
    entropy = float(-(shares * np.log(shares)).sum())
    guessing = (answers == labels).mean() <= shares.max() and loss >= entropy
    return bool(len(np.unique(answers)) == 1 or guessing)


@torch.no_grad()
def predict(model: Classifier, rows: Ragged, batch_tokens: int, hardware: Hardware) -> npt.NDArray[np.float32]:
    """Logits of every row in evaluation mode: float32 [N, K]. Leaves the model in the mode it was in.

    Processes that train together each take every n-th batch, and all get all logits.

    Raises:
        Interrupted: a signal asked for it while there was a batch to go.
    """
    was_training = model.training
    model.eval()
    logits = np.zeros((len(rows), model.head.out_features), dtype=np.float32)
    collate = Collator(rows, None, hardware.device)
    batches = cut_by_tokens(np.argsort(rows.lengths, kind="stable"), rows.lengths, batch_tokens)
    for indices in rounds(batches):
        stop_point()
        if indices is None:
            continue
        batch = collate(indices)
        with hardware.autocast():
            logits[indices] = model(batch.token_ids, batch.mask).float().cpu().numpy()
    model.train(was_training)
    all_sum(torch.from_numpy(logits))  # in place: every row is zero in all processes but one
    return logits


def _save_weights(model: Classifier, path: Path, selection: Selection) -> None:
    """The selection goes into the file's metadata: weights without one, whose head was never trained, must not ship."""
    write_tensors(path, model.state_dict(), {"selection": json.dumps(asdict(selection))})
