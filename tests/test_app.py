"""The service over HTTP, in memory: what it answers."""

import asyncio
from pathlib import Path

import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, expected_logits, serving, value
from tiny_bundle import LABELS, MAX_TOKENS, PIECES

from lengnuan.model.probabilities import softmax
from lengnuan.service.schemas import ClassifyReply, ModelList

URL = "/v1/classify"
LONG = "很好看不" * 10


@async_test
async def test_one_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": "电影很好看"})
    assert reply.status_code == 200
    [item] = reply.json()["data"]
    probs = softmax(expected_logits("电影很好看")).tolist()
    assert item["probs"] == pytest.approx(probs, abs=1e-6)
    assert item["label"] == LABELS[probs.index(max(probs))]
    assert item["confidence"] == pytest.approx(max(probs), abs=1e-6)
    assert (item["index"], item["num_classes"], item["truncated"], item["abstained"]) == (0, 2, False, False)


@async_test
async def test_reply_is_what_the_schema_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好", ""], "partial": True})
    ClassifyReply.model_validate(reply.json())
    assert reply.json()["object"] == "list"
    assert reply.json()["model"] == "tiny"
    assert reply.json()["usage"] == {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}


@async_test
async def test_reply_is_written_as_the_schema_would_write_it(tmp_path: Path) -> None:
    extras = {"return_logits": True, "top_k": 2, "on_long": "window", "partial": True}
    async with serving(tmp_path) as (client, _):
        for body in ({"input": "好"}, {"input": ["好", "", LONG], **extras}):
            reply = await client.post(URL, json=body)
            assert ClassifyReply.model_validate_json(reply.content).model_dump_json(exclude_unset=True) == reply.text


