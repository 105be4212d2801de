import sys
import unicodedata

import pytest
from alphabets import CHINESE, EMOJI, NASTY, SPACE, any_text
from hypothesis import given, settings
from hypothesis import strategies as st

from lengnuan.model import text as text_module
from lengnuan.model.text import MAX_MARKS, MAX_RUN, has_lone_surrogate, normalise, normalise_with_spans


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param("ＡＢＣ１２３！", "abc123!", id="full width equals half width"),
        pytest.param("ﾊﾞｶﾅ", "バカナ", id="half-width kana with its voice mark"),
        pytest.param("①㎏ﬃ", "1kgffi", id="compatibility forms"),
        pytest.param("這個電影後面很無聊", "这个电影后面很无聊", id="traditional to simplified"),
        pytest.param("OK Ĳssel", "ok ijssel", id="lower case"),
        pytest.param("ΣΑΣ σας", "σασ σασ", id="one sigma wherever it stands"),
        pytest.param("Straße", "strasse", id="case folding of sharp s"),
        pytest.param("好\u200b看\u2060吗\ufeff", "好看吗", id="zero width out"),
        pytest.param("好\x00看\x1b吗\x85", "好看吗", id="control characters out"),
        pytest.param("好\u202e看\xad", "好看", id="direction marks and soft hyphens out"),
        pytest.param("一\t二\r\n三\u2028四\x0b五", "一 二 三 四 五", id="line breaks and tabs are spaces"),
        pytest.param("  一 \u3000\xa0 二　", "一 二", id="white space folded and ends stripped"),
        pytest.param("哈哈哈哈哈哈!!!!!", "哈哈哈!!!", id="runs capped"),
        pytest.param("哈哈哈", "哈哈哈", id="a run of the limit stays"),
        pytest.param("哈ﾊﾊﾊﾊ", "哈ハハハ", id="runs capped after width folding"),
        pytest.param("真的😭❤\ufe0f", "真的😭❤", id="emoji stay without their variation selector"),
        pytest.param("👨\u200d👩\u200d👧", "👨👩👧", id="a joined emoji is its parts"),
        pytest.param("e\u0301te\u0301", "été", id="composed"),
        pytest.param("\u1112\u1161\u11ab", "한", id="jamo make a syllable"),
        pytest.param("\u3164 \u200b\t", "", id="nothing visible"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_normalise(raw: str, expected: str) -> None:
    assert normalise(raw) == expected


@settings(max_examples=500)
@given(any_text)
def test_normalise_twice_changes_nothing(raw: str) -> None:
    once = normalise(raw)
    assert normalise(once) == once


@settings(max_examples=500)
@given(any_text)
def test_no_invisible_character_no_fold_and_no_long_run_is_left(raw: str) -> None:
    clean = normalise(raw)
    assert not {unicodedata.category(char) for char in clean} & {"Cc", "Cf", "Zl", "Zp"}
    assert clean == clean.strip()
    assert "  " not in clean
    assert not any(clean[i : i + MAX_RUN + 1] == clean[i] * (MAX_RUN + 1) for i in range(len(clean)))


@settings(max_examples=1000)
@given(any_text)
def test_spans_give_the_same_text(raw: str) -> None:
    assert normalise_with_spans(raw)[0] == normalise(raw)


@settings(max_examples=500)
@given(any_text)
def test_spans_lie_in_the_text_and_never_go_back(raw: str) -> None:
    clean, spans = normalise_with_spans(raw)
    assert len(spans) == len(clean)
    assert all(0 <= start < end <= len(raw) for start, end in spans)
    assert spans == sorted(spans)
    assert [end for _, end in spans] == sorted(end for _, end in spans)


def test_a_mark_that_folds_to_a_letter_stays_with_its_base() -> None:
    """U+0345 is a combining mark until it is folded to iota, and marks after it may still move in front of it."""
    raw = "ω\u0345\u030c好"
    assert normalise_with_spans(raw) == (normalise(raw), [(0, 3), (0, 3), (0, 3), (3, 4)])


def test_spans_of_full_width_text_are_single_characters() -> None:
    assert normalise_with_spans("ＯＫ！好") == ("ok!好", [(0, 1), (1, 2), (2, 3), (3, 4)])


def test_spans_of_one_character_that_becomes_three() -> None:
    assert normalise_with_spans("aﬃ好") == ("affi好", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)])


