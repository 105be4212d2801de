"""Cutting words as the `tokenizers` library does, and what the three kinds of vocabulary mean for ids and spans."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoints import SCORES, UNIGRAMS, WORDPIECES

from lengnuan.model.segmentation import UNKNOWN, WORD_MARK, Unigram, WordPiece
from lengnuan.model.tokenizer import FIRST_BYTE_ID, FIRST_PIECE_ID, Tokenizer

TEXTS = [
    "iphone 15 pro用了3天就坏了!!",
    "good-good, (goodgood)...a+b=1@5.5%",
    "房间「很干净」·推荐【good】pro～",
    "好😀abb 15b 🙂🙂电影",
    "goodx xgood 龘 天龘天 ab龘",
    "   这   部  ",
    "a" * 40,
]
letters = st.text(alphabet=st.sampled_from("ab1好😀,。·é"), min_size=1, max_size=4)
a_text = st.text(alphabet=st.sampled_from("abc1好坏,。·é😀 "), max_size=20)


def wordpiece_of_theirs(pieces: list[str], text: str) -> list[str]:
    """What tokenizers cuts; a character of an unknown word is "?"."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    made = Tokenizer(models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))  # noqa: S106
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found = made.encode(text, add_special_tokens=False)
    cut: list[str] = []
    for piece, (start, end) in zip(found.tokens, found.offsets, strict=True):
        cut += ["?"] * (end - start) if piece == "[UNK]" else [piece]
    return cut


def unigram_of_theirs(pieces: dict[str, float], text: str) -> list[str]:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = [("<unk>", 0.0), *pieces.items()]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    cut: list[str] = []
    for token in made.encode(text, add_special_tokens=False).tokens:
        cut += [token] if token in pieces else ["?"] * len(token)
    return cut


def cut_by(segment: Unigram | WordPiece, pieces: list[str], text: str) -> list[str]:
    cut: list[str] = []
    for word in text.split():
        found = segment(word)
        assert sum(length for _, length in found) == len(word)
        cut += ["?" if piece_id == UNKNOWN else pieces[piece_id] for piece_id, _ in found]
    return cut


@pytest.mark.parametrize("text", TEXTS)
def test_wordpiece_cuts_as_tokenizers_does(text: str) -> None:
    segment = WordPiece({piece: row for row, piece in enumerate(WORDPIECES)})
    assert cut_by(segment, WORDPIECES, text) == wordpiece_of_theirs(WORDPIECES, text)


@given(st.sets(letters, max_size=12), st.sets(letters, max_size=12), a_text)
def test_wordpiece_with_any_vocabulary(starts: set[str], continues: set[str], text: str) -> None:
    pieces = ["[UNK]", *sorted(starts), *(f"##{piece}" for piece in sorted(continues))]
    segment = WordPiece({piece: row for row, piece in enumerate(pieces)})
    assert cut_by(segment, pieces, text) == wordpiece_of_theirs(pieces, text)


def test_a_word_with_a_part_that_no_piece_covers_is_unknown_as_a_whole() -> None:
    segment = WordPiece({"go": 7, "##od": 8})
    assert segment("good") == [(7, 2), (8, 2)]
    assert segment("goodx") == [(UNKNOWN, 1)] * 5


@pytest.mark.parametrize("text", TEXTS)
def test_metaspace_cuts_as_tokenizers_does(text: str) -> None:
    pieces = {piece: score for piece, score in zip(UNIGRAMS, SCORES, strict=True) if not piece.startswith("<")}
    names = list(pieces)
    segment = Unigram({piece: row for row, piece in enumerate(names)}, pieces, WORD_MARK)
    assert cut_by(segment, names, text) == unigram_of_theirs(pieces, text)


scored = st.dictionaries(
    st.text(alphabet=st.sampled_from("▁ab1好,"), min_size=1, max_size=4),
    st.floats(-20.0, -0.5).map(lambda score: round(score, 2)),
    max_size=16,
)


