"""Somebody else's rows in our order of ids, fewer layers, and a smaller vocabulary that cuts as the whole one."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import FIRST_BYTE_ID, FIRST_PIECE_ID, MASK_ID, PAD_ID, Kind, Tokenizer
from lengnuan.training.errors import UsageError
from lengnuan.training.foreign import TOKENS, Foreign, Special, choose_layers, prune

SPECIAL = Special(start=0, end=1, padding=2, unknown=3, mask=4)


def foreign(pieces: dict[str, float], kind: Kind = "wordpiece") -> Foreign:
    """Row i of the token table is all i; two more rows than pieces; three layers, layer i all i."""
    every = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", *pieces]
    weights = {TOKENS: torch.arange(len(every) + 2.0)[:, None].repeat(1, 3), "norm.bias": torch.zeros(3)}
    weights |= {f"layers.{layer}.attention.output.bias": torch.full((3,), float(layer)) for layer in range(3)}
    scores = (0.0,) * 5 + tuple(pieces.values())
    return Foreign("nobody", "none", {"layers": 3, "width": 3}, weights, tuple(every), scores, kind, SPECIAL)


GIVEN = foreign({"好": -1.0, "坏": -2.0, "": -3.0, "a b": -3.0, "好看": -4.0})


def test_rows_of_text_are_no_special_empty_spaced_or_repeated_ones() -> None:
    assert GIVEN.rows_of_text() == [5, 6, 9]
    repeated = replace(GIVEN, pieces=(*GIVEN.pieces, "好"), scores=(*GIVEN.scores, -9.0))
    assert repeated.rows_of_text() == [5, 6, 9]


def test_every_id_has_the_row_that_means_the_same() -> None:
    tokenizer, weights = GIVEN.with_vocabulary([9, 5])
    rows = weights[TOKENS][:, 0].tolist()
    assert tokenizer.pieces == ("好看", "好")
    assert len(rows) == tokenizer.size
    assert (rows[PAD_ID], rows[MASK_ID]) == (SPECIAL.padding, SPECIAL.mask)
    assert set(rows[FIRST_BYTE_ID:FIRST_PIECE_ID]) == {SPECIAL.unknown}
    assert rows[FIRST_PIECE_ID : tokenizer.start_id] == [9, 5]
    assert rows[tokenizer.start_id :] == [SPECIAL.start, SPECIAL.end]
    assert weights.keys() == GIVEN.weights.keys()
    assert (tokenizer.kind, tokenizer.enclosed) == ("wordpiece", True)


def test_without_a_mask_the_unknown_row_serves() -> None:
    _, weights = replace(GIVEN, special=replace(SPECIAL, mask=None)).with_vocabulary([5])
    assert weights[TOKENS][MASK_ID, 0] == SPECIAL.unknown


@pytest.mark.parametrize("layers", [[0], [0, 1], [2, 0], [1, 1, 2], [0, 1, 2]])
def test_chosen_layers_are_counted_anew(layers: list[int]) -> None:
    found = choose_layers(GIVEN, layers)
    assert found.shape == {"layers": len(layers), "width": 3}
    assert {name for name in found.weights if name.startswith("layers.")} == {
        f"layers.{layer}.attention.output.bias" for layer in range(len(layers))
    }
    for new, old in enumerate(layers):
        assert found.weights[f"layers.{new}.attention.output.bias"][0] == old
    assert torch.equal(found.weights["norm.bias"], GIVEN.weights["norm.bias"])


def test_layer_one_is_not_layer_ten() -> None:
    many = {f"layers.{layer}.attention.output.bias": torch.full((3,), float(layer)) for layer in range(12)}
    found = choose_layers(replace(GIVEN, shape={"layers": 12}, weights=many), [1, 10])
    assert [value[0].item() for value in found.weights.values()] == [1, 10]


@pytest.mark.parametrize("layers", [[], [3], [-1], [0, 99]])
def test_a_layer_that_is_not_there_is_refused(layers: list[int]) -> None:
    with pytest.raises(UsageError, match="--layers: the encoder has layers 0 to 2"):
        choose_layers(GIVEN, layers)


def kept_pieces(of: Foreign, texts: list[str], min_count: int = 1) -> list[str]:
    return [of.pieces[row] for row in prune(of, texts, min_count)]


def test_what_the_texts_use_and_every_character_stay(caplog: pytest.LogCaptureFixture) -> None:
    of = foreign(dict.fromkeys(("好", "龙", "龍", "good", "##ness", "##s", "7", "😀", "bad"), 0.0))
    with caplog.at_level(logging.INFO, "lengnuan"):
        assert kept_pieces(of, ["goodness"]) == ["好", "龙", "good", "##ness", "##s", "7", "😀"]
    assert "7 of 9 pieces kept" in caplog.text


def test_rare_pieces_go() -> None:
    of = foreign({"good": 0.0, "bad": 0.0, "poor": 0.0, "好": 0.0})
    assert kept_pieces(of, ["good good bad", "good bad"], min_count=2) == ["good", "bad", "好"]
    assert kept_pieces(of, ["good good bad", "good bad"], min_count=3) == ["good", "好"]


def test_the_mark_alone_and_before_ascii_stays() -> None:
    of = foreign({"▁": -1.0, "▁a": -2.0, "▁好": -3.0, "▁电影": -4.0, "zzz": -9.0, "yyy": -8.0}, "metaspace")
    assert kept_pieces(of, []) == ["▁", "▁a", "zzz"]  # zzz: the lowest score decides what an unknown character costs


def test_a_greedy_cut_that_fails_keeps_failing() -> None:
    """Without "ab", "a" + "##bc" would cover what "ab" + nothing could not."""
    of = foreign({"ab": 0.0, "a": 0.0, "##bc": 0.0})
    rows = prune(of, ["abc"])
    tokenizer, _ = of.with_vocabulary(rows)
    assert tokenizer.encode("abc")[1:-1] == [FIRST_BYTE_ID + byte for byte in b"abc"]


def named(tokenizer: Tokenizer, ids: list[int]) -> list[Any]:
    return [token_id if token_id < FIRST_PIECE_ID else [*tokenizer.pieces, "<", ">"][token_id - FIRST_PIECE_ID]
            for token_id in ids]  # fmt: skip


piece = st.text(alphabet=st.sampled_from("abcd好看电影,"), min_size=1, max_size=4)
a_text = st.text(alphabet=st.sampled_from("abcde好看电影差, "), max_size=16)


@given(
    st.dictionaries(piece, st.integers(-12, -1).map(float), max_size=24),
    st.dictionaries(piece, st.integers(-12, -1).map(float), max_size=24),
    st.lists(a_text, max_size=4),
    st.sampled_from(["metaspace", "wordpiece"]),
)
def test_the_cut_vocabulary_gives_every_text_the_same_pieces(
    inside: dict[str, float], outside: dict[str, float], texts: list[str], kind: Kind
) -> None:
    marked = {f"{'▁' if kind == 'metaspace' else '##'}{text}": score for text, score in outside.items()}
    of = foreign({"▁": -5.0, **inside, **marked}, kind)
    full, _ = of.with_vocabulary(of.rows_of_text())
    with pytest.MonkeyPatch.context() as patch:  # harder: no character stays for its own sake
        patch.setattr("lengnuan.training.foreign.basic_characters", set)
        cut, _ = of.with_vocabulary(prune(of, texts))
    assert set(cut.pieces) <= set(full.pieces)
    for text in texts:
        assert named(cut, cut.encode(text)) == named(full, full.encode(text))
        assert (full.encode(text) == []) == (normalise(text) == "")
