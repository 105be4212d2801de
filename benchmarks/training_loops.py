"""The two training loops that `training.py` compares: our `fit`, and the Trainer of transformers on the same network.

Both begin with the same weights and see every row once. A loop reports each `STEPS_A_TURN` steps, and waits for a line
before it begins with the next ones, so that the two can take turns.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.encoder import Classifier, mean_pool
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID, Tokenizer
from lengnuan.training import fit as fitting
from lengnuan.training.batches import training_order
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.data import LabelSet
from lengnuan.training.examples import Example
from lengnuan.training.lesson import labelled_lesson
from lengnuan.training.optimise import choose_hardware
from lengnuan.training.start import START, start_from

STEPS_A_TURN = 2
LEARNING_RATE = 1e-4
DEV_ROWS = 16  # `fit` judges once, after the last step; nothing here looks at the result


@dataclass(frozen=True)
class Task:
    """What both learn.

    Args:
        examples: each is seen once.
        config: of our run; the other one gets the same learning rate, schedule and precision.
    """

    examples: Sequence[Example]
    config: TrainConfig

    def rows_a_step(self, tokenizer: Tokenizer) -> int:
        """What our batches, which hold tokens and not rows, come to on average: the batch size of the other loop."""
        rows, _ = fitting.encode_texts(tokenizer, [row.text for row in self.examples], self.config.model.max_tokens)
        steps = training_order(rows.lengths, self.config.fit.batch_tokens, seed=self.config.seed, epoch=0)
        return max(1, round(len(self.examples) / len(steps)))


def task_of(examples: Sequence[Example], batch_tokens: int, precision: str) -> Task:
    """The shape of the embedded bundle, on one thread."""
    shape = {key: value for key, value in Bundle.load(DEFAULT_BUNDLE).manifest.encoder.items() if key != "vocab_size"}
    optimiser = {"learning_rate": LEARNING_RATE}
    content = {
        "name": "benchmark", "threads": 1, "device": "cpu", "precision": precision, "data": {},
        "model": shape | {"dropout": 0.1},
        "fit": {
            "epochs": 1, "min_steps": 1, "evaluations_per_epoch": 1, "label_smoothing": 0.0, "allow_collapsed": True,
            "batch_tokens": batch_tokens, "optimiser": optimiser,
        },
    }  # fmt: skip
    return Task(examples, TrainConfig.model_validate(content))


@dataclass
class Turns:
    """Steps since the last report, and the report. Times are processor time of this process."""

    said: TextIO
    heard: TextIO
    tokens: int = 0
    losses: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    since: float = 0.0

    def begin(self) -> None:
        """Wait for the first turn."""
        if not self.heard.readline():
            raise SystemExit("whoever gave the turns is gone")
        self.since = time.process_time()

    def step(self, tokens: int, rows: int, loss: float) -> None:
        """One step is done; real tokens, rows, and their mean loss."""
        self.tokens += tokens
        self.losses.append(loss)
        self.rows.append(rows)
        if len(self.losses) == STEPS_A_TURN:
            self.report()

    def report(self) -> None:
        """Say what was done, and wait for the next turn."""
        seconds = time.process_time() - self.since
        told = {"tokens": self.tokens, "losses": self.losses, "rows": self.rows, "seconds": seconds}
        print(json.dumps(told), file=self.said, flush=True)
        self.tokens, self.losses, self.rows = 0, [], []
        self.begin()


def run_ours(task: Task, turns: Turns) -> None:
    """`lengnuan.training.fit.fit`, as the training job calls it; a recorder stands where its log would."""

    class Recorder:
        """What `fit` asks of a `RunLog`."""

        judged = 0

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def state(self) -> dict[str, Any]:
            return {}

        def __enter__(self) -> "Recorder":
            turns.begin()
            return self

        def __exit__(self, *_: object) -> None: ...

        def step(self, _: int, rows: Sequence[int], tokens: int, shown: dict[str, float]) -> None:
            turns.step(tokens, len(rows), shown["loss"])

        def record(self, _: int, __: dict[str, float]) -> None: ...

        def record_judged(self, _: int, __: dict[str, float]) -> None: ...

    fitting.RunLog = Recorder  # type: ignore[assignment,misc]
    names = LabelSet(["negative", "positive"], {})
    corpus = Corpus(names, list(task.examples), {"dev": list(task.examples[:DEV_ROWS])}, {}, {})
    with tempfile.TemporaryDirectory() as folder:
        start_from(DEFAULT_BUNDLE, Path(folder))
        tokenizer = Tokenizer.from_file(DEFAULT_BUNDLE / "tokenizer.json")
        lesson = labelled_lesson(task.examples, 2)
        fitting.fit(task.config, tokenizer, corpus, lesson, Path(folder), choose_hardware(task.config))


class BertClassifier(nn.Module):
    """The BERT of transformers with our head, and the weights of one of our classifiers."""

    def __init__(self, ours: Classifier) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        shape = ours.encoder.config
        config = BertConfig(
            vocab_size=shape.vocab_size, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, intermediate_size=shape.feed_forward_width,
            max_position_embeddings=shape.max_tokens, type_vocab_size=1, layer_norm_eps=shape.norm_epsilon,
            hidden_dropout_prob=shape.dropout, attention_probs_dropout_prob=shape.dropout, pad_token_id=PAD_ID,
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)
        self.bert.load_state_dict(_bert_weights(ours), strict=False)
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Linear(shape.width, 2)
        self.head.load_state_dict(ours.head.state_dict())

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """input_ids, attention_mask: int64 [B, T], labels: int64 [B] -> the loss and logits [B, 2]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.head(self.dropout(mean_pool(hidden, attention_mask.bool())))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def _bert_weights(ours: Classifier) -> dict[str, Tensor]:
    """Our weights by the names of BERT, the segment of a text as zeros."""
    state = ours.encoder.state_dict()
    width = ours.encoder.config.width
    found = {
        "embeddings.word_embeddings.weight": state["embeddings.tokens.weight"],
        "embeddings.position_embeddings.weight": state["embeddings.positions.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(1, width),
    }
    for kind in ("weight", "bias"):
        found[f"embeddings.LayerNorm.{kind}"] = state[f"norm.{kind}"]
        for layer in range(ours.encoder.config.layers):
            here, there = f"layers.{layer}", f"encoder.layer.{layer}"
            parts = state[f"{here}.attention.query_key_value.{kind}"].split(width)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                found[f"{there}.attention.self.{name}.{kind}"] = part
            for name, place in _PLACES.items():
                found[f"{there}.{name}.{kind}"] = state[f"{here}.{place}.{kind}"]
    return found


_PLACES = {
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.expand",
    "output.dense": "feed_forward.contract",
    "output.LayerNorm": "feed_forward_norm",
}


def run_trainer(task: Task, turns: Turns) -> None:
    """The Trainer with what it does by itself: rows in chance order, padded to the longest of their batch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    tokenizer = Tokenizer.from_file(DEFAULT_BUNDLE / "tokenizer.json")
    model = start_of(task, tokenizer)
    texts = [example.text for example in task.examples]
    encoded, _ = fitting.encode_texts(tokenizer, texts, task.config.model.max_tokens)
    rows = [{"ids": encoded[i].tolist(), "label": example.label} for i, example in enumerate(task.examples)]
    tokens, seen = [0], [0]

    def collate(batch: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        token_ids, mask = pad([row["ids"] for row in batch], PAD_ID)
        tokens[0] += int(mask.sum())
        seen[0] += len(mask)
        labels = torch.tensor([row["label"] for row in batch])
        return {"input_ids": torch.from_numpy(token_ids), "attention_mask": torch.from_numpy(mask.astype(np.int64)),
                "labels": labels}  # fmt: skip

    class Report(TrainerCallback):  # type: ignore[misc]
        """Counts steps; the Trainer has no other way to be listened to."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turns.begin()

        def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
            if "loss" in logs:
                turns.step(tokens[0], seen[0], float(logs["loss"]))
                tokens[0] = seen[0] = 0

    optimiser = task.config.fit.optimiser
    bfloat16 = choose_hardware(task.config).autocast_type is not None
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, bf16=bfloat16, num_train_epochs=1, logging_steps=1, save_strategy="no",
            per_device_train_batch_size=task.rows_a_step(tokenizer), report_to=[], disable_tqdm=True, seed=1,
            learning_rate=optimiser.learning_rate, weight_decay=optimiser.weight_decay, adam_beta2=optimiser.beta2,
            max_grad_norm=optimiser.clip_norm, lr_scheduler_type="cosine", warmup_steps=optimiser.warmup_share,
            optim="adamw_torch_fused", remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model, arguments, data_collator=collate, train_dataset=rows, callbacks=[Report()]).train()


def start_of(task: Task, tokenizer: Tokenizer) -> BertClassifier:
    """The network that `fit` would begin with: the encoder of the embedded bundle, and a new head."""
    with tempfile.TemporaryDirectory() as folder:
        start_from(DEFAULT_BUNDLE, Path(folder))
        return BertClassifier(fitting.build_classifier(task.config, tokenizer, 2, Path(folder) / START))


LOOPS: dict[str, Callable[[Task, Turns], None]] = {"fit": run_ours, "Trainer": run_trainer}
