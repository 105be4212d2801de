"""`/v1/tokenize` and `/v1/explain`: what the model sees, and what its answer rests on."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, expected_logits, serving
from test_bad_requests import check_error
from tiny_bundle import LABELS, PIECES, tiny_tokenizer

from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.service.explain import ExplainReply, joined_spans
from lengnuan.service.tokenize import MAX_CHARS, TokenizeReply


async def post(client: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    reply = await client.post(f"/v1/{name}", json=body)
    content: dict[str, Any] = reply.json()
    return content


@async_test
async def test_tokenize_shows_ids_pieces_and_places(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        reply = await post(client, "tokenize", input="電影 很好看")  # traditional, with a space
    [item] = TokenizeReply.model_validate(reply).data
    [window] = item.windows
    assert window.ids == tiny_tokenizer().encode("电影很好看")
    assert window.pieces == ["电影", "很", "好看"]
    assert window.spans == [(0, 2), (3, 4), (4, 6)]
    assert (item.tokens, item.tokens_used, item.truncated) == (3, 3, False)
    assert engine.rows == []


@async_test
async def test_tokenize_shows_the_ids_that_classify_runs(tmp_path: Path) -> None:
    engine, text = FakeEngine(), "好差很太不看" * 3
    async with serving(tmp_path, engine) as (client, _):
        for rule in ("truncate", "window"):
            engine.rows.clear()
            await post(client, "classify", input=text, on_long=rule)
            [item] = (await post(client, "tokenize", input=text, on_long=rule))["data"]
            assert sorted(window["ids"] for window in item["windows"]) == sorted(engine.rows)
            for window in item["windows"]:
                assert window["pieces"] == [text[start:end] for start, end in window["spans"]]


@async_test
async def test_tokenize_shows_bytes_and_where_they_come_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        [item] = (await post(client, "tokenize", input=f"好{STRANGE}"))["data"]
    assert item["windows"][0]["pieces"] == ["好", *(f"<0x{byte:02X}>" for byte in STRANGE.encode())]
    assert item["windows"][0]["spans"] == [[0, 1], [1, 2], [1, 2], [1, 2]]


def test_the_ends_of_an_enclosed_text_have_names() -> None:
    tokenizer = Tokenizer(list(PIECES), list(PIECES.values()), enclosed=True)
    assert [tokenizer.piece(token_id) for token_id in tokenizer.encode("好")] == ["[start]", "好", "[end]"]


@async_test
async def test_tokenize_refuses_what_classify_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        partial = await post(client, "tokenize", input=["好", " "], partial=True)
        whole = await client.post("/v1/tokenize", json={"input": ["好", " "]})
        none = await client.post("/v1/tokenize", json={"input": []})
        wrong = await client.post("/v1/tokenize", json={"input": "好", "model": "another"})
    assert [item.get("error", {}).get("code") for item in partial["data"]] == [None, "empty_text"]
    assert check_error(whole, 422, "empty_text")["index"] == 1
    check_error(none, 422, "invalid_request")
    check_error(wrong, 404, "unknown_model")


@pytest.mark.parametrize("name", ["tokenize", "explain"])
def test_there_is_a_limit_for_what_is_looked_at(tmp_path: Path, name: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post(f"/v1/{name}", json={"input": "a" * (MAX_CHARS + 1)})
        error = check_error(reply, 413, "text_too_large")
        assert (error["limit"], error["actual"]) == (MAX_CHARS, MAX_CHARS + 1)

    run()


@async_test
async def test_looking_takes_no_longer_than_the_request_may(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post("/v1/tokenize", json={"input": "가" * MAX_CHARS, "timeout_ms": 20})
    assert check_error(reply, 504, "deadline_exceeded")["stage"] == "tokenize"


@async_test
async def test_explain_leaves_out_each_word(tmp_path: Path) -> None:
    text, words = "电影很 好看", ["电影", "很", "好看"]
    async with serving(tmp_path) as (client, _):
        reply = await post(client, "explain", input=text)
        plain = (await post(client, "classify", input=text))["data"][0]
    found = ExplainReply.model_validate(reply)
    place = LABELS.index(found.label)
    assert (found.label, found.confidence) == (plain["label"], plain["confidence"])
    assert [word.word for word in found.words] == words
    assert [text[word.start : word.end] for word in found.words] == words

    def log_odds(logits: list[float]) -> float:
        return logits[place] - logits[1 - place]

    for word in found.words:
        without = expected_logits(text[: word.start] + text[word.end :])
        assert word.confidence_without == pytest.approx(softmax(np.array(without))[place], abs=1e-6)
        assert word.contribution == pytest.approx(log_odds(expected_logits(text)) - log_odds(without), abs=1e-5)


@async_test
async def test_explain_says_nothing_of_a_word_without_which_no_text_is_left(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await post(client, "explain", input="好看")
    assert reply["words"] == [{"word": "好看", "start": 0, "end": 2, "confidence_without": None, "contribution": None}]


@async_test
async def test_explain_leaves_out_only_what_the_model_reads(tmp_path: Path) -> None:
    text = "好差很太不看" * 3
    async with serving(tmp_path) as (client, _):
        cut = await post(client, "explain", input=text)
        whole = await post(client, "explain", input=text, on_long="window")
    assert cut["truncated"] is True
    assert "".join(word["word"] for word in cut["words"]) == text[:4] + text[-4:]
    assert "".join(word["word"] for word in whole["words"]) == text


@async_test
async def test_explain_fails_as_a_whole_when_the_model_does(tmp_path: Path) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    async with serving(tmp_path, engine) as (client, _):
        reply = await client.post("/v1/explain", json={"input": f"好{STRANGE}"})
    check_error(reply, 500, "engine_failed")


@async_test
async def test_explain_is_one_text_with_fewer_words_than_a_request_may_have_texts(tmp_path: Path) -> None:
    async with serving(tmp_path, max_texts=3) as (client, _):
        fits = await client.post("/v1/explain", json={"input": "好差"})
        many = await client.post("/v1/explain", json={"input": "好差很"})
        batch = await client.post("/v1/explain", json={"input": ["好", "差"]})
    assert fits.status_code == 200
    assert check_error(many, 413, "too_many_texts")["limit"] == 2
    assert check_error(batch, 422, "invalid_request")["param"] == "input"


def test_tokens_of_one_character_are_one_word() -> None:
    spans = [(0, 0), (0, 1), (1, 2), (1, 2), (2, 4), (3, 5), (9, 9)]
    assert joined_spans(enumerate(spans)) == [(0, 1), (1, 2), (2, 5)]
