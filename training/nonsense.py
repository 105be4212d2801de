"""Texts that mean nothing. What a model answers to random characters tells how much its confidence is worth.

Two kinds: of the 3,755 commonest characters (level one of GB 2312), which carry the tones that the model has learnt,
and of the whole block of CJK ideographs (U+4E00 to U+9FFF), of which it has hardly seen most.
"""

import random
from functools import cache
from typing import Any

import numpy as np

from lengnuan.model.engine import Engine, score
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.lesson import Lesson, labelled_lesson
from lengnuan.training.texts import Texts

LENGTHS = (5, 50)  # characters
CONFIDENT = 0.8
WANTED_SHARE = 0.9  # of the texts whose confidence is below that
CHECKED = 1000  # texts of each kind
CHECK_SEED = 20_000_101  # never that of a run, so that none is trained on what it is checked with

KINDS = ("common", "any")


def random_texts(kind: str, count: int, seed: int) -> list[str]:
    """`count` texts of 5 to 50 characters, each character as likely as any other of its kind."""
    draw = random.Random(f"{kind} {seed}")
    characters = _characters(kind)
    return ["".join(draw.choices(characters, k=draw.randint(*LENGTHS))) for _ in range(count)]


@cache
def _characters(kind: str) -> str:
    if kind == "any":
        return "".join(map(chr, range(0x4E00, 0xA000)))
    pairs = (bytes((row, cell)) for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF))
    return b"".join(pairs).decode("gb2312", errors="ignore")


def nonsense_lesson(count: int, classes: int, seed: int) -> Lesson:
    """Random texts, half of each kind, to be answered with equal probabilities."""
    texts = random_texts("common", count - count // 2, seed) + random_texts("any", count // 2, seed)
    return Lesson(Texts(texts), np.full((count, classes), 1.0 / classes, dtype=np.float32))


def made_lesson(config: TrainConfig, corpus: Corpus) -> Lesson:
    """All that `[augment]` adds to the real rows, the same for every seed of one `data.seed`."""
    classes = len(corpus.labels.names)
    nonsense = nonsense_lesson(config.augment.nonsense, classes, config.data_seed)
    return labelled_lesson(corpus.synthetic, classes) + nonsense


def nonsense_figures(tokenizer: Tokenizer, engine: Engine, max_tokens: int, temperature: float) -> dict[str, Any]:
    """How sure the answers to random texts are, by kind; `passed`: under 0.8 for nine in ten of each."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        rows = [tokenizer.encode(text) for text in random_texts(kind, CHECKED, CHECK_SEED)]
        confidence = softmax(score(engine, rows, max_tokens) / temperature).max(axis=1)
        found[kind] = {
            "texts": len(rows),
            "below_limit": float((confidence < CONFIDENT).mean()),
            "mean_confidence": float(confidence.mean()),
        }
    passed = all(figures["below_limit"] >= WANTED_SHARE for figures in found.values())
    return found | {"limit": CONFIDENT, "wanted_share": WANTED_SHARE, "passed": passed}


def nonsense_lines(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"random characters ({kind}): {100 * found[kind]['below_limit']:.1f} % of {found[kind]['texts']:,} texts get a "
        f"confidence under {found['limit']:g}; mean {found[kind]['mean_confidence']:.3f}"
        for kind in KINDS
    ]
    return "\n".join([*lines, "passed" if found["passed"] else f"NOT passed: {WANTED_SHARE:.0%} of each wanted"]) + "\n"
