"""Learning the sub-words."""

import subprocess
import sys

import pytest

from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TokenizerConfig
from lengnuan.training.tokenise import basic_characters, train_tokenizer, words_of

TEXTS = ("酒店房间很干净", "酒店服务态度很差，房间太吵", "物流很快，服务态度不错", "房间干净，Good 酒店") * 10
CONFIG = TokenizerConfig(pieces=12, min_count=5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, CONFIG)


def test_the_same_texts_give_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    again = train_tokenizer(iter(TEXTS), CONFIG)
    assert (again.pieces, again.scores) == (tokenizer.pieces, tokenizer.scores)


def test_every_basic_character_is_a_piece(tokenizer: Tokenizer) -> None:
    assert basic_characters() <= set(tokenizer.pieces)
    assert set("冷暖az9,。あжλ😀") <= set(tokenizer.pieces)


def test_no_basic_character_is_one_that_normalising_changes() -> None:
    assert all(normalise(char) == char for char in basic_characters())


def test_frequent_words_become_pieces(tokenizer: Tokenizer) -> None:
    longer = {piece for piece in tokenizer.pieces if len(piece) > 1}
    assert {"酒店", "房间", "干净", "服务态度"} <= longer
    assert len(longer) <= CONFIG.pieces
    assert tokenizer.decode([tokenizer.encode("酒店房间")[0]]) == "酒店"


def test_no_piece_is_longer_than_asked() -> None:
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(pieces=50, min_count=5, max_piece_length=2))
    assert max(map(len, tokenizer.pieces)) == 2


def test_pieces_do_not_cross_words(tokenizer: Tokenizer) -> None:
    assert not {piece for piece in tokenizer.pieces if "店房" in piece or "很干" in piece}


def test_a_character_never_seen_is_the_least_likely(tokenizer: Tokenizer) -> None:
    score = dict(zip(tokenizer.pieces, tokenizer.scores, strict=True))
    assert score["鑫"] == min(tokenizer.scores) < score["很"]


def test_a_frequent_character_outside_the_basic_ones_is_added() -> None:
    assert "𠮷" not in basic_characters()
    assert "𠮷" in train_tokenizer(["𠮷野家"] * 5, CONFIG).pieces


@pytest.mark.parametrize("texts", [[], ["   "], ["𠮷"]], ids=["none", "blank", "one rare character"])
def test_almost_no_text_is_enough(texts: list[str]) -> None:
    assert set(train_tokenizer(texts, CONFIG).pieces) == basic_characters()


def test_words_are_counted_without_spaces() -> None:
    assert words_of(["酒店 酒店", "ＧＯＯＤ　酒店"]) == {"酒店": 3, "good": 1}


def test_using_a_tokenizer_needs_no_jieba() -> None:
    code = (
        "import sys; from lengnuan.model.tokenizer import Tokenizer;"
        "Tokenizer(['酒店'], [-1.0]).encode('酒店'); print('jieba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.strip() == "False"


def test_a_small_vocabulary_leaves_rare_characters_to_their_bytes() -> None:
    texts = ["房间很好，服务很好"] * 6 + ["麤"]
    small = train_tokenizer(texts, TokenizerConfig(pieces=5, every_character=False))
    assert {"房", "服", "a", "9"} <= set(small.pieces)
    assert "麤" not in small.pieces
    assert small.size < 400
    assert small.unknown_share(small.encode("麤")) == 1.0
