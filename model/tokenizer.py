"""Text to ids. The vocabulary's kind says how a word is cut into pieces (`lengnuan.model.segmentation`).

- `unigram`: our own, learnt on jieba-segmented text (`lengnuan.training.tokenise`), so the pieces follow word borders
  although nothing here needs jieba. Every CJK character, letter, digit and common emoji is a piece.
- `metaspace`: a SentencePiece unigram model of an imported encoder (XLM-R, multilingual E5), "▁" before every word.
- `wordpiece`: that of an imported BERT, longest match first.

A character that is no piece becomes its UTF-8 bytes, so nothing turns into a bare "unknown". Spaces separate and are
not tokens. Layout of the ids: 0 padding, 1 mask (pretraining only), 2..257 the bytes 0..255, then the pieces, then,
if the encoder was trained with them, the start and the end of a text.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from lengnuan.model.segmentation import CONTINUATION, UNKNOWN, WORD_MARK, Segmentation, Unigram, WordPiece
from lengnuan.model.text import TEXT_VERSION, Span, normalise, normalise_with_spans

PAD_ID = 0
MASK_ID = 1
FIRST_BYTE_ID = 2
FIRST_PIECE_ID = FIRST_BYTE_ID + 256

Kind = Literal["unigram", "metaspace", "wordpiece"]
T = TypeVar("T")


class Tokenizer:
    """A fixed vocabulary of pieces. Immutable, so safe to share between threads.

    Args:
        pieces: distinct non-empty strings without spaces; piece i has id `FIRST_PIECE_ID + i`.
        scores: natural-log probability of each piece, the same length; all 0.0 for `wordpiece`, which has none.
        kind: how a word is cut.
        enclosed: put a start id before and an end id behind the ids of a text.

    Raises:
        ValueError: pieces and scores do not match, or a piece is empty, repeated, or has a space.
    """

    def __init__(
        self, pieces: Sequence[str], scores: Sequence[float], kind: Kind = "unigram", *, enclosed: bool = False
    ) -> None:
        if len(pieces) != len(scores):
            raise ValueError(f"{len(pieces)} pieces but {len(scores)} scores")
        if len(set(pieces)) != len(pieces) or any(not piece or " " in piece for piece in pieces):
            raise ValueError("pieces must be distinct, not empty and without spaces")
        if not all(math.isfinite(score) for score in scores):
            raise ValueError("every score must be a finite number")
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
        if kind == "metaspace" and WORD_MARK not in pieces:
            raise ValueError(f"a metaspace vocabulary needs the piece {WORD_MARK!r}")
        self.pieces = tuple(pieces)
        self.scores = tuple(scores)
        self.kind = kind
        self.enclosed = enclosed
        self._segment = self._segmentation()

    def _segmentation(self) -> Segmentation:
        ids = {piece: FIRST_PIECE_ID + i for i, piece in enumerate(self.pieces)}
        if self.kind == "wordpiece":
            return WordPiece(ids)
        scores = dict(zip(self.pieces, self.scores, strict=True))
        return Unigram(ids, scores, WORD_MARK if self.kind == "metaspace" else "")

    @property
    def size(self) -> int:
        """Number of ids, padding, mask, bytes, start and end included."""
        return FIRST_PIECE_ID + len(self.pieces) + 2 * self.enclosed

    @property
    def start_id(self) -> int:
        """What stands before every text, if it is `enclosed`."""
        return FIRST_PIECE_ID + len(self.pieces)

    @property
    def end_id(self) -> int:
        """What stands behind every text, if it is `enclosed`."""
        return self.start_id + 1

    def encode(self, text: str) -> list[int]:
        """Ids of raw `text`, normalised first and never cut; empty when nothing visible is left."""
        ids: list[int] = []
        for word in normalise(text).split():
            position = 0
            for piece_id, length in self._segment(word):
                if piece_id == UNKNOWN:
                    ids += _bytes_ids(word[position])
                else:
                    ids.append(piece_id)
                position += length
        return [self.start_id, *ids, self.end_id] if self.enclosed and ids else ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """`encode(text)` and, for each id, the `[start, end)` of the raw text that it stands for.

        An id that stands for no character (a start, an end, a bare "▁") has an empty span.
        """
        normal, char_spans = normalise_with_spans(text)
        ids: list[int] = []
        spans: list[Span] = []
        position = 0
        for word in normal.split():
            for piece_id, length in self._segment(word):
                found = _bytes_ids(normal[position]) if piece_id == UNKNOWN else [piece_id]
                first = char_spans[position][0]
                last = char_spans[position + length - 1][1] if length else first
                ids += found
                spans += [(first, last)] * len(found)
                position += length
            position += 1
        if not self.enclosed or not ids:
            return ids, spans
        return [self.start_id, *ids, self.end_id], [(0, 0), *spans, (len(text), len(text))]

    def decode(self, ids: Iterable[int]) -> str:
        """The normalised text, without its spaces unless the vocabulary marks words; `[pad]`, `[mask]` show.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        out = bytearray()
        for token_id in ids:
            out += self._bytes_of(token_id)
        text = out.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.kind == "metaspace" else text

    def piece(self, token_id: int) -> str:
        """An id of `encode` as a vocabulary shows it: a byte as `<0xE6>`, the ends of a text as `[start]`, `[end]`."""
        if self.enclosed and token_id >= self.start_id:
            return "[start]" if token_id == self.start_id else "[end]"
        if token_id < FIRST_PIECE_ID:
            return f"<0x{token_id - FIRST_BYTE_ID:02X}>"
        return self.pieces[token_id - FIRST_PIECE_ID]

    def unknown_share(self, ids: Sequence[int]) -> float:
        """Share of `ids` that are bytes, that is, characters outside the vocabulary. 0.0 for no ids."""
        if not ids:
            return 0.0
        return len([1 for token_id in ids if FIRST_BYTE_ID <= token_id < FIRST_PIECE_ID]) / len(ids)

    def _bytes_of(self, token_id: int) -> bytes:
        if self.enclosed and token_id in (self.start_id, self.end_id):
            return b""
        if token_id >= FIRST_PIECE_ID:
            piece = self.pieces[token_id - FIRST_PIECE_ID]
            if self.kind == "metaspace":
                piece = piece.replace(WORD_MARK, " ")
            elif self.kind == "wordpiece":
                piece = piece.removeprefix(CONTINUATION)
            return piece.encode("utf-8", "surrogatepass")
        if token_id >= FIRST_BYTE_ID:
            return bytes([token_id - FIRST_BYTE_ID])
        if token_id < 0:
            raise IndexError(f"id {token_id} is negative")
        return b"[mask]" if token_id == MASK_ID else b"[pad]"

    def fingerprint(self) -> str:
        """Hash of everything that decides which ids a text gets: text version, pieces, scores, kind, ends."""
        digest = hashlib.sha256(f"text {TEXT_VERSION}\n".encode())
        digest.update(json.dumps([self.pieces, self.scores], ensure_ascii=True).encode())
        if self.kind != "unigram" or self.enclosed:
            digest.update(f"{self.kind} {self.enclosed}".encode())
        return digest.hexdigest()[:16]

    def content(self) -> dict[str, Any]:
        """The vocabulary as JSON has it; `from_content` makes an equal tokenizer of it."""
        return {"text_version": TEXT_VERSION, "kind": self.kind, "enclosed": self.enclosed,
                "pieces": self.pieces, "scores": self.scores}  # fmt: skip

    def to_file(self, path: Path) -> None:
        """Write the vocabulary as JSON; `from_file` reads back an equal tokenizer."""
        aside = path.with_name(f".{path.name}.writing")
        aside.write_text(json.dumps(self.content(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
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
        try:
            return cls.from_content(content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_content(cls, content: Any) -> "Tokenizer":
        """The tokenizer that `content` was taken of.

        Raises:
            ValueError: no such content, or made for another version of the text pipeline.
            TypeError: its pieces or scores are something else.
        """
        if not isinstance(content, dict) or {"text_version", "pieces", "scores"} - content.keys():
            raise ValueError("not a tokenizer file: it needs text_version, pieces and scores")
        if content["text_version"] != TEXT_VERSION:
            raise ValueError(
                f"made for text pipeline {content['text_version']}, this code has {TEXT_VERSION}: "
                "train the bundle again with this release, or run the release that made it"
            )
        kind, enclosed = content.get("kind", "unigram"), bool(content.get("enclosed", False))
        return cls(content["pieces"], content["scores"], kind, enclosed=enclosed)


def cut(ids: Sequence[T], max_tokens: int) -> list[T]:
    """At most `max_tokens` ids: the first half and the last half of a longer text.

    A review often opens with its subject and closes with its verdict, so both ends are kept (Sun et al. 2019,
    arXiv:1905.05583, section 5.3.1). With an odd limit the head has the extra one.
    """
    if len(ids) <= max_tokens:
        return list(ids)
    tail = max_tokens // 2
    return [*ids[: max_tokens - tail], *ids[len(ids) - tail :]]


def _bytes_ids(char: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in char.encode("utf-8", "surrogatepass")]
