"""The templates and word lists of phrases/, read: what training/augment.py builds its sentences from."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SLOT = re.compile(r"\{(\w+)\}")
# The lists that a group must have for a slot about one of its nouns.
NEEDS = {"x": {"good", "bad"}, "y": {"good", "bad"}, "k": {"merits", "flaws"}, "h": {"merits", "flaws"}}

_FOLDER = Path(__file__).with_name("phrases")
# Which lists of a group an adjective comes from, as (of the positive label, of the negative label).
_AFFIRMED = (("good", "fine"), ("bad", "worst"))
_NEGATED = (("good",), ("bad",))


@dataclass(frozen=True)
class Group:
    """Nouns, and the predicates that all of them take."""

    nouns: list[str]
    whole: bool
    words: dict[str, list[str]]

    def adjectives(self, label: int, *, negatable: bool = False) -> list[str]:
        """Those of a label; `negatable`: only those whose plain negation has the opposite verdict."""
        kinds = (_NEGATED if negatable else _AFFIRMED)[1 - label]
        return [word for kind in kinds for word in self.words.get(kind, ())]


@dataclass(frozen=True)
class Domain:
    """What is talked about, and in which words."""

    name: str
    words: dict[str, list[str]]  # verb, self, rivals, leads; faults, woes and the other lists of phrases/deeds.toml
    groups: list[Group]


@dataclass(frozen=True)
class Template:
    """One text a label, and the slots of both."""

    category: str
    texts: tuple[str, str]
    slots: frozenset[str]

    def needs(self, noun: str) -> set[str]:
        """The lists that the group of `n`, `m` or `t` must have."""
        prefix = "" if noun == "n" else noun
        return {need for slot, needs in NEEDS.items() if prefix + slot in self.slots for need in needs}


@dataclass(frozen=True)
class Phrases:
    """All of it."""

    domains: list[Domain]
    templates: dict[str, list[Template]]
    shared: dict[str, list[str]]  # words of either label
    words: tuple[dict[str, list[str]], dict[str, list[str]]]  # words of each label


@cache
def phrases() -> Phrases:
    """Read once."""
    first, more, deeds, *lexicons = (
        tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        for name in ("templates", "more_templates", "deeds", "lexicon_places", "lexicon_goods", "lexicon_media")
    )
    lists = deeds.pop("domain")
    words = {label: {name: text.split() for name, text in found.items()} for label, found in first.pop("words").items()}
    templates = {
        category: [_template(category, pair) for pair in _pairs(found)]
        for category, found in (first | more | deeds).items()
    }
    return Phrases(
        [_domain(domain | lists[domain["name"]]) for lexicon in lexicons for domain in lexicon["domain"]],
        templates,
        words["any"],
        (words["negative"], words["positive"]),
    )


def _pairs(category: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((text, text) for text in category["same"])
    yield from ((negative, positive) for negative, positive in category["pairs"])


def _template(category: str, texts: tuple[str, str]) -> Template:
    return Template(category, texts, frozenset(SLOT.findall("".join(texts))))


def _domain(content: dict[str, Any]) -> Domain:
    groups = [
        Group(
            group["nouns"].split(),
            group.get("whole", False),
            {key: value.split() for key, value in group.items() if isinstance(value, str)},
        )
        for group in content["group"]
    ]
    words = {key: value.split() for key, value in content.items() if isinstance(value, str)}
    return Domain(content["name"], words, groups)
