"""Learning the sub-words: a unigram model fitted by expectation-maximisation on jieba's words.

Kudo 2018 (arXiv:1804.10959, section 3.2), simplified: candidates are frequent substrings, a few rounds of EM give each
its probability, and the least used are dropped until the wanted number is left. Learning on words rather than on
running text keeps pieces from crossing word borders, so the tokenizer follows words although it never segments any
when it serves.
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable

import jieba

from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TokenizerConfig

log = logging.getLogger(__name__)

EM_ROUNDS = 3
SEEDS_PER_PIECE = 4
UNSEEN_PENALTY = 5.0  # natural log; a character never seen is this much less likely than the rarest one seen
# Misc symbols, dingbats, arrows and the emoji planes that phones offer.
_EMOJI = ((0x2600, 0x27BF), (0x2B00, 0x2BFF), (0x1F300, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1FAFF))
_CJK = ((0x3400, 0x3400), (0x4E00, 0x9FFF))
_OTHER = ((0x21, 0x7E), (0xA1, 0xFF), (0x391, 0x3C9), (0x410, 0x44F), (0x3001, 0x3020), (0x3041, 0x30FF))


def words_of(texts: Iterable[str]) -> Counter[str]:
    """How often each jieba word stands in the normalised texts; spaces are left out."""
    jieba.setLogLevel(logging.WARNING)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word in jieba.cut(normalise(text)) if not word.isspace())
    return Counter({word: count for word, count in counts.items() if " " not in word})


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """A tokenizer for texts like these; deterministic.

    The vocabulary is every character of `basic_characters` (with `every_character` off, those of ASCII only), every
    character seen `min_count` times, and the `config.pieces` most useful longer pieces.
    """
    words = words_of(texts)
    log.info("tokenizer: %d distinct words", len(words))
    characters = Counter[str]()
    for word, count in words.items():
        for char in word:
            characters[char] += count
    always = {char for char in basic_characters() if config.every_character or char.isascii()}
    singles = sorted(always | {c for c, count in characters.items() if count >= config.min_count})
    longer = _seeds(words, config)
    expected: dict[str, float] = {c: characters[c] + 0.01 for c in singles} | {p: float(words[p]) for p in longer}
    for target in _schedule(len(longer), config.pieces):
        for _ in range(EM_ROUNDS):
            expected = _expected_counts(words, _log_probabilities(expected), config.max_piece_length)
            expected |= {c: expected.get(c, 0.0) + 0.01 for c in singles}
        ranked = sorted((p for p in expected if len(p) > 1), key=lambda p: (-expected[p] * (len(p) - 1), p))
        kept = set(ranked[:target])
        expected = {p: n for p, n in expected.items() if len(p) == 1 or p in kept}
    scores = _log_probabilities(expected)
    floor = min((scores[c] for c in singles if characters[c]), default=0.0) - UNSEEN_PENALTY
    pieces = singles + sorted(p for p in expected if len(p) > 1)
    return Tokenizer(pieces, [round(scores[p] if expected[p] >= 0.5 else floor, 4) for p in pieces])


@functools.cache
def basic_characters() -> frozenset[str]:
    """What is always in the vocabulary: CJK, Latin, Greek, Cyrillic, kana, digits, punctuation, emoji.

    Characters that `normalise` turns into something else (traditional ones, say) are left out: they never arrive.
    """
    points = (point for first, last in (*_CJK, *_OTHER, *_EMOJI) for point in range(first, last + 1))
    return frozenset(char for char in map(chr, points) if char.isprintable() and normalise(char) == char)


def _seeds(words: Counter[str], config: TokenizerConfig) -> list[str]:
    """Frequent substrings. EM starts from their counts as words, so what is never a word falls out at once."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 2, min(start + config.max_piece_length, len(word)) + 1):
                counts[word[start:end]] += count
    frequent = [p for p, count in counts.items() if count >= config.min_count]
    frequent.sort(key=lambda p: (-counts[p] * (len(p) - 1), p))
    return frequent[: config.pieces * SEEDS_PER_PIECE]


def _schedule(start: int, target: int) -> list[int]:
    """Sizes to prune to, one a stage: to 60 % each time, the wanted size last."""
    sizes = []
    while start * 0.6 > target:
        start = int(start * 0.6)
        sizes.append(start)
    return [*sizes, target]


def _log_probabilities(expected: dict[str, float]) -> dict[str, float]:
    total = math.log(sum(expected.values()))
    return {piece: math.log(max(count, 1e-9)) - total for piece, count in expected.items()}


def _expected_counts(words: Counter[str], scores: dict[str, float], max_length: int) -> dict[str, float]:
    """E step: how often each piece is used, averaged over all segmentations by their probability."""
    expected: dict[str, float] = {}
    probability = {piece: math.exp(score) for piece, score in scores.items()}
    for word, count in words.items():
        size = len(word)
        if size == 1:
            expected[word] = expected.get(word, 0.0) + count
            continue
        edges = [
            (start, end, probability[word[start:end]])
            for start in range(size)
            for end in range(start + 1, min(start + max_length, size) + 1)
            if word[start:end] in probability
        ]
        forward = [1.0] + [0.0] * size
        for start, end, p in edges:  # edges come by start, so forward[start] is complete
            forward[end] += forward[start] * p
        if forward[size] <= 0.0:
            continue  # a character outside the vocabulary: it will be bytes
        backward = [0.0] * size + [1.0]
        for start, end, p in reversed(edges):
            backward[start] += p * backward[end]
        for start, end, p in edges:
            share = forward[start] * p * backward[end] / forward[size]
            if share > 1e-6:
                expected[word[start:end]] = expected.get(word[start:end], 0.0) + count * share
    return expected
