"""Shortcuts: tokens that nearly always go with one label, so that a model may learn them in place of the language.

Words of judgement do that rightly (难吃 is no fault of a data set), so words are listed for a person to read. Marks
are another matter: an emoticon, a tag in brackets or a sign that gives the label away is often what the label was made
from. Tokens are chosen on one half of the texts; the rule "the label of its marks" is judged on the other half.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lengnuan.model.text import normalise
from lengnuan.training.examples import Example, Examples
from lengnuan.training.scores import wilson_interval
from lengnuan.training.splits import letters_of, share_of

PURE = 0.9  # the lower bound of a shortcut's purity, and with unequal classes:
ERROR_LEFT = 0.2  # it is wrong at most this part of the times that its label alone would be
MIN_ROWS = 30  # of one half that have the token
MAX_ROWS = 100_000  # evenly spread over more than these: shares need no more
LISTED = 20

_TOKEN = re.compile(
    r"(?P<mark>\[[^\[\]\s]{1,8}\]|【[^【】\s]{1,8}】|&[a-z]{2,6};)|(?P<word>[a-z0-9]+)|(?P<letter>[^\W_])|(?P<sign>\S)"
)

_Row = tuple[int, set[tuple[str, bool]]]  # its label; its tokens, each with: is it a mark?


@dataclass(frozen=True)
class Token:
    """A token that goes with one label.

    Args:
        token: as it stands in the normalised text.
        label: its class.
        coverage: share of the rows that have it.
        purity: share of those that have this label.
        mark: an emoticon, a tag or a sign; else a word or two characters of one.
    """

    token: str
    label: int
    coverage: float
    purity: float
    mark: bool


@dataclass(frozen=True)
class Shortcuts:
    """What was found on one half, and what the marks among it do on the other.

    Args:
        tokens: most rows first.
        share: of the rows of the other half, those that have one of the marks.
        right: share of these whose label is that of most of their marks.
    """

    tokens: tuple[Token, ...]
    share: float
    right: float

    def facts(self, labels: Sequence[str]) -> dict[str, Any]:
        """For a report, labels by name."""
        rows = [
            {"token": t.token, "label": labels[t.label], "coverage": t.coverage, "purity": t.purity, "mark": t.mark}
            for t in self.tokens
        ]
        marks, words = ([row for row in rows if row["mark"] is kind][:LISTED] for kind in (True, False))
        return {"share": self.share, "right": self.right, "marks": marks, "words": words}

    def without(self, examples: Sequence[Example]) -> Examples:
        """The rows with the marks taken out of their texts."""
        marks = {found.token for found in self.tokens if found.mark}
        return Examples(replace(example, text=_cut_out(example.text, marks)) for example in examples)


def find_shortcuts(examples: Sequence[Example]) -> Shortcuts:
    """The tokens of these rows that nearly always go with one label."""
    chosen = np.linspace(0, len(examples) - 1, min(len(examples), MAX_ROWS)).astype(np.int64)
    one: list[_Row] = []
    other: list[_Row] = []
    for row in chosen:
        normal = normalise(examples[row].text)
        half = one if share_of(letters_of(normal), 0) < 0.5 else other  # repeats stay together
        half.append((examples[row].label, {(token, mark) for token, mark, _, _ in _tokens(normal)}))
    found = _pure(one)
    share, right = _judged(other, {(token.token, True): token.label for token in found if token.mark})
    return Shortcuts(found, share, right)


def _pure(rows: Sequence[_Row]) -> tuple[Token, ...]:
    prior = Counter(label for label, _ in rows)
    seen: dict[tuple[str, bool], Counter[int]] = {}
    for label, tokens in rows:
        for token in tokens:
            seen.setdefault(token, Counter())[label] += 1
    found = []
    for (text, mark), counts in seen.items():
        label, most = max(counts.items(), key=lambda item: (item[1], -item[0]))
        total = counts.total()
        needed = max(PURE, 1.0 - ERROR_LEFT * (1.0 - prior[label] / len(rows)))
        if total >= MIN_ROWS and wilson_interval(most, total)[0] >= needed:
            found.append(Token(text, label, total / len(rows), most / total, mark))
    return tuple(sorted(found, key=lambda token: (-token.coverage, token.token)))


def _judged(rows: Sequence[_Row], marks: Mapping[tuple[str, bool], int]) -> tuple[float, float]:
    """(share of the rows that have a mark, share of those whose label most of their marks have)."""
    covered = right = 0
    for label, tokens in rows:
        votes = Counter(marks[token] for token in sorted(tokens & marks.keys()))
        if votes:
            covered += 1
            right += votes.most_common(1)[0][0] == label
    return covered / max(1, len(rows)), right / max(1, covered)


def _tokens(normal: str) -> Iterator[tuple[str, bool, int, int]]:
    """(token, is it a mark, start, end) of a normalised text: marks, Latin words, and every two letters in a row."""
    previous = None
    for found in _TOKEN.finditer(normal):
        if found.lastgroup == "letter":
            if previous and previous.end() == found.start():
                yield previous.group() + found.group(), False, previous.start(), found.end()
            previous = found
        else:
            yield found.group(), found.lastgroup != "word", found.start(), found.end()
            previous = None


def _cut_out(text: str, marks: set[str]) -> str:
    normal = normalise(text)
    places = [(start, end) for token, mark, start, end in _tokens(normal) if mark and token in marks]
    if not places:
        return text
    for start, end in reversed(places):
        normal = normal[:start] + " " + normal[end:]
    return normal