def test_spans_of_two_characters_that_become_one() -> None:
    assert normalise_with_spans("ﾊﾞ好") == ("バ好", [(0, 2), (2, 3)])


def test_spans_of_emoji_take_in_what_vanishes_after_them() -> None:
    assert normalise_with_spans("悲❤\ufe0f😭") == ("悲❤😭", [(0, 1), (1, 3), (3, 4)])


def test_spans_of_a_capped_run_are_those_of_the_piece_that_stays() -> None:
    assert normalise_with_spans("哈哈哈哈哈好") == ("哈哈哈好", [(0, 1), (1, 2), (2, 3), (5, 6)])


def test_invisible_table_holds_every_control_and_format_character_of_this_python() -> None:
    invisible = {
        point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)) in ("Cc", "Cf", "Zl", "Zp")
    }
    assert invisible <= text_module._INVISIBLE.keys()


def test_every_single_character_is_stable() -> None:
    once = [normalise(chr(point)) for point in range(0x20000)]
    assert [normalise(text) for text in once] == once


@pytest.mark.parametrize(
    ("text", "expected"), [("好\ud83d", True), ("\ude2d", True), ("😭", False), ("", False), ("\ufffd", False)]
)
def test_lone_surrogate(text: str, expected: bool) -> None:
    assert has_lone_surrogate(text) is expected


def test_endless_combining_marks_are_capped_before_they_cost_quadratic_time() -> None:
    assert len(normalise("a" + "\u0301\u0323" * 50_000)) <= MAX_MARKS + 1
    assert normalise("x" + "\uff9e" * 100) == normalise("x" + "\uff9e" * 1000)


def test_every_character_that_decomposes_into_marks_is_capped() -> None:
    points = (chr(p) for p in range(sys.maxunicode + 1) if not 0xD800 <= p <= 0xDFFF)
    marks = [c for c in points if unicodedata.combining(unicodedata.normalize("NFKD", c)[0])]
    assert len(marks) > 800
    assert not [mark for mark in marks if not text_module._LONG_MARKS.fullmatch(mark * (MAX_MARKS + 1))]


def cleaned_by_table() -> list[str]:
    return [chr(p) for p in range(sys.maxunicode + 1) if text_module._ALONE.fullmatch(chr(p))]


def test_no_character_cleaned_by_table_meets_another() -> None:
    """Nothing that it becomes can be reordered, or composed with what stands before it (UAX #15, section 3)."""
    seconds = set()
    for point in range(sys.maxunicode + 1):
        decomposition = unicodedata.decomposition(chr(point))
        if decomposition and not decomposition.startswith("<"):
            seconds.update(chr(int(part, 16)) for part in decomposition.split()[1:])
    jamo = {chr(p) for p in range(0x1160, 0x1200)}
    for char in cleaned_by_table():
        after = text_module._clean_together(char)
        assert not any(unicodedata.combining(c) for c in char + after), repr(char)
        assert not (seconds | jamo) & set(char + after), repr(char)
        assert text_module._clean(char) == after


alone = st.one_of(st.sampled_from(NASTY), st.sampled_from(CHINESE + EMOJI + SPACE + "aAbzZ09，ｶａガ"))


@given(st.one_of(any_text, st.text(alphabet=alone), st.text(alphabet=st.sampled_from(cleaned_by_table()))))
def test_the_table_gives_what_the_whole_pipeline_gives(raw: str) -> None:
    assert text_module._clean(raw) == text_module._clean_together(raw)


def test_common_text_is_cleaned_by_table() -> None:
    texts = (
        "这部电影虽然前半段节奏很慢，但结尾“非常”精彩！！",
        "ＧＯＯＤ…性价比《很》高 123\n😊❤\ufe0f",
        "離地鐵站很近——不錯~·",
    )
    assert all(text_module._ALONE.fullmatch(text) for text in texts)
    assert not text_module._ALONE.fullmatch("e\u0301")