@async_test
async def test_a_list_of_two_is_two_texts_not_a_pair(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好", "差"]})
    assert [item["index"] for item in reply.json()["data"]] == [0, 1]


@async_test
async def test_many_texts_come_back_in_order_each_with_its_own_score(tmp_path: Path) -> None:
    texts = [piece * (n % 4 + 1) for n in range(12) for piece in PIECES if piece != "😭"]
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": texts, "return_logits": True})
    assert [item["index"] for item in reply.json()["data"]] == list(range(len(texts)))
    found = [item["logits"] for item in reply.json()["data"]]
    assert found == [pytest.approx(expected_logits(text), abs=1e-5) for text in texts]


@async_test
async def test_concurrent_requests_get_their_own_scores(tmp_path: Path) -> None:
    texts = [f"{'ab' if n % 2 else 'ba'}{'不' * (n % 3)}{'好差很太'[n % 4]}" for n in range(300)]
    async with serving(tmp_path) as (client, _):
        replies = await asyncio.gather(
            *(client.post(URL, json={"input": text, "return_logits": True}) for text in texts)
        )
    found = [reply.json()["data"][0]["logits"] for reply in replies]
    assert found == [pytest.approx(expected_logits(text), abs=1e-5) for text in texts]


@async_test
async def test_no_executed_batch_passes_a_limit(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, max_batch_rows=8, max_batch_tokens=24) as (client, _):
        await client.post(URL, json={"input": ["好" * (n % 9 + 1) for n in range(129)]})
    assert all(rows <= 8 and rows * tokens <= 24 for rows, tokens in engine.shapes)


@async_test
async def test_much_text_gives_the_same_as_little(tmp_path: Path) -> None:
    text = "很好看a不" * 700  # above what is tokenised on the event loop
    async with serving(tmp_path) as (client, _):
        many = await client.post(URL, json={"input": ["好", text, "差"], "return_logits": True})
        one = await client.post(URL, json={"input": "差", "return_logits": True})
    assert many.json()["data"][2]["logits"] == one.json()["data"][0]["logits"]
    assert many.json()["data"][1]["truncated"] is True


@async_test
async def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        [item] = (await client.post(URL, json={"input": LONG})).json()["data"]
    assert (item["truncated"], item["tokens_used"]) == (True, MAX_TOKENS)
    assert item["tokens"] > MAX_TOKENS
    assert engine.shapes == [(1, MAX_TOKENS)]


@async_test
async def test_a_long_text_among_others_harms_none_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好"] * 4 + ["差好" * 5000] + ["好"] * 3})
    assert [item["truncated"] for item in reply.json()["data"]] == [False] * 4 + [True] + [False] * 3


@async_test
async def test_on_long_error_names_limit_actual_and_the_option(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好", LONG], "on_long": "error"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["index"]) == (422, "text_too_long", 1)
    assert (error["limit"], error["actual"] > MAX_TOKENS) == (MAX_TOKENS, True)
    assert "on_long" in error["message"]


@async_test
async def test_top_k_adds_the_most_probable_and_keeps_probs(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        plain = (await client.post(URL, json={"input": "好看"})).json()["data"][0]
        top = (await client.post(URL, json={"input": "好看", "top_k": 1})).json()["data"][0]
    assert top.pop("top") == [{"label": plain["label"], "probability": plain["confidence"]}]
    assert top == plain
    assert "logits" not in plain


@async_test
async def test_partial_puts_errors_in_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post(URL, json={"input": ["好", "\u200b", "差"], "partial": True})
    good, bad, after = reply.json()["data"]
    assert reply.status_code == 200
    assert (bad["index"], bad["error"]["code"]) == (1, "empty_text")
    assert (good["index"], after["index"]) == (0, 2)


@async_test
async def test_without_partial_the_first_bad_text_refuses_all_and_none_is_run(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        reply = await client.post(URL, json={"input": ["好", " ", ""]})
    assert (reply.status_code, reply.json()["error"]["index"]) == (422, 1)
    assert engine.shapes == []


@async_test
async def test_a_text_on_which_the_model_fails(tmp_path: Path) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    async with serving(tmp_path, engine) as (client, app):
        whole = await client.post(URL, json={"input": ["好", STRANGE]})
        partial = await client.post(URL, json={"input": ["好", STRANGE], "partial": True})
        failed = value(app.state.metrics.registry, "items_total", outcome="failed")
    assert (whole.status_code, whole.json()["error"]["code"], whole.json()["error"]["index"]) == (
        500,
        "engine_failed",
        1,
    )
    assert [item.get("label") is not None for item in partial.json()["data"]] == [True, False]
    assert failed == 2


@async_test
async def test_models_tells_labels_and_limits_that_hold(tmp_path: Path) -> None:
    async with serving(tmp_path, max_texts=3) as (client, _):
        reply = await client.get("/v1/models")
        refused = await client.post(URL, json={"input": ["好"] * 4})
    [card] = ModelList.model_validate(reply.json()).data
    assert card.labels == list(LABELS)
    assert card.display_names["positive"] == "正面"
    assert (card.runtime, card.provider) == ("fake", "cpu")
    assert card.precision.model_dump() == {
        **{"weights": "float32", "compute": "float32", "tolerance": 1e-4, "reduced": {}},
    }
    assert refused.json()["error"]["limit"] == card.limits.max_texts == 3


@async_test
async def test_a_request_may_name_the_served_model_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        right = await client.post(URL, json={"input": "好", "model": "tiny"})
        wrong = await client.post(URL, json={"input": "好", "model": "another"})
    assert right.status_code == 200
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "unknown_model")


@pytest.mark.parametrize(("sent", "kept"), [("abc-1.2_3", "abc-1.2_3"), ("a b<c>", "abc"), ("x" * 500, "x" * 64)])
def test_request_id_is_kept_but_cleaned(tmp_path: Path, sent: str, kept: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            good = await client.post(URL, json={"input": "好"}, headers={"X-Request-Id": sent})
            bad = await client.post(URL, json={"input": ""}, headers={"X-Request-Id": sent})
        assert good.headers["X-Request-Id"] == good.json()["id"] == kept
        assert bad.headers["X-Request-Id"] == bad.json()["error"]["request_id"] == kept

    run()


@async_test
async def test_a_request_without_an_id_gets_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        replies = [await client.get("/nowhere") for _ in range(2)]
    first, second = (reply.json()["error"]["request_id"] for reply in replies)
    assert first != second
    assert replies[0].headers["X-Request-Id"] == first


@async_test
async def test_a_mistake_in_the_service_is_500_in_the_same_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "秘" + "密"  # in two parts, since a traceback shows this line

    def broken(*_: object) -> None:
        raise ValueError(secret)

    async with serving(tmp_path) as (client, _):
        monkeypatch.setattr("lengnuan.service.routes.classify_reply", broken)
        reply = await client.post(URL, json={"input": "好"}, headers={"X-Request-Id": "q1"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.json()["error"]["request_id"] == "q1"
    assert secret not in caplog.text + repr([record.__dict__ for record in caplog.records])


@async_test
async def test_a_text_that_comes_again_is_answered_alike_without_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, cache_size=10) as (client, app):
        once, again = [(await client.post(URL, json={"input": text})).json() for text in ("好看", " 好看 ")]
        assert again["data"] == once["data"]
        assert (once["timings"]["infer"] > 0, again["timings"]["infer"]) == (True, 0)
        assert len(engine.rows) == 1
        assert value(app.state.metrics.registry, "cache_items") == 1


@async_test
async def test_equal_texts_that_fail_are_each_named(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeEngine(nan=STRANGE_ID)) as (client, _):
        reply = await client.post(URL, json={"input": [STRANGE, "好", STRANGE], "partial": True})
    found = [item.get("error", {}).get("index") for item in reply.json()["data"]]
    assert found == [0, None, 2]
