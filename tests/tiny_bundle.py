"""A whole bundle in a few kilobytes, made by hand: 好 is positive, 差 is negative, every other token a little of both.

The graph is a real one (embedding -> masked mean -> linear) with the inputs and outputs of every bundle.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lengnuan.model.bundle import GOLDEN, MODEL, TOKENIZER, Bundle, Manifest, Precision, Tensor
from lengnuan.model.engine import OnnxEngine, score
from lengnuan.model.tokenizer import FIRST_PIECE_ID, PAD_ID, Tokenizer

LABELS = ("negative", "positive")
MAX_TOKENS = 8
WIDTH = 4
PIECES = {
    **{"好": -3.0, "差": -3.0, "很": -3.0, "太": -3.5, "不": -3.0, "看": -4.0, "电": -4.0, "影": -4.5},
    **{"电影": -5.0, "好看": -5.5, "!": -3.0, "a": -4.0, "b": -4.0, "😭": -6.0},
}
GOLDEN_TEXTS = ("好", "差", "电影很好看!", "悲😭", "不好不好不好不好不好不好")


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(list(PIECES), list(PIECES.values()))


def write_tiny_bundle(path: Path, abstain_threshold: float = 0.0) -> Path:
    """Write and seal a bundle in `path`, made if need be; returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.to_file(path / TOKENIZER)
    onnx.save(tiny_graph(tokenizer), path / MODEL)
    ids = [tokenizer.encode(text) for text in GOLDEN_TEXTS]
    logits = score(OnnxEngine(path / MODEL, "cpu", threads=1), ids, MAX_TOKENS).tolist()
    golden = [{"text": t, "ids": i, "logits": x} for t, i, x in zip(GOLDEN_TEXTS, ids, logits, strict=True)]
    (path / GOLDEN).write_text(json.dumps(golden, ensure_ascii=False), encoding="utf-8")
    Bundle.write(path, tiny_manifest(tokenizer, abstain_threshold))
    return path


def tiny_manifest(tokenizer: Tokenizer, abstain_threshold: float = 0.0) -> Manifest:
    return Manifest(
        name="tiny",
        created="2026-01-01T00:00:00Z",
        task="sentiment",
        labels=LABELS,
        display_names={"negative": "负面", "positive": "正面"},
        max_tokens=MAX_TOKENS,
        fingerprint=tokenizer.fingerprint(),
        inputs=(
            Tensor(name="token_ids", type="int64", shape=("batch", "sequence")),
            Tensor(name="mask", type="bool", shape=("batch", "sequence")),
        ),
        outputs=(Tensor(name="logits", type="float32", shape=("batch", len(LABELS))),),
        abstain_threshold=abstain_threshold,
        precision=Precision(weights="float32"),
        encoder={},
        code_version="0",
    )


def tiny_graph(tokenizer: Tokenizer) -> onnx.ModelProto:
    """token_ids int64 [B, T], mask bool [B, T] -> logits float32 [B, 2]."""
    table = np.random.default_rng(0).normal(0.0, 0.3, (tokenizer.size, WIDTH)).astype(np.float32)
    table[PAD_ID] = 1000.0  # padding that leaked into the mean would be seen at once
    for piece, value in (("好", 3.0), ("好看", 3.0), ("差", -3.0)):
        table[FIRST_PIECE_ID + tokenizer.pieces.index(piece), 0] = value
    head = np.array([[-1.0, 1.0], [0.1, 0.0], [0.0, 0.1], [0.1, 0.1]], dtype=np.float32)
    constants = {
        **{"table": table, "head": head, "bias": np.array([0.05, -0.05], np.float32)},
        **{"last": np.array([2]), "tokens": np.array([1]), "one": np.array(1.0, np.float32)},
    }
    nodes = [
        helper.make_node("Gather", ["table", "token_ids"], ["vectors"]),  # [B, T, C]
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["weight"]),  # [B, T, 1]
        helper.make_node("Mul", ["vectors", "weight"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "tokens"], ["sum"], keepdims=0),  # [B, C]
        helper.make_node("ReduceSum", ["weight", "tokens"], ["count"], keepdims=0),  # [B, 1]
        helper.make_node("Max", ["count", "one"], ["divisor"]),
        helper.make_node("Div", ["sum", "divisor"], ["mean"]),
        helper.make_node("Gemm", ["mean", "head", "bias"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "sequence"]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
