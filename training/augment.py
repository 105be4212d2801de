"""Synthetic training rows: sentences from our own templates and words, and noisy copies of real rows.

For what small sentiment models get wrong: negation, double negation, contrast, comparison, irony, slang, emoji.
Every draw makes one sentence of each label from the same template about the same nouns, so that no noun, no negation
and no 虽然 can stand for a label. The templates and their notation are in phrases/templates.toml.
"""

import logging
import random
import re
from collections.abc import Iterator, Sequence

from lengnuan.model.text import normalise
from lengnuan.training.config import AugmentConfig
from lengnuan.training.data import LabelSet
from lengnuan.training.errors import UsageError
from lengnuan.training.examples import Example, Examples
from lengnuan.training.noise import perturb
from lengnuan.training.splits import Codes, without
from lengnuan.training.wording import NEEDS, SLOT, Domain, Group, Template, phrases

log = logging.getLogger(__name__)

LABELS = ("negative", "positive")

_CHOICE = re.compile(r"\(([^()]*)\)")
_ADVERBS = ("很", "非常", "特别", "真的很", "超级", "相当", "十分", "格外")
_EXCLAMATIONS = ("太{}了", "真{}", "真的{}", "好{}啊", "挺{}的", "真是太{}了", "超级{}", "够{}的")
_ENDINGS = ("", "", "", "。", "。", "！", "!", "～", "...", "。。。", "！！")
_TRIES = 200  # draws that bring nothing new before it gives up

_OF_A_NOUN = {"p", "q", "s", "r", "a", "b", "x", "y", "k", "h"}
_BY_LABEL = ({"event": "woes", "deed": "wrongs"}, {"event": "joys", "deed": "rights"})
_OPPOSITE = {"q": "p", "r": "s", "b": "a"}
# Which list of a domain a slot draws from; `2` behind the slot is another word of that list.
_LISTS = {name: f"{name}s" for name in ("fault", "virtue", "mark", "wrong", "right")} | {"who": "who"}


class _Scene:
    """Where a template is played: a domain and its nouns, the same for both labels."""

    def __init__(self, domain: Domain, template: Template, draw: random.Random) -> None:
        self.domain, self.template, self._draw = domain, template, draw
        parts = [group for group in domain.groups if not group.whole]
        wholes = [group for group in domain.groups if group.whole]
        self._groups: dict[str, Group] = {}
        # Negations and conjunctions say the same for both labels, so that none of them stands for one.
        self._shared = {name: draw.choice(words) for name, words in phrases().shared.items()}
        for slot, name in _LISTS.items():
            words = domain.words.get(name, ())
            self._shared |= dict(zip((slot, f"{slot}2"), draw.sample(words, min(2, len(words))), strict=False))
        self._nouns: dict[str, str] = {}
        common = "c" in template.slots  # 的 before a noun: none with 这 or another 的 in it
        self._cast("n", parts if common else domain.groups, plain=common)
        self._cast("m", [group for group in parts if group is not self._groups.get("n")])
        self._cast("t", wholes)

    def _cast(self, name: str, groups: Sequence[Group], *, plain: bool = False) -> None:
        needs = self.template.needs(name)
        fitting = [group for group in groups if needs <= group.words.keys()]
        nouns = [(group, noun) for group in fitting for noun in group.nouns if not (plain and "的" in noun)]
        if nouns:
            self._groups[name], self._nouns[name] = self._draw.choice(nouns)

    def playable(self) -> bool:
        """Whether the domain has all that the template asks for."""
        slots, words = self.template.slots, self.domain.words
        nouns = {"n" if slot == "c" else slot for slot in slots if slot in {"n", "c", "m", "t"}}
        nouns |= {slot[0] if len(slot) == 2 else "n" for slot in slots if slot[-1] in _OF_A_NOUN and len(slot) < 3}
        verb = {"v", "end", "self", "rival"} & slots
        lists = {_LISTS[name] for slot in slots if (name := slot.rstrip("2")) in _LISTS}
        return nouns <= self._nouns.keys() and lists <= words.keys() and not (verb and "verb" not in words)

    def sentence(self, label: int) -> str:
        """The template's text for a label, with everything filled in."""
        return self._text(self._choose(self.template.texts[label]), label)

    def _text(self, text: str, label: int) -> str:
        chosen = dict(self._shared)  # a slot that comes twice says the same twice
        while found := SLOT.search(text):
            slot = found[1]
            if slot not in chosen:
                chosen[slot] = self._fill(slot, label)
            text = text[: found.start()] + chosen[slot] + text[found.end() :]
        return text

    def closing(self, label: int) -> str:
        """A last clause that repeats the verdict."""
        return self._text("{end}" if "verb" in self.domain.words else "{mood}", label)

    def _choose(self, text: str) -> str:
        while found := _CHOICE.search(text):
            text = text[: found.start()] + self._draw.choice(found[1].split("|")) + text[found.end() :]
        return text

    def _fill(self, slot: str, label: int) -> str:
        if slot in self._nouns or slot == "c":
            return self._nouns["n" if slot == "c" else slot]
        if len(slot) <= 2 and slot[-1] in _OF_A_NOUN:
            return self._predicate(slot[-1], self._groups[slot[0] if len(slot) == 2 else "n"], label)
        key = {"v": "verb", "rival": "rivals", **_BY_LABEL[label]}.get(slot, slot)
        if key in self.domain.words:
            return self._draw.choice(self.domain.words[key])
        return self._draw.choice(phrases().words[label][slot])

    def _predicate(self, slot: str, group: Group, label: int) -> str:
        if slot in _OPPOSITE:
            slot, label = _OPPOSITE[slot], 1 - label
        choice = self._draw.choice
        if slot == "p":
            return self._any_predicate(group, label)
        if slot == "s":
            return choice(_ADVERBS) + choice(group.adjectives(label))
        if slot == "a":
            return choice(group.adjectives(label))
        if slot in "xy":
            return choice(group.adjectives(1 - label if slot == "x" else label, negatable=True))
        lack, have = ("merits", "flaws") if label == 0 else ("flaws", "merits")
        if slot == "k":
            return choice(group.words[lack])
        return ("有", "很有")[label] + choice(group.words[have])

    def _any_predicate(self, group: Group, label: int) -> str:
        chance = self._draw.random()
        found = phrases()
        if chance < 0.15 and NEEDS["x"] <= group.words.keys():
            return self._draw.choice(found.shared["never"]) + self._predicate("x", group, label)
        if chance < 0.25 and NEEDS["k"] <= group.words.keys():
            return self._draw.choice(found.shared["lacks"]) + self._predicate("k", group, label)
        if chance < 0.4:
            return self._draw.choice(found.words[label]["loud"])
        if chance < 0.7:
            return self._predicate("s", group, label)
        return self._draw.choice(_EXCLAMATIONS).format(self._predicate("a", group, label))


