"""Surface noise: the ways in which people mistype, decorate and run together a text without changing its verdict.

`perturb` copies how a text looks, never what it says. Traditional characters, full width and long runs are undone by
`normalise`, so on their own they teach nothing; they are here so that what follows them is not learnt as clean text.
"""

import random
import re
import tomllib
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

from lengnuan.model.simplified import SIMPLIFIED, TRADITIONAL
from lengnuan.model.text import MAX_RUN, normalise

_FILE = Path(__file__).with_name("phrases") / "noise.toml"
_TRIES = 8
_SWAPPED_WORDS = 2  # at most, so that a text stays readable

# The first traditional form of each simplified character that is none itself: 后 and 里 may mean two things.
_TRADITIONAL = {
    after: before
    for before, after in zip(reversed(TRADITIONAL), reversed(SIMPLIFIED), strict=True)
    if after not in TRADITIONAL
}
_FULL_WIDTH = {point: point + 0xFEE0 for point in range(0x21, 0x7F)}
_MARKS = re.compile("[，。！？、,.!?~～…；;]+")
_WESTERN = str.maketrans("，。！？；：", ",.!?;:")

Draw = random.Random


@cache
def _words(part: str) -> dict[str, list[str]]:
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {key: value.split() for key, value in content[part].items()}


def perturb(text: str, draw: Draw) -> str:
    """`text` with one to three kinds of noise; the same text when nothing could be changed.

    What comes back differs from `text` even after `normalise` wherever some kind of noise allows it.
    """
    for _ in range(_TRIES):
        noisy = text
        for change in draw.sample(_CHANGES, draw.choice((1, 1, 2, 3))):
            noisy = change(noisy, draw)
        if normalise(noisy) not in ("", normalise(text)):
            return noisy
    return text


def _swap_words(text: str, draw: Draw) -> str:
    """Homophones and slips: 服务 as 服勿."""
    swaps = _words("swaps")
    found = [word for word in swaps if word in text]
    for word in draw.sample(found, min(len(found), draw.randint(1, _SWAPPED_WORDS))):
        text = text.replace(word, draw.choice(swaps[word]), 1)
    return text


def _repeat(text: str, draw: Draw) -> str:
    """Emphasis: 好好好吃."""
    found = [index for index, char in enumerate(text) if char in _words("more")["emphasis"]]
    if not found:
        return text
    at = draw.choice(found)
    return text[:at] + text[at] * draw.randint(2, MAX_RUN) + text[at + 1 :]


def _shout(text: str, draw: Draw) -> str:
    """Another ending: !!! instead of a full stop."""
    return _MARKS.sub("", text[-3:]).join((text[:-3], draw.choice(_words("more")["endings"])))


def _space_out(text: str, draw: Draw) -> str:
    """A space after each character of a stretch, or of a short text."""
    if len(text) <= 12:
        return " ".join(text)
    start = draw.randrange(len(text) - 4)
    end = start + draw.randint(4, 10)
    return text[:start] + " ".join(text[start:end]) + text[end:]


def _no_marks(text: str, draw: Draw) -> str:
    """Without punctuation, or with spaces in its place."""
    return _MARKS.sub(draw.choice(("", " ")), text).strip()


def _western_marks(text: str, draw: Draw) -> str:
    """Half-width punctuation, at times full-width letters and digits."""
    return text.translate(_WESTERN) if draw.random() < 0.5 else text.translate(_FULL_WIDTH)


def _traditional(text: str, draw: Draw) -> str:
    """Traditional characters throughout, or here and there."""
    share = draw.choice((0.3, 1.0))
    return "".join(_TRADITIONAL.get(char, char) if draw.random() < share else char for char in text)


def _slip(text: str, draw: Draw) -> str:
    """Two neighbours swapped: 味道 as 道味. Never next to a negation, which would move to another word."""
    found = [
        index
        for index in range(1, len(text) - 2)
        if all(
            unicodedata.category(char) == "Lo" and char not in "不没别无非未" for char in text[index - 1 : index + 2]
        )
    ]
    if not found:
        return text
    at = draw.choice(found)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


_CHANGES: list[Callable[[str, Draw], str]] = [
    _swap_words, _swap_words, _repeat, _shout, _space_out, _no_marks, _western_marks, _traditional, _slip,
]  # fmt: skip
