"""Bodies bent in many ways, at every route but `/v1/classify`, which test_bad_requests.py does: no 5xx, no echo."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import async_test, serving
from test_bad_requests import CANARY, JSON_TYPE

TEXTS = ["好", "", " ", "电影很好看" * 9, "\ud83d", "\x00", "😭", "a\nb", CANARY]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/tokenize": {"input": ["好", "差"], "on_long": "window", "partial": True},
    "/v1/explain": {"input": "电影很好看", "on_long": "truncate"},
    "/predict": {"inputs": [["好"], ["差"]], "raw_scores": True, "truncate": True, "truncation_direction": "Left"},
    "/v2/models/tiny/infer": {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["好", "差"], "parameters": {}}],
        "outputs": [{"name": "label", "parameters": {"binary_data": True}}],
        "parameters": {"on_long": "error", "binary_data_output": False},
        "id": "1",
    },
    "/v1/classify/stream": {"input": "好"},
}


def bent(node: Any, chance: random.Random) -> Any:
    """A copy of `node` in which a few things are something else."""
    odd = [None, 0, -1, 1.5, True, {}, [], [[]], "x", 10**30, {CANARY: [1]}, [CANARY] * 3, *TEXTS]
    if chance.random() < 0.12:
        return chance.choice(odd)
    if isinstance(node, dict):
        more = {chance.choice(["extra", CANARY, "\ud83d"]): 1} if chance.random() < 0.1 else {}
        return {name: bent(inner, chance) for name, inner in node.items() if chance.random() > 0.05} | more
    return [bent(inner, chance) for inner in node] if isinstance(node, list) else node


@pytest.mark.parametrize("path", GOOD)
def test_odd_bodies_are_answered_or_refused(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        chance = random.Random(path)
        headers = {"Content-Type": "application/x-ndjson"} if path.endswith("stream") else JSON_TYPE
        statuses = set()
        async with serving(tmp_path) as (client, _):
            for _ in range(400):
                body = json.dumps(bent(GOOD[path], chance)).encode()
                if chance.random() < 0.1:
                    body = body[: chance.randrange(len(body))]
                reply = await client.post(path, content=body, headers=headers)
                assert reply.status_code < 500, body
                if reply.is_error:
                    assert CANARY not in reply.text, body
                    assert len(reply.content) < 2048
                statuses.add(reply.status_code)
        assert statuses >= ({200} if path.endswith("stream") else {200, 400, 422})

    run()
