"""A good body for every route that reads one, and ways to bend it."""

import random
from typing import Any

CANARY = "秘密暗号"
TEXTS = ["好", "", " ", "电影很好看" * 9, "\ud83d", "\x00", "😭", "a\nb", CANARY]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/classify": {"input": ["好", "差"], "top_k": 1, "on_long": "window", "partial": True, "timeout_ms": 9000},
    "/v1/classify/stream": {"input": "好"},
    "/v1/tokenize": {"input": ["好", "差"], "on_long": "window", "partial": True},
    "/v1/explain": {"input": "电影很好看", "on_long": "truncate"},
    "/predict": {"inputs": [["好"], ["差"]], "raw_scores": True, "truncate": True, "truncation_direction": "Left"},
    "/v2/models/tiny/infer": {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["好", "差"], "parameters": {}}],
        "outputs": [{"name": "label", "parameters": {"binary_data": True}}],
        "parameters": {"on_long": "error", "binary_data_output": False},
        "id": "1",
    },
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