def _dressed(scene: _Scene, text: str, label: int, draw: random.Random) -> str:
    """With a lead-in, an emoji and punctuation, now and then."""
    about = {"n", "t"} & scene.template.slots
    if about and draw.random() < 0.3:
        text = draw.choice(scene.domain.words["leads"]) + "，" + text
    if about and text[-1] not in "？！" and not scene.template.slots & {"end", "emo"} and draw.random() < 0.2:
        text += "，" + scene.closing(label)
    if text[-1] not in "？！":
        text += draw.choice(_ENDINGS)
    if "emo" not in scene.template.slots and draw.random() < 0.08:
        text += draw.choice(phrases().words[label]["emo"])
    comma = draw.choice(("，", "，", "，", "，", ",", " "))
    return text.replace("，", comma)


def generate(count: int, seed: int) -> list[Example]:
    """`count` distinct sentences, negative and positive in turn; the domain of each is its category.

    Raises:
        UsageError: there are not that many.
    """
    draw = random.Random(seed)
    wording = phrases()
    categories = list(wording.templates)
    found: list[Example] = []
    seen: set[str] = set()
    tries = 0
    while len(found) < count:
        template = draw.choice(wording.templates[categories[len(found) // 2 % len(categories)]])
        scene = _Scene(draw.choice(wording.domains), template, draw)
        if not scene.playable():
            continue
        texts = [_dressed(scene, scene.sentence(label), label, draw) for label in (0, 1)]
        keys = {normalise(text) for text in texts}
        tries += 1
        if len(keys) == 2 and not keys & seen:
            seen |= keys
            found += [Example(text, label, template.category) for label, text in enumerate(texts)]
            tries = 0
        elif tries > _TRIES:
            raise UsageError(f"augment.rows: there are not {count:,} different sentences")
    return found[:count]


def synthetic_rows(
    config: AugmentConfig, labels: LabelSet, train: Sequence[Example], held_out: Codes, seed: int
) -> tuple[Examples, dict[str, int]]:
    """The rows that `config` asks for, without those that are dev or test texts; and how many of each kind.

    Raises:
        UsageError: rows are asked for and the classes are not `LABELS`.
    """
    if not config.rows and not config.noise_share:
        return Examples(), {"generated": 0, "noisy_copies": 0, "held_out_dropped": 0, "nonsense": config.nonsense}
    if labels.names != LABELS:
        raise UsageError(
            f"[augment] is for the classes {list(LABELS)} in this order; these are {list(labels.names)}: "
            "set augment.rows and augment.noise_share to 0"
        )
    generated = without(Examples(generate(config.rows, seed)), held_out)
    copies = Examples(_noisy_copies(train, config.noise_share, random.Random(seed)))
    kept = without(copies, held_out)
    dropped = config.rows - len(generated) + len(copies) - len(kept)
    log.info("augment: %d sentences, %d noisy copies, %d dropped as dev or test", len(generated), len(kept), dropped)
    counts = {"generated": len(generated), "noisy_copies": len(kept), "held_out_dropped": dropped}
    counts["nonsense"] = config.nonsense
    return Examples([*generated, *kept]), counts


def _noisy_copies(train: Sequence[Example], share: float, draw: random.Random) -> Iterator[Example]:
    for example in train:
        if draw.random() < share:
            noisy = perturb(example.text, draw)
            if normalise(noisy) != normalise(example.text):
                yield Example(noisy, example.label, example.domain)
