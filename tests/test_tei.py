"""text-embeddings-inference's classifier protocol, as a client of it sees us."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, eventually, expected_logits, serving, value
from test_bad_requests import CANARY, JSON_TYPE
from tiny_bundle import LABELS, MAX_TOKENS, tiny_tokenizer

from lengnuan.model.probabilities import softmax
from lengnuan.service.compat.tei import PREDICT_ERRORS, Info

LONG = "好差很太不看" * 3


def expected(text: str, raw: bool = False) -> list[dict[str, Any]]:
    logits = expected_logits(text)
    values = logits if raw else softmax(logits).tolist()
    pairs = sorted(zip(values, LABELS, strict=True), reverse=True)
    return [{"score": pytest.approx(score, abs=1e-5), "label": label} for score, label in pairs]


def check_error(reply: httpx.Response, status: int, kind: str) -> str:
    content = reply.json()
    assert (reply.status_code, content["error_type"]) == (status, kind)
    assert content.keys() == {"error", "error_type"}
    assert CANARY not in reply.text
    assert len(reply.content) < 2048
    return str(content["error"])


@async_test
async def test_one_text_gets_its_labels_the_best_first(tmp_path: Path) -> None:
    texts = [piece * n for piece in ("好", "差", "a") for n in range(1, 6)]
    async with serving(tmp_path) as (client, _):
        replies = [await client.post("/predict", json={"inputs": text}) for text in texts]
    assert [reply.json() for reply in replies] == [expected(text) for text in texts]
    assert {reply.json()[0]["label"] for reply in replies} == set(LABELS)  # so the order was not that of the labels


@async_test
async def test_a_batch_gets_one_list_a_text_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        many = await client.post("/predict", json={"inputs": [["好"], ["差"], ["好看"]]})
        one = await client.post("/predict", json={"inputs": [["好"]]})
    assert many.json() == [expected(text) for text in ("好", "差", "好看")]
    assert one.json() == [expected("好")]


@async_test
async def test_raw_scores_are_logits(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post("/predict", json={"inputs": "好看", "raw_scores": True})
    assert reply.json() == expected("好看", raw=True)


@async_test
async def test_headers_tell_times_and_sizes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        reply = await client.post("/predict", json={"inputs": [["好看"], ["a好"]]}, headers={"X-Request-Id": "q1"})
    times = ["compute-time", "total-time", "tokenization-time", "queue-time", "inference-time"]
    assert all(reply.headers[f"x-{name}"].isdecimal() for name in times)
    assert (reply.headers["x-compute-characters"], reply.headers["x-compute-tokens"]) == ("4", "3")
    assert (reply.headers["x-compute-type"], reply.headers["x-truncated"]) == ("cpu+fake", "0")
    assert reply.headers["X-Request-Id"] == "q1"


@pytest.mark.parametrize("inputs", [["好", "坏"], ["好"], ["好", "坏", "差"], [["好"], "坏"]])
def test_a_flat_list_is_refused_with_a_hint(tmp_path: Path, inputs: list[Any]) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post("/predict", json={"inputs": inputs})
        message = check_error(reply, 422, "Validation")
        assert '[["text"], ["text"]]' in message
        assert "--predict-flat-list" in message

    run()


@async_test
async def test_a_flat_list_is_a_batch_where_that_is_set(tmp_path: Path) -> None:
    async with serving(tmp_path, predict_flat_list=True) as (client, _):
        flat = await client.post("/predict", json={"inputs": ["好", "差"]})
        pair = await client.post("/predict", json={"inputs": [["好", "差"]]})
    assert flat.json() == [expected("好"), expected("差")]
    assert "pair" in check_error(pair, 422, "Validation")


@async_test
async def test_a_long_text_is_refused_unless_truncate(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        for options in ({}, {"truncate": None}, {"truncate": False}, {"truncation_direction": "Left"}):
            check_error(await client.post("/predict", json={"inputs": LONG, **options}), 413, "Validation")


@pytest.mark.parametrize(("direction", "kept"), [("Right", slice(MAX_TOKENS)), ("left", slice(-MAX_TOKENS, None))])
def test_the_side_to_cut_off_may_be_chosen(tmp_path: Path, direction: str, kept: slice) -> None:
    @async_test
    async def run() -> None:
        engine = FakeEngine()
        async with serving(tmp_path, engine) as (client, _):
            body = {"inputs": LONG, "truncate": True, "truncation_direction": direction}
            assert (await client.post("/predict", json=body)).headers["x-truncated"] == "1"
        assert engine.rows == [tiny_tokenizer().encode(LONG)[kept]]

    run()


@async_test
async def test_info_tells_labels_and_limits(tmp_path: Path) -> None:
    async with serving(tmp_path, max_texts=3) as (client, _):
        info = Info.model_validate((await client.get("/info")).json())
        refused = await client.post("/predict", json={"inputs": [["好"]] * 4})
    assert info.model_type.classifier.id2label == {"0": LABELS[0], "1": LABELS[1]}
    assert info.model_type.classifier.label2id == {LABELS[0]: 0, LABELS[1]: 1}
    assert (info.model_id, info.max_input_length, info.max_client_batch_size) == ("tiny", MAX_TOKENS, 3)
    assert "4, at most 3" in check_error(refused, 413, "Validation")


@async_test
async def test_health_is_readiness(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        documented = (await client.get("/openapi.json")).json()["paths"]["/health"]["get"]["responses"]["200"]
        ready = await client.get("/health")
        app.state.lifecycle.drain()
        draining = await client.get("/health")
    assert (ready.status_code, ready.content) == (200, b"")
    assert "content" not in documented
    check_error(draining, 503, "Unhealthy")


BAD: list[tuple[Any, int, str]] = [
    ({"inputs": ""}, 400, "Empty"),
    ({"inputs": [["好"], ["\u3000"]]}, 400, "Empty"),
    ({"inputs": []}, 422, "Validation"),
    ({"inputs": [[]]}, 422, "Validation"),
    ({"inputs": 1}, 422, "Validation"),
    ({"inputs": {CANARY: 1}}, 422, "Validation"),
    ({"inputs": [[1]]}, 422, "Validation"),
    ({"inputs": CANARY, "raw_score": True}, 422, "Validation"),
    ({"inputs": CANARY, "raw_scores": CANARY}, 422, "Validation"),
    ({"inputs": CANARY, "truncation_direction": CANARY}, 422, "Validation"),
    ({"inputs": "a" * 51}, 413, "Validation"),
    ({"inputs": "a" * 3000}, 413, "Validation"),
    ({"inputs": [["a"]] * 4}, 413, "Validation"),
    ({}, 422, "Validation"),
    ([], 422, "Validation"),
]


@async_test
async def test_every_documented_status_is_met_in_the_protocols_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    limits = {"max_texts": 3, "queue_items": 3, "max_chars": 50, "max_body_bytes": 2000, "request_timeout_s": 20}
    async with serving(tmp_path, engine, **limits) as (client, app):
        documented = (await client.get("/openapi.json")).json()["paths"]["/predict"]["post"]["responses"]
        met = {status for _, status, _ in BAD}
        for body, status, kind in BAD:
            check_error(await client.post("/predict", json=body), status, kind)
        surrogate = await client.post("/predict", content=b'{"inputs": "\\ud83d"}', headers=JSON_TYPE)
        check_error(surrogate, 422, "Tokenizer")
        check_error(await client.post("/predict", content=b"{}"), 415, "Validation")
        for content in (b"", b"\xff", b"{"):
            check_error(await client.post("/predict", content=content, headers=JSON_TYPE), 400, "Validation")
        check_error(await client.post("/predict", json={"inputs": STRANGE}), 424, "Backend")
        engine.entered.clear()
        engine.gate.clear()
        tasks = [asyncio.create_task(client.post("/predict", json={"inputs": "好"}))]
        await engine.wait_entered()
        tasks.append(asyncio.create_task(client.post("/predict", json={"inputs": [["好"]] * 3})))
        await eventually(lambda: value(app.state.metrics.registry, "queue_items") == 3)
        full = await client.post("/predict", json={"inputs": "好"})
        check_error(full, 429, "Overloaded")
        assert full.headers["Retry-After"].isdecimal()
        engine.gate.set()
        await asyncio.gather(*tasks)
        with monkeypatch.context() as patch:
            patch.setattr("lengnuan.service.compat.tei._scores", None)
            check_error(await client.post("/predict", json={"inputs": "好"}), 500, "Backend")
        await app.state.lifecycle.stop()
        check_error(await client.post("/predict", json={"inputs": "好"}), 503, "Unhealthy")
    assert {str(status) for status in met | {415, 424, 429, 500, 503, 504}} == documented.keys() - {"200"}
    text = "".join(entry["description"] for entry in documented.values())
    assert all(f"`{error.code}`" in text for error in PREDICT_ERRORS)


@async_test
async def test_a_deadline_that_passes_is_504(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, request_timeout_s=0.05) as (client, _):
        engine.gate.clear()
        reply = await client.post("/predict", json={"inputs": "好"})
        engine.gate.set()
    check_error(reply, 504, "Overloaded")
