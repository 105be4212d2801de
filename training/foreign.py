"""An encoder that another project trained, once it is in our names; and cutting its vocabulary to what is needed."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lengnuan.model.segmentation import CONTINUATION, WORD_MARK
from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import FIRST_BYTE_ID, FIRST_PIECE_ID, MASK_ID, PAD_ID, Kind, Tokenizer
from lengnuan.training.errors import UsageError
from lengnuan.training.tokenise import basic_characters

log = logging.getLogger(__name__)

TOKENS = "embeddings.tokens.weight"


@dataclass(frozen=True)
class Special:
    """Rows of the foreign vocabulary that are no text. `mask` may be missing (None): then the unknown row serves."""

    start: int
    end: int
    padding: int
    unknown: int
    mask: int | None

    def rows(self) -> set[int]:
        """All of them."""
        return {self.start, self.end, self.padding, self.unknown, *([] if self.mask is None else [self.mask])}


@dataclass(frozen=True)
class Foreign:
    """Somebody else's encoder under our parameter names, with its own vocabulary.

    Attributes:
        origin: what it is, for the records.
        licence: under which terms.
        shape: fields of `EncoderConfig` but the vocabulary size.
        weights: float32 by our names; the token table still has the foreign rows, in the foreign order.
        pieces: text of row i.
        scores: natural-log probability of row i; zeros for wordpiece.
        kind: how the vocabulary cuts words.
        special: rows that are no text.
    """

    origin: str
    licence: str
    shape: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    kind: Kind
    special: Special

    def rows_of_text(self) -> list[int]:
        """Rows that are text: not special, not empty, without spaces, the first where a piece is there twice."""
        seen: set[str] = set()
        special = self.special.rows()
        rows = []
        for row, piece in enumerate(self.pieces):
            if row in special or not piece or " " in piece or piece in seen:
                continue
            seen.add(piece)
            rows.append(row)
        return rows

    def tokenizer(self, rows: Sequence[int]) -> Tokenizer:
        """Ours over the pieces of `rows`."""
        pieces, scores = [self.pieces[row] for row in rows], [self.scores[row] for row in rows]
        return Tokenizer(pieces, scores, self.kind, enclosed=True)

    def with_vocabulary(self, rows: Sequence[int]) -> tuple[Tokenizer, dict[str, Tensor]]:
        """The tokenizer over the pieces of `rows`, and all weights with the token table in its order of ids.

        Bytes start as copies of the unknown row: what the encoder saw in their place.
        """
        tokenizer = self.tokenizer(rows)
        theirs = self.weights[TOKENS]
        table = torch.empty(tokenizer.size, theirs.shape[1])
        table[PAD_ID] = theirs[self.special.padding]
        table[MASK_ID] = theirs[self.special.unknown if self.special.mask is None else self.special.mask]
        table[FIRST_BYTE_ID:FIRST_PIECE_ID] = theirs[self.special.unknown]
        table[FIRST_PIECE_ID : tokenizer.start_id] = theirs[list(rows)]
        table[tokenizer.start_id] = theirs[self.special.start]
        table[tokenizer.end_id] = theirs[self.special.end]
        return tokenizer, {**self.weights, TOKENS: table}


def choose_layers(foreign: Foreign, layers: Sequence[int]) -> Foreign:
    """Only these layers, counted from 0 at the embeddings, in this order.

    Raises:
        UsageError: it has no such layer.
    """
    weights, shape = keep_layers(foreign.weights, foreign.shape, layers)
    return replace(foreign, shape=shape, weights=weights)


def keep_layers(
    weights: Mapping[str, Tensor], shape: Mapping[str, Any], layers: Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and shape with only these layers, in this order.

    Raises:
        UsageError: it has no such layer.
    """
    count = int(shape["layers"])
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise UsageError(f"--layers: the encoder has layers 0 to {count - 1}, not {list(layers)}")
    kept = {name: value for name, value in weights.items() if not name.startswith("layers.")}
    for new, old in enumerate(layers):
        prefix = f"layers.{old}."
        kept |= {
            f"layers.{new}.{name.removeprefix(prefix)}": value
            for name, value in weights.items()
            if name.startswith(prefix)
        }
    return kept, {**shape, "layers": len(layers)}


def keep_pieces(tokenizer: Tokenizer, texts: Iterable[str], min_count: int) -> tuple[Tokenizer, list[int]]:
    """A tokenizer of ours with the pieces that `texts` use that often, and the old ids in the order of the new ones."""
    used = Counter(token_id for text in texts for token_id in tokenizer.encode(text))
    kept = [index for index in range(len(tokenizer.pieces)) if used[FIRST_PIECE_ID + index] >= min_count]
    pieces, scores = [tokenizer.pieces[i] for i in kept], [tokenizer.scores[i] for i in kept]
    ends = [tokenizer.start_id, tokenizer.end_id] if tokenizer.enclosed else []
    ids = [*range(FIRST_PIECE_ID), *(FIRST_PIECE_ID + index for index in kept), *ends]
    return Tokenizer(pieces, scores, tokenizer.kind, enclosed=tokenizer.enclosed), ids


def prune(foreign: Foreign, texts: Iterable[str], min_count: int = 1) -> list[int]:
    """The rows that `texts` need, plus every single CJK character, letter, digit, sign and emoji.

    A text all of whose pieces are kept gets the same ids as before: fewer rivals can't make its best cut worse. With
    `min_count` 1 that holds for every one of `texts`.
    """
    rows = foreign.rows_of_text()
    tokenizer = foreign.tokenizer(rows)
    used: Counter[int] = Counter()
    known = {foreign.pieces[row]: FIRST_PIECE_ID + index for index, row in enumerate(rows)}
    for text in texts:
        ids = tokenizer.encode(text)
        used.update(ids)
        if foreign.kind == "wordpiece" and tokenizer.unknown_share(ids):
            used.update(_rivals(text, known))
    characters = basic_characters()
    always = {WORD_MARK, *characters, *(f"{CONTINUATION}{char}" for char in characters)}
    always |= {f"{WORD_MARK}{char}" for char in characters if char < "\u0250"}  # Latin letters start words
    if foreign.kind == "metaspace":  # the score of an unknown character is reckoned from the lowest there is
        always.add(foreign.pieces[min(rows, key=lambda row: foreign.scores[row])])
    kept = [
        row
        for index, row in enumerate(rows)
        if used[FIRST_PIECE_ID + index] >= min_count or foreign.pieces[row] in always
    ]
    log.info("vocabulary: %d of %d pieces kept", len(kept), len(rows))
    return kept


def _rivals(text: str, known: Mapping[str, int]) -> set[int]:
    """Ids of all pieces that occur in `text`, which has an unknown word.

    There a greedy cut began with a piece after which none fits; without it a shorter one could lead to the end.
    """
    longest = max(map(len, known))
    found = set()
    for word in normalise(text).split():
        for start in range(len(word)):
            for end in range(start + 1, min(start + longest, len(word)) + 1):
                for piece in (word[start:end], CONTINUATION + word[start:end]):
                    if piece in known:
                        found.add(known[piece])
    return found