@given(scored, a_text)
def test_metaspace_with_any_vocabulary(pieces: dict[str, float], text: str) -> None:
    pieces = {"▁": -3.0, **pieces}
    names = list(pieces)
    segment = Unigram({piece: row for row, piece in enumerate(names)}, pieces, WORD_MARK)
    assert cut_by(segment, names, text) == unigram_of_theirs(pieces, text)


METASPACE = Tokenizer(["▁", "▁电影", "好看", "▁g", "o", "d"], [-4.0, -3.0, -3.0, -5.0, -6.0, -6.0], "metaspace")
PIECES = Tokenizer(["电", "影", "go", "##od", "##1", "1"], [0.0] * 6, "wordpiece")
ENCLOSED = Tokenizer(PIECES.pieces, PIECES.scores, "wordpiece", enclosed=True)


def ids_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [FIRST_PIECE_ID + tokenizer.pieces.index(piece) for piece in pieces]


def test_the_mark_stands_for_no_character() -> None:
    ids, spans = METASPACE.encode_with_spans("電影好看 好看")
    assert ids == METASPACE.encode("電影好看 好看") == ids_of(METASPACE, "▁电影", "好看", "▁", "好看")
    assert spans == [(0, 2), (2, 4), (5, 5), (5, 7)]
    assert METASPACE.decode(ids) == "电影好看 好看"


def test_wordpiece_spans_and_back() -> None:
    ids, spans = PIECES.encode_with_spans("电GOOD1 影")
    assert ids == ids_of(PIECES, "电", "go", "##od", "##1", "影")
    assert spans == [(0, 1), (1, 3), (3, 5), (5, 6), (7, 8)]
    assert PIECES.decode(ids) == "电good1影"


def test_an_unknown_word_is_its_bytes_in_every_kind() -> None:
    assert PIECES.encode("gx") == [FIRST_BYTE_ID + byte for byte in b"gx"]
    assert METASPACE.encode("影") == [*ids_of(METASPACE, "▁"), *(FIRST_BYTE_ID + byte for byte in "影".encode())]


def test_start_and_end_enclose_what_is_not_empty() -> None:
    assert ENCLOSED.size == PIECES.size + 2
    assert ENCLOSED.encode("电") == [ENCLOSED.start_id, *PIECES.encode("电"), ENCLOSED.end_id]
    assert ENCLOSED.encode_with_spans(" 电 ")[1] == [(0, 0), (1, 2), (3, 3)]
    assert (ENCLOSED.encode("  "), ENCLOSED.encode_with_spans("")) == ([], ([], []))
    assert ENCLOSED.decode(ENCLOSED.encode("电")) == "电"
    assert ENCLOSED.end_id == ENCLOSED.size - 1


def test_kind_and_ends_are_part_of_the_fingerprint_and_of_the_file(tmp_path: Path) -> None:
    same = [Tokenizer(["▁", "好"], [-1.0, -1.0], kind, enclosed=ends)
            for kind in ("unigram", "metaspace", "wordpiece") for ends in (False, True)]  # fmt: skip
    assert len({tokenizer.fingerprint() for tokenizer in same}) == len(same)
    for tokenizer in same:
        tokenizer.to_file(tmp_path / "tokenizer.json")
        read = Tokenizer.from_file(tmp_path / "tokenizer.json")
        assert (read.kind, read.enclosed) == (tokenizer.kind, tokenizer.enclosed)
        assert read.fingerprint() == tokenizer.fingerprint()


def test_a_file_from_before_there_were_kinds_is_a_unigram_without_ends(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(["好"], [-1.0]).to_file(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({k: v for k, v in content.items() if k not in ("kind", "enclosed")}), encoding="utf-8")
    assert Tokenizer.from_file(file).fingerprint() == Tokenizer(["好"], [-1.0]).fingerprint()


@pytest.mark.parametrize(("kind", "message"), [("bpe", "kind must be one of"), ("metaspace", "needs the piece '▁'")])
def test_a_kind_that_cannot_be_is_refused(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokenizer(["好"], [-1.0], kind)  # type: ignore[arg-type]
