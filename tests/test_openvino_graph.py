"""Graphs of ours run on the real tokens alone, with the answers of ONNX Runtime; others are left as they are."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lengnuan.model.bundle import DEFAULT_BUNDLE, ComputeType
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_engine import OpenVinoEngine
from lengnuan.model.openvino_graph import PACK_STEP, packing
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.training.export import check_parity, export_onnx

installed = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="no openvino on this platform")
SHAPE = EncoderConfig(vocab_size=300, max_tokens=24, width=16, layers=2, heads=2, feed_forward_width=32)


@installed
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, norm="post", activation="relu"),
        replace(SHAPE, positions="none", layers=1),
        replace(SHAPE, positions="sinusoidal", heads=1),
        replace(SHAPE, residual=False),
    ],
)
def test_every_encoder_is_packed_and_answers_as_in_torch(tmp_path: Path, shape: EncoderConfig) -> None:
    torch.manual_seed(0)
    model = Classifier(shape, 3).eval()
    export_onnx(model, tmp_path / "model.onnx", "float32", {})
    engine = OpenVinoEngine(tmp_path / "model.onnx", threads=1)
    assert engine.packs
    assert check_parity(model, engine)["max_difference"] <= 1e-5


@installed
@pytest.mark.parametrize("name", ["default", "tiny"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_text_among_any_others_gets_the_answer_it_gets_alone(name: str, precision: ComputeType) -> None:
    file = DEFAULT_BUNDLE.parent / name / "model.onnx"
    try:
        engine = OpenVinoEngine(file, precision, threads=1, max_tokens=256)
    except EngineUnavailable as missing:
        pytest.skip(str(missing))
    assert engine.packs
    random = np.random.default_rng(7)
    rows = [random.integers(300, 7000, length).tolist() for length in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 60, 100)]
    alone = np.concatenate([engine.run(*pad([row], PAD_ID)) for row in rows])
    together = engine.run(*pad(rows, PAD_ID))
    assert together == pytest.approx(alone, abs=1e-5)
    if precision == "float32":
        assert together == pytest.approx(OnnxEngine(file, "cpu", 1).run(*pad(rows, PAD_ID)), abs=1e-4)


@installed
def test_a_graph_without_attention_is_left_as_it_is(tiny_bundle: Path) -> None:
    assert not OpenVinoEngine(tiny_bundle / "model.onnx", threads=1).packs


def test_packing_tells_where_the_real_tokens_are_and_where_each_place_finds_one() -> None:
    found = packing(np.array([[True, True, False], [True, False, False]]))
    assert found["kept"].tolist() == [0, 1, 3, *[0] * (PACK_STEP - 3)]
    assert found["place"].tolist() == [0, 1, 1, 2, 2, 2]
    assert {value.dtype for value in found.values()} == {np.dtype(np.int32)}


def test_packing_keeps_one_place_where_no_token_is_real() -> None:
    found = packing(np.zeros((2, 2), dtype=np.bool_))
    assert {name: value.tolist() for name, value in found.items()} == {"kept": [0] * PACK_STEP, "place": [0] * 4}


@pytest.mark.parametrize(("tokens", "kept"), [(1, 16), (16, 16), (17, 32), (33, 48)])
def test_packing_comes_in_steps(tokens: int, kept: int) -> None:
    assert len(packing(np.ones((1, tokens), dtype=np.bool_))["kept"]) == kept
