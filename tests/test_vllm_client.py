"""A client written for the classify reply of vLLM reads ours: typed, and with nothing optional that it has there."""

from pathlib import Path

import pytest
from pydantic import BaseModel
from service_fixtures import async_test, expected_logits, serving
from tiny_bundle import LABELS

from lengnuan.model.probabilities import softmax


class UsageInfo(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class ClassificationData(BaseModel):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationResponse(BaseModel):
    id: str
    object: str
    created: int
    model: str
    data: list[ClassificationData]
    usage: UsageInfo


@async_test
async def test_the_models_name_from_one_route_and_its_answers_from_the_other(tmp_path: Path) -> None:
    texts = ["好", "差", "很好看"]
    async with serving(tmp_path) as (client, _):
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        reply = await client.post("/v1/classify", json={"model": model, "input": texts})
        single = await client.post("/v1/classify", json={"model": model, "input": texts[0]})
    found = ClassificationResponse.model_validate(reply.json(), strict=True)
    assert (found.object, found.model, found.usage.completion_tokens) == ("list", "tiny", 0)
    assert found.usage.prompt_tokens == found.usage.total_tokens == 4
    for index, (item, text) in enumerate(zip(found.data, texts, strict=True)):
        probs = softmax(expected_logits(text)).tolist()
        assert (item.index, item.num_classes, item.label) == (index, 2, LABELS[probs.index(max(probs))])
        assert item.probs == pytest.approx(probs, abs=1e-6)
        assert sum(item.probs) == pytest.approx(1.0, abs=1e-5)
    assert len(ClassificationResponse.model_validate(single.json()).data) == 1
