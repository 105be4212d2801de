"""Cutting one word into pieces of a vocabulary: the most probable way, or greedily from the left.

A cut is a list of (id, characters covered); the id of a character outside the vocabulary is `UNKNOWN`.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping

UNKNOWN = -1
WORD_MARK = "▁"  # U+2581, SentencePiece's sign for the start of a word
CONTINUATION = "##"  # WordPiece's sign for a piece that starts no word
_CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))

Cut = list[tuple[int, int]]
Segmentation = Callable[[str], Cut]


class Unigram:
    """Viterbi over the log-probabilities of the pieces (Kudo 2018, arXiv:1804.10959, section 3).

    Args:
        ids: piece -> id.
        scores: piece -> natural-log probability.
        word_mark: put in front of every word before it is cut; "" or `WORD_MARK`.
    """

    def __init__(self, ids: Mapping[str, int], scores: Mapping[str, float], word_mark: str = "") -> None:
        self._single = {piece: (scores[piece], piece_id) for piece, piece_id in ids.items() if len(piece) == 1}
        # Longer pieces by their first two characters: few pairs start any, so most places cost two lookups.
        self._longer: dict[str, list[tuple[str, int, float, int]]] = {}
        for piece, piece_id in ids.items():
            if len(piece) > 1:
                self._longer.setdefault(piece[:2], []).append((piece, len(piece), scores[piece], piece_id))
        # An unknown character must always lose against any piece.
        self._unknown = (min(scores.values(), default=0.0) - 10.0, UNKNOWN)
        self._mark = word_mark

    def __call__(self, word: str) -> Cut:
        """The most probable cut; an unknown character is a piece of its own."""
        text = self._mark + word
        length = len(text)
        best = [-math.inf] * (length + 1)
        best[0] = 0.0
        came_from = [0] * (length + 1)
        piece_at = [UNKNOWN] * (length + 1)
        single, longer, unknown = self._single, self._longer, self._unknown
        for start, char in enumerate(text):
            base = best[start]
            piece_score, piece_id = single.get(char, unknown)
            end = start + 1
            if base + piece_score > best[end]:
                best[end], came_from[end], piece_at[end] = base + piece_score, start, piece_id
            for piece, size, piece_score, piece_id in longer.get(text[start : start + 2], ()):
                end = start + size
                if (size == 2 or text.startswith(piece, start)) and base + piece_score > best[end]:
                    best[end], came_from[end], piece_at[end] = base + piece_score, start, piece_id
        cut: Cut = []
        while length:
            start = came_from[length]
            cut.append((piece_at[length], length - start))
            length = start
        cut.reverse()
        if self._mark:
            cut[0] = (cut[0][0], cut[0][1] - 1)  # the mark is no character of the text
        return cut


class WordPiece:
    """The longest piece first, from the left (BERT, arXiv:1810.04805).

    CJK characters and punctuation are words of their own. As in BERT a word with a part that no piece covers is
    unknown as a whole; here that means one unknown for each of its characters.

    Args:
        ids: piece -> id; a piece that continues a word starts with `CONTINUATION`.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._starts = {piece: i for piece, i in ids.items() if not piece.startswith(CONTINUATION) or len(piece) == 2}
        self._continues = {piece[2:]: i for piece, i in ids.items() if piece.startswith(CONTINUATION)}
        self._longest = max(map(len, ids), default=1)

    def __call__(self, word: str) -> Cut:
        """Cut a string without spaces."""
        cut: Cut = []
        start = 0
        for end in range(1, len(word) + 1):
            if end == len(word) or _stands_alone(word[end - 1]) or _stands_alone(word[end]):
                cut += self._greedy(word[start:end])
                start = end
        return cut

    def _greedy(self, word: str) -> Cut:
        cut: Cut = []
        start = 0
        while start < len(word):
            known = self._continues if start else self._starts
            for end in range(min(len(word), start + self._longest), start, -1):
                if word[start:end] in known:
                    break
            else:
                return [(UNKNOWN, 1)] * len(word)
            cut.append((known[word[start:end]], end - start))
            start = end
        return cut


def _stands_alone(char: str) -> bool:
    """Punctuation (all of ASCII's signs count) and CJK ideographs."""
    point = ord(char)
    if point < 0x80:
        return not char.isalnum()
    return unicodedata.category(char).startswith("P") or any(first <= point <= last for first, last in _CJK)
