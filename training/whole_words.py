"""Which tokens belong to the same word, so that masking hides whole words.

Cui et al. 2021 (arXiv:1906.08101): when only a part of a word is hidden, the rest gives it away and there is little to
learn. Words are jieba's. A piece that crosses a word border joins the words on both sides.
"""

import logging

import jieba
import torch
from torch import Tensor

from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import Tokenizer

CONTINUES, STARTS, NEVER_HIDDEN = 0, 1, 2


def encode_words(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """`tokenizer.encode(text)` and, for each id, `STARTS` a word, `CONTINUES` one, or `NEVER_HIDDEN` (start, end)."""
    jieba.setLogLevel(logging.WARNING)
    normal = normalise(text)
    ids, spans = tokenizer.encode_with_spans(normal)
    borders = set()
    position = 0
    for word in jieba.cut(normal):
        borders.add(position)
        position += len(word)
    flags = []
    previous = -1
    for start, _ in spans:
        flags.append(STARTS if start in borders and start != previous else CONTINUES)
        previous = start
    if tokenizer.enclosed and ids:
        flags[0] = flags[-1] = NEVER_HIDDEN
        flags[1] = STARTS
    return ids, flags


def draw_per_word(flags: Tensor) -> Tensor:
    """A uniform random number for each word, at each of its tokens.

    Args:
        flags: int64 [B, T] of `encode_words`.

    Returns:
        float32 [B, T]; 2.0 where nothing may be hidden.
    """
    word = (flags == STARTS).cumsum(dim=1)  # [B, T]
    draw = torch.rand(flags.shape[0], flags.shape[1] + 1, device=flags.device).gather(1, word)
    return draw.masked_fill(flags == NEVER_HIDDEN, 2.0)
