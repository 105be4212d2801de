import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alphabets import any_text
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.text import TEXT_VERSION, has_lone_surrogate, normalise
from lengnuan.model.tokenizer import FIRST_BYTE_ID, FIRST_PIECE_ID, MASK_ID, PAD_ID, Tokenizer, cut

# Piece i has id FIRST_PIECE_ID + i.
PIECES = ("电", "影", "好", "看", "不", "电影", "好看", "不好", "悲")
SCORES = (-4.0, -4.5, -3.0, -4.0, -2.5, -5.0, -5.5, -7.0, -6.0)
MADE_BY_HAND = Tokenizer(PIECES, SCORES)


def pieces_of(text: str) -> list[str]:
    ids = MADE_BY_HAND.encode(text)
    return [PIECES[i - FIRST_PIECE_ID] for i in ids]


def test_the_most_probable_cut_wins() -> None:
    """By hand, in natural logs: 电影 -5.0 beats 电 影 -8.5; then 不 好看 -8.0 beats 不好 看 -11.0 and 不 好 看 -9.5."""
    assert pieces_of("电影不好看") == ["电影", "不", "好看"]


def test_a_piece_that_is_less_probable_than_its_parts_is_not_used() -> None:
    """不 好 is -5.5, 不好 is -7.0."""
    assert pieces_of("不好") == ["不", "好"]


def test_ids_are_offset_by_padding_mask_and_bytes() -> None:
    assert (PAD_ID, MASK_ID, FIRST_BYTE_ID, FIRST_PIECE_ID) == (0, 1, 2, 258)
    assert MADE_BY_HAND.encode("电影") == [FIRST_PIECE_ID + 5]
    assert MADE_BY_HAND.size == 258 + len(PIECES)


def test_a_space_separates_and_is_no_token() -> None:
    assert pieces_of("电 影") == ["电", "影"]


def test_text_is_normalised_first() -> None:
    assert MADE_BY_HAND.encode(" 電影\u200b　好看") == MADE_BY_HAND.encode("电影 好看")


@pytest.mark.parametrize("text", ["", "  ", "\u200b\u200d", "\t\u3000\n"])
def test_nothing_visible_has_no_ids(text: str) -> None:
    assert MADE_BY_HAND.encode(text) == []


def test_an_unknown_character_becomes_its_bytes() -> None:
    assert MADE_BY_HAND.encode("好😭") == [FIRST_PIECE_ID + 2, *(FIRST_BYTE_ID + byte for byte in "😭".encode())]


def test_an_unknown_emoji_still_changes_the_ids() -> None:
    assert MADE_BY_HAND.encode("悲😭") != MADE_BY_HAND.encode("悲")


@pytest.mark.parametrize("pair", ["龘靐", "😭😂", "ab", "\u0e01\u0e02"])
def test_two_unknown_characters_have_different_ids(pair: str) -> None:
    assert MADE_BY_HAND.encode(pair[0]) != MADE_BY_HAND.encode(pair[1])


def test_a_byte_loses_against_any_piece() -> None:
    rare = Tokenizer(["好", "看", "好看"], [-1.0, -1.0, -500.0])
    assert rare.encode("好看") == [FIRST_PIECE_ID, FIRST_PIECE_ID + 1]
    only_long = Tokenizer(["好看"], [-500.0])
    assert only_long.encode("好看") == [FIRST_PIECE_ID]


@given(any_text)
def test_decode_gives_the_normalised_text_back(text: str) -> None:
    decoded = MADE_BY_HAND.decode(MADE_BY_HAND.encode(text))
    if not has_lone_surrogate(text):
        assert decoded == normalise(text).replace(" ", "")


@given(any_text)
def test_the_bytes_of_the_ids_are_those_of_the_text_and_every_id_is_in_the_vocabulary(text: str) -> None:
    ids = MADE_BY_HAND.encode(text)
    assert all(FIRST_BYTE_ID <= token_id < MADE_BY_HAND.size for token_id in ids)
    assert (ids == []) == (normalise(text) == "")


@given(any_text)
def test_spans_come_with_the_same_ids(text: str) -> None:
    ids, spans = MADE_BY_HAND.encode_with_spans(text)
    assert ids == MADE_BY_HAND.encode(text)
    assert len(spans) == len(ids)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert spans == sorted(spans)


