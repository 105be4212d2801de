"""Text to ids: a unigram model of sub-words, segmented by Viterbi (Kudo 2018, arXiv:1804.10959, section 3).

The pieces were learnt on jieba-segmented text (`lengnuan.training.tokenise`), so they follow word borders although
nothing here needs jieba. Every CJK character, letter, digit and common emoji is a piece; a character that is none
becomes its UTF-8 bytes, so nothing turns into a bare "unknown". Spaces separate and are not tokens.

Layout of the ids: 0 padding, 1 mask (pretraining only), 2..257 the bytes 0..255, then the pieces.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lengnuan.model.text import TEXT_VERSION, Span, normalise, normalise_with_spans

PAD_ID = 0
MASK_ID = 1
FIRST_BYTE_ID = 2
FIRST_PIECE_ID = FIRST_BYTE_ID + 256


class Tokenizer:
    """A fixed vocabulary of pieces with their log-probabilities. Immutable, so safe to share between threads.

    Args:
        pieces: distinct non-empty strings without spaces; piece i has id `FIRST_PIECE_ID + i`.
        scores: natural-log probability of each piece, the same length.

    Raises:
        ValueError: pieces and scores do not match, or a piece is empty, repeated, or has a space.
    """

    def __init__(self, pieces: Sequence[str], scores: Sequence[float]) -> None:
        if len(pieces) != len(scores):
            raise ValueError(f"{len(pieces)} pieces but {len(scores)} scores")
        if len(set(pieces)) != len(pieces) or any(not piece or " " in piece for piece in pieces):
            raise ValueError("pieces must be distinct, not empty and without spaces")
        if not all(math.isfinite(score) for score in scores):
            raise ValueError("every score must be a finite number")
        self.pieces = tuple(pieces)
        self.scores = tuple(scores)
        self._lookup = {p: (s, FIRST_PIECE_ID + i) for i, (p, s) in enumerate(zip(pieces, scores, strict=True))}
        # How far to look from a first character: most characters start no long piece, and this keeps encode fast.
        self._reach: dict[str, int] = {}
        for piece in pieces:
            self._reach[piece[0]] = max(len(piece), self._reach.get(piece[0], 1))
        # A byte must always lose against any piece.
        self._byte_score = min(scores, default=0.0) - 10.0

    @property
    def size(self) -> int:
        """Number of ids, padding, mask and bytes included."""
        return FIRST_PIECE_ID + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of raw `text`, normalised first and never cut; empty when nothing visible is left."""
        return [i for word in normalise(text).split(" ") for piece in self._segment(word) for i in self._ids(piece)]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """`encode(text)` and, for each id, the `[start, end)` of the raw text that it stands for."""
        normal, char_spans = normalise_with_spans(text)
        ids: list[int] = []
        spans: list[Span] = []
        position = 0
        for word in normal.split(" "):
            for piece in self._segment(word):
                piece_ids = self._ids(piece)
                covered = char_spans[position : position + len(piece)]
                ids += piece_ids
                spans += [(covered[0][0], covered[-1][1])] * len(piece_ids)
                position += len(piece)
            position += 1
        return ids, spans

    def decode(self, ids: Iterable[int]) -> str:
        """The normalised text without its spaces; padding and mask ids show as `[pad]`, `[mask]`.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        out = bytearray()
        for token_id in ids:
            out += self._bytes_of(token_id)
        return out.decode("utf-8", "replace")

    def unknown_share(self, ids: Sequence[int]) -> float:
        """Share of `ids` that are bytes, that is, characters outside the vocabulary. 0.0 for no ids."""
        if not ids:
            return 0.0
        return sum(FIRST_BYTE_ID <= token_id < FIRST_PIECE_ID for token_id in ids) / len(ids)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id >= FIRST_PIECE_ID:
            return self.pieces[token_id - FIRST_PIECE_ID].encode("utf-8", "surrogatepass")
        if token_id >= FIRST_BYTE_ID:
            return bytes([token_id - FIRST_BYTE_ID])
        if token_id < 0:
            raise IndexError(f"id {token_id} is negative")
        return b"[mask]" if token_id == MASK_ID else b"[pad]"

    def _ids(self, piece: str) -> list[int]:
        known = self._lookup.get(piece)
        if known is not None:
            return [known[1]]
        return [FIRST_BYTE_ID + byte for byte in piece.encode("utf-8", "surrogatepass")]

    def _segment(self, word: str) -> list[str]:
        """The most probable way to cut `word` into pieces (a single unknown character is a cut of its own)."""
        length = len(word)
        best = [-math.inf] * (length + 1)
        best[0] = 0.0
        came_from = [0] * (length + 1)
        lookup, reach = self._lookup, self._reach
        for start in range(length):
            base = best[start]
            char = word[start]
            for end in range(start + 1, min(start + reach.get(char, 1), length) + 1):
                known = lookup.get(word[start:end])
                if known is None:
                    if end > start + 1:
                        continue
                    score = base + self._byte_score
                else:
                    score = base + known[0]
                if score > best[end]:
                    best[end] = score
                    came_from[end] = start
        cuts = []
        while length:
            start = came_from[length]
            cuts.append(word[start:length])
            length = start
        return cuts[::-1]

    def fingerprint(self) -> str:
        """Hash of everything that decides which ids a text gets: text version, pieces and scores."""
        digest = hashlib.sha256(f"text {TEXT_VERSION}\n".encode())
        digest.update(json.dumps([self.pieces, self.scores], ensure_ascii=True).encode())
        return digest.hexdigest()[:16]

    def to_file(self, path: Path) -> None:
        """Write the vocabulary as JSON; `from_file` reads back an equal tokenizer."""
        content = {"text_version": TEXT_VERSION, "pieces": self.pieces, "scores": self.scores}
        aside = path.with_name(f".{path.name}.writing")
        aside.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        os.replace(aside, path)  # all of it or nothing, however the process ends

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Read what `to_file` wrote.

        Raises:
            ValueError: not such a file, or made for another version of the text pipeline.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON: {error}") from error
        if not isinstance(content, dict) or {"text_version", "pieces", "scores"} - content.keys():
            raise ValueError(f"{path}: not a tokenizer file: it needs text_version, pieces and scores")
        if content["text_version"] != TEXT_VERSION:
            raise ValueError(
                f"{path}: made for text pipeline {content['text_version']}, this code has {TEXT_VERSION}: "
                "train the bundle again with this release, or run the release that made it"
            )
        try:
            return cls(content["pieces"], content["scores"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error


def cut(ids: Sequence[int], max_tokens: int) -> list[int]:
    """At most `max_tokens` ids: the first half and the last half of a longer text.

    A review often opens with its subject and closes with its verdict, so both ends are kept (Sun et al. 2019,
    arXiv:1905.05583, section 5.3.1). With an odd limit the head has the extra one.
    """
    if len(ids) <= max_tokens:
        return list(ids)
    tail = max_tokens // 2
    return [*ids[: max_tokens - tail], *ids[len(ids) - tail :]]
