"""Bundles that answer differently, made by hand, and rows on which they do."""

import json
from itertools import product
from pathlib import Path

import onnx
from onnx import numpy_helper
from tiny_bundle import GOLDEN_TEXTS, MAX_TOKENS, tiny_manifest, tiny_tokenizer, write_tiny_bundle

from lengnuan.model.bundle import GOLDEN, MODEL, Bundle
from lengnuan.model.engine import OnnxEngine, score
from lengnuan.model.tokenizer import FIRST_PIECE_ID

# What no test here is about: a handful of rows says nothing of calibration, and a busy machine nothing of speed.
LENIENT = ("max_ece=1", "max_ece_increase=1", "max_time_ratio=1000", "timing_rounds=1")


def write_variant(path: Path, **values: float) -> Path:
    """The tiny bundle with other opinions of some pieces: above 0 is positive."""
    write_tiny_bundle(path)
    tokenizer = tiny_tokenizer()
    graph = onnx.load(path / MODEL)
    (table,) = [part for part in graph.graph.initializer if part.name == "table"]
    vectors = numpy_helper.to_array(table).copy()
    for piece, value in values.items():
        vectors[FIRST_PIECE_ID + tokenizer.pieces.index(piece), 0] = value
    table.CopyFrom(numpy_helper.from_array(vectors, "table"))
    onnx.save(graph, path / MODEL)
    ids = [tokenizer.encode(text) for text in GOLDEN_TEXTS]
    logits = score(OnnxEngine(path / MODEL, "cpu", threads=1), ids, MAX_TOKENS).tolist()
    golden = [{"text": t, "ids": i, "logits": x} for t, i, x in zip(GOLDEN_TEXTS, ids, logits, strict=True)]
    (path / GOLDEN).write_text(json.dumps(golden, ensure_ascii=False), encoding="utf-8")
    (path / "manifest.json").unlink()
    Bundle.write(path, tiny_manifest(tokenizer))
    return path


def write_rows(path: Path) -> Path:
    """90 rows in two domains: 好, 影 and 好看 are positive, 差 is negative; what follows means little."""
    endings = ["".join(part) for part in product("ab", repeat=6)]
    kinds = (("positive", "好", "film", 20), ("negative", "差", "film", 40), ("positive", "影", "film", 10),
             ("positive", "好看", "book", 20))  # fmt: skip
    rows = [(label, piece + end, domain) for label, piece, domain, count in kinds for end in endings[:count]]
    lines = [f"{label}\t{text}\t{domain}\n" for label, text, domain in rows]
    path.write_text("label\ttext\tdomain\n" + "".join(lines), encoding="utf-8")
    return path


def write_behaviour(path: Path) -> Path:
    """Three sentences in two categories."""
    path.write_text(
        "category\tlabel\ttext\nplain\tpositive\t好\nplain\tnegative\t差\npraise\tpositive\t好看\n", "utf-8"
    )
    return path


def version(made: Path, name: str) -> str:
    """That of a bundle in the folder `made`."""
    return Bundle.load(made / name).version


def lenient() -> list[str]:
    """Options of `compare` and `promote`."""
    return [part for limit in LENIENT for part in ("--set", limit)]