def test_spans_point_into_the_raw_text() -> None:
    text = "　ＯＫ 電影\u200b，😭"
    _, spans = MADE_BY_HAND.encode_with_spans(text)
    assert [text[start:end] for start, end in dict.fromkeys(spans)] == ["Ｏ", "Ｋ", "電影\u200b", "，", "😭"]


def test_decode_shows_padding_and_mask() -> None:
    assert MADE_BY_HAND.decode([FIRST_PIECE_ID, MASK_ID, PAD_ID]) == "电[mask][pad]"


@pytest.mark.parametrize("token_id", [-1, FIRST_PIECE_ID + len(PIECES)])
def test_decode_refuses_an_id_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(IndexError):
        MADE_BY_HAND.decode([token_id])


def test_unknown_share_counts_bytes() -> None:
    assert MADE_BY_HAND.unknown_share(MADE_BY_HAND.encode("好好好龘")) == 0.5
    assert MADE_BY_HAND.unknown_share([]) == 0.0


def test_file_round_trip_keeps_ids_and_fingerprint(tmp_path: Path) -> None:
    scores = [score / 3 for score in SCORES]
    before = Tokenizer(PIECES, scores)
    before.to_file(tmp_path / "tokenizer.json")
    after = Tokenizer.from_file(tmp_path / "tokenizer.json")
    text = "电影不好看，悲😭 good"
    assert (after.encode(text), after.fingerprint()) == (before.encode(text), before.fingerprint())
    assert (after.pieces, after.scores) == (before.pieces, before.scores)


@given(st.integers(0, len(PIECES) - 1))
def test_fingerprint_changes_with_any_piece(index: int) -> None:
    changed = [*PIECES[:index], "新", *PIECES[index + 1 :]]
    assert Tokenizer(changed, SCORES).fingerprint() != MADE_BY_HAND.fingerprint()


@given(st.integers(0, len(PIECES) - 1))
def test_fingerprint_changes_with_any_score(index: int) -> None:
    changed = [*SCORES[:index], SCORES[index] - 1e-9, *SCORES[index + 1 :]]
    assert Tokenizer(PIECES, changed).fingerprint() != MADE_BY_HAND.fingerprint()


def test_fingerprint_changes_with_the_order_of_the_pieces() -> None:
    assert Tokenizer(PIECES[::-1], SCORES[::-1]).fingerprint() != MADE_BY_HAND.fingerprint()


def test_eight_threads_get_the_ids_that_one_gets() -> None:
    texts = [f"电影{i}不好看😭" * (i % 7 + 1) for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(MADE_BY_HAND.encode, texts)) == [MADE_BY_HAND.encode(text) for text in texts]


@pytest.mark.parametrize(
    ("pieces", "scores", "message"),
    [
        (["a"], [], "1 pieces but 0 scores"),
        (["a", "a"], [-1.0, -1.0], "distinct"),
        ([""], [-1.0], "not empty"),
        (["a b"], [-1.0], "without spaces"),
        (["a"], [float("nan")], "finite"),
        (["a"], [float("-inf")], "finite"),
    ],
)
def test_refuses_what_is_no_vocabulary(pieces: list[str], scores: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokenizer(pieces, scores)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "not JSON", id="cut off"),
        pytest.param("[]", "not a tokenizer file", id="another thing"),
        pytest.param('{"pieces": ["a"]}', "needs text_version, pieces and scores", id="missing keys"),
        pytest.param('{"text_version": 0, "pieces": [], "scores": []}', f"0, this code has {TEXT_VERSION}", id="old"),
        pytest.param(
            json.dumps({"text_version": TEXT_VERSION, "pieces": ["a"], "scores": ["x"]}), "real number", id="no number"
        ),
        pytest.param(
            json.dumps({"text_version": TEXT_VERSION, "pieces": ["a", "b"], "scores": [-1.0]}), "2 pieces", id="uneven"
        ),
        pytest.param(json.dumps({"text_version": TEXT_VERSION, "pieces": 3, "scores": 3}), "has no len", id="no lists"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as refused:
        Tokenizer.from_file(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(7, [1, 2, 3, 4, 5, 6]), (6, [1, 2, 3, 4, 5, 6]), (5, [1, 2, 3, 5, 6]), (4, [1, 2, 5, 6]), (1, [1]), (0, [])],
)
def test_cut_keeps_head_and_tail(limit: int, expected: list[int]) -> None:
    assert cut([1, 2, 3, 4, 5, 6], limit) == expected


def test_cut_returns_a_list_of_its_own() -> None:
    ids = [1, 2]
    assert cut(ids, 5) is not ids
