"""Masks fall on whole words, whatever way the tokenizer cuts them."""

import itertools

import jieba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.batches import Ragged
from lengnuan.training.pretrain import Maskable
from lengnuan.training.whole_words import CONTINUES, NEVER_HIDDEN, STARTS, draw_per_word, encode_words

CHARACTERS = "这部电影虽然前半段节奏很慢但结尾非常精彩房间干净服务差太吵了再来,ab"
SINGLE = Tokenizer(CHARACTERS, [-2.0] * len(CHARACTERS))
MARKED = Tokenizer(
    [*CHARACTERS, "▁", "▁电", "电影", "影虽"], [-2.0] * (len(CHARACTERS) + 4), "metaspace", enclosed=True
)
TEXT = "这部电影虽然前半段节奏很慢, 但结尾非常精彩"


def words_by_flag(tokenizer: Tokenizer, text: str) -> list[str]:
    found: list[str] = []
    for token, flag in zip(*encode_words(tokenizer, text), strict=True):
        if flag == NEVER_HIDDEN:
            continue
        if flag == STARTS:
            found.append("")
        found[-1] += tokenizer.decode([token])
    return found


def test_with_one_token_a_character_the_words_are_jieba_s() -> None:
    expected = [word for word in jieba.cut(normalise(TEXT)) if word != " "]
    assert words_by_flag(SINGLE, TEXT) == expected
    assert max(map(len, expected)) > 1


def test_start_and_end_are_never_hidden_and_a_word_mark_goes_with_its_word() -> None:
    ids, flags = encode_words(MARKED, "房间 干净")
    assert [ids[0], ids[-1]] == [MARKED.start_id, MARKED.end_id]
    assert flags == [NEVER_HIDDEN, STARTS, CONTINUES, CONTINUES, STARTS, CONTINUES, CONTINUES, NEVER_HIDDEN]


def test_a_piece_across_a_border_joins_the_words() -> None:
    joined = Tokenizer([*CHARACTERS, "影虽"], [*[-2.0] * len(CHARACTERS), -0.1])
    assert "电影虽然" in words_by_flag(joined, TEXT)


@given(st.text(alphabet="电影 好ab,\U00020bb7ＡÅ", max_size=20))
@pytest.mark.parametrize("tokenizer", [SINGLE, MARKED], ids=["plain", "marked"])
def test_the_ids_are_those_of_encode(tokenizer: Tokenizer, text: str) -> None:
    ids, flags = encode_words(tokenizer, text)
    assert ids == tokenizer.encode(text)
    assert len(flags) == len(ids)
    assert not flags or flags[int(tokenizer.enclosed)] == STARTS


def test_a_word_has_one_number_and_words_have_different_ones() -> None:
    flags = torch.tensor([[STARTS, CONTINUES, STARTS, STARTS], [NEVER_HIDDEN, STARTS, CONTINUES, NEVER_HIDDEN]])
    torch.manual_seed(0)
    draw = draw_per_word(flags)
    assert draw[0, 0] == draw[0, 1] != draw[0, 2] != draw[0, 3]
    assert draw[1, 1] == draw[1, 2] < 1.0
    assert (draw[flags == NEVER_HIDDEN] > 1.0).all()


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_multi_character_words_are_fully_hidden_as_often_as_asked(share: float) -> None:
    """TA-24: within two points; and never hidden by halves."""
    rows = [encode_words(SINGLE, TEXT)] * 4000
    part = Maskable(Ragged([ids for ids, _ in rows]), Ragged([flags for _, flags in rows]))
    _, flags = part.batch(torch.arange(4000).numpy(), torch.device("cpu"))
    torch.manual_seed(0)
    hidden = draw_per_word(flags) < share
    starts = [i for i, flag in enumerate(rows[0][1]) if flag == STARTS] + [len(rows[0][1])]
    words = [hidden[:, a:b] for a, b in itertools.pairwise(starts) if b - a > 1]
    assert len(words) > 4
    full = torch.cat([word.all(dim=1) for word in words]).float().mean().item()
    assert full == pytest.approx(share, abs=0.02)
    assert all(torch.equal(word.all(dim=1), word.any(dim=1)) for word in words)
