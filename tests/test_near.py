"""Near copies, against a plain comparison of all pairs."""

import itertools
import random

import pytest

from lengnuan.training import near
from lengnuan.training.near import WINDOW, groups, near_pairs, seen_keys

LETTERS = "甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申酉戌亥"


def texts(count: int, length: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(LETTERS, k=length)) for _ in range(count)]


def edited_copies(seed: int = 0) -> list[str]:
    """Texts of several lengths and copies of them with one letter changed, cut, or glued to another."""
    draw = random.Random(seed)
    found = []
    for length in (10, 16, 20, 40, 90):
        for text in texts(12, length, seed + length):
            at = draw.randrange(length)
            found += [text, text[:at] + "外" + text[at + 1 :], text[: length // 2], text + draw.choice(found or ["x"])]
    return sorted(set(found))


def compared_one_by_one(keys: list[str]) -> set[tuple[int, int]]:
    windows = [{key[at : at + WINDOW] for at in range(len(key) - WINDOW + 1)} for key in keys]
    return {
        (a, b)
        for a, b in itertools.combinations(range(len(keys)), 2)
        if windows[a] and windows[b] and 2 * len(windows[a] & windows[b]) >= min(len(windows[a]), len(windows[b]))
    }


def test_the_pairs_are_those_of_a_plain_comparison() -> None:
    keys = edited_copies()
    pairs = compared_one_by_one(keys)
    assert len(pairs) > 50
    assert {tuple(pair) for pair in near_pairs(keys).tolist()} == pairs


def test_many_passes_and_chunks_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = edited_copies(1)
    whole = near_pairs(keys).tolist()
    monkeypatch.setattr(near, "PASS_WINDOWS", 500)
    monkeypatch.setattr(near, "CHUNK_TEXTS", 7)
    assert near_pairs(keys).tolist() == whole


@pytest.mark.parametrize("keys", [[], ["短"], ["很短的", "也很短"], ["字" * 15, "字" * 14]])
def test_texts_shorter_than_a_window_are_near_nothing(keys: list[str]) -> None:
    assert len(near_pairs(keys)) == 0


def test_half_of_the_windows_of_the_shorter_text_is_enough_and_less_is_not() -> None:
    (text,), (other,) = texts(1, 35, 1), texts(1, 60, 2)  # 20 windows
    assert len(near_pairs([text, text[: 16 + 9] + other])) == 1, "10 of 20"
    assert len(near_pairs([text, text[: 16 + 8] + other])) == 0, "9 of 20"


def test_a_stock_phrase_alone_makes_no_text_near_another() -> None:
    (phrase,) = texts(1, 30, 3)
    assert len(near_pairs(sorted(phrase + text for text in texts(100, 60, 4)))) == 0


def test_copies_of_one_text_are_one_group_however_many() -> None:
    (text,) = texts(1, 60, 5)
    keys = sorted(f"{text}{number}" for number in range(500)) + texts(3, 60, 6)
    found = groups(len(keys), near_pairs(keys))
    assert len(set(found[:500].tolist())) == 1
    assert len(set(found.tolist())) == 4


def test_seen_keys_are_equal_or_near_and_of_the_asked_ones() -> None:
    first, second, third = texts(3, 40, 7)
    copy = second[:-1] + "外"
    assert seen_keys({first, copy, third}, {first, second}) == {first, copy}
    assert seen_keys({first, first[:-1] + "外"}, set()) == set(), "near each other is no leak"
