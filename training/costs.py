"""What a bundle costs to serve, beside another one: bytes and processor time."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lengnuan.model.bundle import MODEL, TOKENIZER, Bundle
from lengnuan.model.engine import Engine, score

TIMED_TEXTS = 128
TIMED_BATCH = 32


def sizes(candidate: Bundle, live: Bundle) -> dict[str, Any]:
    """Bytes of what serving loads."""
    new, old = (sum((bundle.path / name).stat().st_size for name in (MODEL, TOKENIZER)) for bundle in (candidate, live))
    return {"candidate_bytes": new, "live_bytes": old, "ratio": new / old}


def times(bundles: Sequence[Bundle], engines: Sequence[Engine], texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Processor time a text, with the tokenizer: in turns, so what else the machine does meets both alike.

    Texts of every length, in batches of like ones; the median over the rounds, of each and of their ratio.
    """
    texts = sorted(texts, key=len)
    places = np.linspace(0, len(texts) - 1, min(TIMED_TEXTS, len(texts))).astype(int)
    chosen = [texts[place] for place in places]
    spent: list[list[float]] = [[], []]
    for place in range(rounds + 1):
        for who in ((0, 1), (1, 0))[place % 2]:
            seconds = _seconds(bundles[who], engines[who], chosen)
            if place:  # the first round fills caches
                spent[who].append(max(seconds, 1e-9) / len(chosen))
    ratios = [new / old for new, old in zip(*spent, strict=True)]
    medians = [1000 * float(np.median(part)) for part in spent]
    return {"texts": len(chosen), "rounds": rounds, "threads": engines[0].threads, "candidate_ms": medians[0],
            "live_ms": medians[1], "ratio": float(np.median(ratios))}  # fmt: skip


def _seconds(bundle: Bundle, engine: Engine, texts: Sequence[str]) -> float:
    begin = time.process_time()
    for start in range(0, len(texts), TIMED_BATCH):
        ids = [bundle.tokenizer.encode(text) for text in texts[start : start + TIMED_BATCH]]
        score(engine, ids, bundle.manifest.max_tokens)
    return time.process_time() - begin
