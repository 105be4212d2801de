"""The one text pipeline: training and serving both go through `normalise`, so they cannot drift apart.

Steps, in order: control, zero-width and variation characters out (tabs and line breaks become spaces); runs of
combining marks capped at `MAX_MARKS`; NFKC, so full-width equals half-width; traditional to simplified; lower case;
white space folded; runs of one character capped at `MAX_RUN`. Emoji stay. The lower case is Unicode case folding,
which, unlike `str.lower`, never looks at neighbours. Pure: no settings, no state. Any change to what comes out raises
`TEXT_VERSION`, and a bundle made under another version is refused.
"""

import itertools
import re
import unicodedata

from lengnuan.model.simplified import SIMPLIFIED, TRADITIONAL

TEXT_VERSION = 1
MAX_RUN = 3
MAX_MARKS = (
    30  # as in Unicode's Stream-Safe Text Format (UAX #15, section 13): NFKC takes quadratic time on longer runs
)

Span = tuple[int, int]

_LONG_RUN = re.compile(r"(.)\1{%d,}" % MAX_RUN, re.DOTALL)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# All that NFKC may have to put in order behind a character; the five added ones are marks by decomposition.
_MARKS = (
    "".join(chr(p) for p in range(0x300, 0x1E94B) if unicodedata.combining(chr(p))) + "\u0f73\u0f75\u0f81\uff9e\uff9f"
)
_LONG_MARKS = re.compile(f"([{_MARKS}]{{{MAX_MARKS}}})[{_MARKS}]+")
_SIMPLIFY = str.maketrans(TRADITIONAL, SIMPLIFIED)
# Unicode categories Cc, Cf, Zl and Zp, written out so that a newer Unicode database changes no answer; then the
# variation selectors (they only choose a glyph) and the fillers that show nothing.
_INVISIBLE_RANGES = (
    *((0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F)),
    *((0x890, 0x891), (0x8E2, 0x8E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x2064)),
    *((0x2066, 0x206F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD)),
    *((0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F)),
    *((0xFE00, 0xFE0F), (0xE0100, 0xE01EF), (0x34F, 0x34F), (0x115F, 0x1160), (0x3164, 0x3164), (0xFFA0, 0xFFA0)),
)
_INVISIBLE = {
    point: " " if chr(point).isspace() else None
    for first, last in _INVISIBLE_RANGES
    for point in range(first, last + 1)
}
# Characters that neither change with their neighbours nor change them, so that a text of them alone, as nearly all are,
# can be cleaned by table: no marks, no jamo, nothing that NFKC takes apart into one. ASCII; some invisible and most
# Chinese punctuation; arrows; kana; the common ideographs; full- and half-width forms; emoji.
_ALONE = re.compile(
    r"[\x00-\x7f\xb7\u200b-\u200f\u2010-\u2016\u2018-\u2027\u2190-\u21ff\u2600-\u27bf\u3000-\u3029\u3030-\u3098\u309d-\u30ff"
    r"\u3400-\u9fff\ufe0e\ufe0f\uff01-\uff9d\U0001f300-\U0001faff]*"
)


def has_lone_surrogate(text: str) -> bool:
    r"""True when `text` holds half of a surrogate pair (JSON `"\ud83d"`): not valid Unicode, so not UTF-8."""
    return _LONE_SURROGATE.search(text) is not None


def _clean(text: str) -> str:
    """Every step of `normalise` that looks at characters, not at runs of them."""
    return text.translate(_CLEANED) if _ALONE.fullmatch(text) else _clean_together(text)


def _clean_together(text: str) -> str:
    text = _LONG_MARKS.sub(r"\1", text.translate(_INVISIBLE))
    text = unicodedata.normalize("NFKC", text).translate(_SIMPLIFY).casefold()
    return text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)


class _Cleaned(dict[int, str]):
    """What becomes of a character alone, by code point; filled as characters are met."""

    def __missing__(self, point: int) -> str:
        self[point] = cleaned = _clean_together(chr(point))
        return cleaned


_CLEANED = _Cleaned()


def normalise(text: str) -> str:
    """The form of `text` that the tokenizer sees; empty when nothing visible is left."""
    text = " ".join(_clean(text).split())
    return _LONG_RUN.sub(lambda run: run.group(1) * MAX_RUN, text)


def normalise_with_spans(text: str) -> tuple[str, list[Span]]:
    """`normalise(text)` and, for each character of it, the `[start, end)` of `text` that it came from.

    Slower than `normalise` (it goes cluster by cluster); for explanations, not for the request path. A character
    that stands for a folded or capped run spans the piece of the run that it keeps.
    """
    chars: list[str] = []
    spans: list[Span] = []
    for start, end in _clusters(text):
        for char in _clean(text[start:end]):
            if char.isspace():
                if not chars or chars[-1] == " ":
                    continue
                char = " "  # noqa: PLW2901
            elif chars[-MAX_RUN:] == [char] * MAX_RUN:
                continue
            chars.append(char)
            spans.append((start, end))
    if chars and chars[-1] == " ":
        chars.pop()
        spans.pop()
    return "".join(chars), spans


def _clusters(text: str) -> list[Span]:
    """Cut `text` where cleaning the parts gives the same as cleaning the whole; what vanishes joins what precedes."""
    cuts = [0]
    for index, char in enumerate(text):
        alone = _clean(char)
        start = cuts[-1]
        if not alone or index == start:
            continue
        if unicodedata.combining(char) or unicodedata.combining(alone[0]):
            continue  # NFKC may move a mark in front of the marks before it
        if _never_composes(char) or _clean(text[start : index + 1]) == _clean(text[start:index]) + alone:
            cuts.append(index)
    if text:
        cuts.append(len(text))
    return list(itertools.pairwise(cuts))


def _never_composes(char: str) -> bool:
    """ASCII, Latin-1 and CJK ideographs never join the character before them."""
    return char < "\u0300" or "\u3400" <= char <= "\u9fff"
