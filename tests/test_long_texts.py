"""A text that is too long: the same on every endpoint (rows C1 to C4)."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from service_fixtures import FakeEngine, async_test, logits_of, serving, value
from tiny_bundle import MAX_TOKENS, tiny_tokenizer

from lengnuan.model.cutting import parts

LONG = "好差很太不看" * 3
IDS = tiny_tokenizer().encode(LONG)
WINDOWS = parts(IDS, MAX_TOKENS, "window", enclosed=False)
RULES = ("truncate", "window")


async def classify(client: httpx.AsyncClient, text: str, **options: Any) -> dict[str, Any]:
    body = {"input": ["好", text], "return_logits": True, **options}
    reply = await client.post("/v1/classify", json=body)
    item: dict[str, Any] = reply.json()["data"][1]
    return item


def tensor(*texts: str) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}


@async_test
async def test_windows_are_run_each_and_their_logits_averaged(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        item = await classify(client, LONG, on_long="window")
    assert len(WINDOWS) > 1
    assert sorted(engine.rows) == sorted([tiny_tokenizer().encode("好"), *WINDOWS])
    assert item["logits"] == pytest.approx(np.mean([logits_of(ids) for ids in WINDOWS], axis=0), abs=1e-5)
    assert (item["windows"], item["truncated"]) == (len(WINDOWS), False)
    assert item["tokens"] == item["tokens_used"] == len(IDS)


@async_test
async def test_the_number_of_windows_is_told_only_where_it_was_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        short = await classify(client, "好看", on_long="window")
        cut = await classify(client, LONG)
    assert short["windows"] == 1
    assert "windows" not in cut


@async_test
async def test_a_text_that_fits_gets_the_same_answer_with_windows(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        plain, windowed = [await classify(client, "好看", on_long=rule) for rule in RULES]
    assert windowed.pop("windows") == 1
    assert windowed == plain


@async_test
async def test_a_bad_window_is_the_error_of_its_text_alone(tmp_path: Path) -> None:
    engine = FakeEngine(poison=IDS[-1])
    async with serving(tmp_path, engine) as (client, _):
        body = {"input": [LONG, "好"], "on_long": "window", "partial": True}
        reply = await client.post("/v1/classify", json=body)
    bad, good = reply.json()["data"]
    assert (bad["error"]["code"], bad["error"]["index"], good["index"]) == ("engine_failed", 0, 1)


@async_test
async def test_more_windows_than_a_request_may_have_texts(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine, max_texts=len(WINDOWS)) as (client, app):
        fits = await client.post("/v1/classify", json={"input": LONG, "on_long": "window"})
        engine.rows.clear()
        refused = await client.post("/v1/classify", json={"input": [LONG, "好"], "on_long": "window"})
        invalid = value(app.state.metrics.registry, "items_total", outcome="invalid")
    error = refused.json()["error"]
    assert (fits.status_code, refused.status_code, error["code"]) == (200, 413, "too_many_texts")
    assert (error["limit"], error["actual"]) == (len(WINDOWS), len(WINDOWS) + 1)
    assert (engine.rows, invalid) == ([], 2)


@pytest.mark.parametrize("rule", RULES)
def test_every_endpoint_reads_the_same_tokens_and_gives_the_same_scores(tmp_path: Path, rule: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            expected = await classify(client, LONG, on_long=rule)
            body = {"inputs": [tensor("好", LONG)], "parameters": {"on_long": rule}}
            body["outputs"] = [{"name": name} for name in ("logits", "truncated", "tokens", "probabilities")]
            oip = (await client.post("/v2/models/tiny/infer", json=body)).json()["outputs"]
            seen = (await client.post("/v1/tokenize", json={"input": ["好", LONG], "on_long": rule})).json()["data"][1]
            explained = (await client.post("/v1/explain", json={"input": LONG, "on_long": rule})).json()
            line = (
                await client.post(
                    f"/v1/classify/stream?return_logits=true&on_long={rule}",
                    content=b'{"input": "a"}\n{"input": "%s"}' % LONG.encode(),
                    headers={"Content-Type": "application/x-ndjson"},
                )
            ).text.splitlines()[1]
        counts = [expected[name] for name in ("tokens", "tokens_used", "truncated")]
        logits, truncated, tokens, probabilities = [output["data"] for output in oip]
        assert logits[2:] == pytest.approx(expected["logits"], abs=1e-6)
        assert probabilities[2:] == pytest.approx(expected["probs"], abs=1e-6)
        assert (tokens[1], truncated[1]) == (expected["tokens"], expected["truncated"])
        assert [seen[name] for name in ("tokens", "tokens_used", "truncated")] == counts
        assert (explained["label"], explained["truncated"]) == (expected["label"], expected["truncated"])
        assert explained["confidence"] == pytest.approx(expected["confidence"])
        assert httpx.Response(200, text=line).json() == expected

    run()


@async_test
async def test_predict_reads_the_same_tokens_and_gives_the_same_scores(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        expected = await classify(client, LONG)
        replies = [
            await client.post("/predict", json={"inputs": inputs, "truncate": True}) for inputs in (LONG, [[LONG]])
        ]
    for reply, scores in zip(replies, (replies[0].json(), replies[1].json()[0]), strict=True):
        assert [entry["score"] for entry in scores] == pytest.approx(sorted(expected["probs"], reverse=True))
        assert reply.headers["x-compute-tokens"] == str(expected["tokens_used"])
        assert reply.headers["x-truncated"] == "1"


@async_test
async def test_every_endpoint_refuses_a_long_text_when_told_to(tmp_path: Path) -> None:
    error = {"on_long": "error"}
    async with serving(tmp_path) as (client, _):
        native = [
            await client.post(f"/v1/{name}", json={"input": LONG, **error})
            for name in ("classify", "tokenize", "explain")
        ]
        oip = await client.post("/v2/models/tiny/infer", json={"inputs": [tensor(LONG)], "parameters": error})
        predict = await client.post("/predict", json={"inputs": LONG})
    for reply in native:
        found = reply.json()["error"]
        assert (reply.status_code, found["code"]) == (422, "text_too_long")
        assert (found["index"], found["limit"], found["actual"]) == (0, MAX_TOKENS, len(IDS))
    assert (oip.status_code, predict.status_code) == (422, 413)
    for told in (oip.json()["error"], predict.json()["error"]):
        assert f"text 0: {len(IDS)}, at most {MAX_TOKENS}" in told
    assert "on_long" in oip.json()["error"]
    assert "truncate" in predict.json()["error"]
