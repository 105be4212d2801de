"""Texts and configs small enough to train on in a test."""

import random
from pathlib import Path

from lengnuan.training.config import TrainConfig

GOOD = ("很好", "喜欢", "满意", "精彩", "推荐", "不错", "新鲜", "舒服")
BAD = ("太差", "失望", "难吃", "糟糕", "后悔", "很脏", "破损", "难受")
THINGS = ("房间", "味道", "服务", "电影", "手机", "快递", "早餐", "屏幕", "这本书", "老板", "质量", "外卖")
ENDINGS = ("。", "!", ",下次再来", ",就这样吧", "😭", "...")


def sentences(rows: int, seed: int = 0) -> list[tuple[str, int]]:
    """(text, label): which of two word lists a text draws from decides its label."""
    draw = random.Random(seed)
    found = []
    for index in range(rows):
        label = index % 2
        words = [draw.choice(THINGS) + draw.choice((BAD, GOOD)[label]) for _ in range(draw.randint(1, 6))]
        found.append(("，".join(words) + draw.choice(ENDINGS), label))
    return found


def write_tsv(path: Path, rows: list[tuple[str, int]]) -> Path:
    """A `label<TAB>text` file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows), encoding="utf-8")
    return path


def small_config(root: Path, **sections: object) -> TrainConfig:
    """A config for `root/train.tsv` that trains in a second or two; `sections` replace whole sections."""
    content: dict[str, object] = {
        "name": "small",
        "threads": 1,
        "precision": "float32",
        "labels": {"negative": ["0"], "positive": ["1"]},
        "data": {"root": root, "train": {"reviews": "train.tsv"}, "dev_share": 0.25, "test_share": 0.25},
        "tokenizer": {"pieces": 60, "min_count": 2},
        "model": {"max_tokens": 32, "width": 16, "layers": 1, "heads": 2, "feed_forward_width": 32},
        "fit": {
            "epochs": 6,
            "min_steps": 1,
            "batch_tokens": 512,
            "ema_decay": 0.9,
            "optimiser": {"learning_rate": 1e-2},
        },
    }
    return TrainConfig.model_validate(content | sections)


# A `fit` of a few steps, for what needs a run but no good one.
BRIEF = {"epochs": 1, "min_steps": 5, "optimiser": {"learning_rate": 1e-2}, "allow_collapsed": True}

# The same as a file, with pretraining.
SMALL_TOML = """
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
min_steps = 1
batch_tokens = 512
ema_decay = 0.9
[fit.optimiser]
learning_rate = 1e-2
"""
