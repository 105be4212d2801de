"""The graph in float16: the same answers but for rounding, on any bundle's graph; anything else is refused.

Here ONNX Runtime's CPU runs it, which stands in for a GPU: the rounding of single products differs there.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from lengnuan.model.bundle import DEFAULT_BUNDLE, WeightType
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.half_precision import to_half
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.training.export import export_onnx, round_weights

SHAPE = EncoderConfig(vocab_size=300, max_tokens=24, width=16, layers=2, heads=2, feed_forward_width=32)
ROWS = [[7], [8, 9, 10], [*range(20, 44)], []]


@pytest.mark.parametrize("weight_type", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, norm="post", positions="sinusoidal")])
def test_answers_are_those_of_float32_but_for_rounding(
    tmp_path: Path, shape: EncoderConfig, weight_type: WeightType
) -> None:
    torch.manual_seed(0)
    model = Classifier(shape, 3).eval()
    round_weights(model, weight_type)
    export_onnx(model, tmp_path / "model.onnx", weight_type, {})
    exact = OnnxEngine(tmp_path / "model.onnx", "cpu", 1).run(*pad(ROWS, PAD_ID))
    half = OnnxEngine(tmp_path / "model.onnx", "cpu", 1, "float16")
    found = half.run(*pad(ROWS, PAD_ID))
    assert (half.precision, found.dtype) == ("float16", np.float32)
    assert found == pytest.approx(exact, abs=5e-3)
    assert found.tolist() != exact.tolist(), "something was rounded"


def test_the_encoder_is_float16_and_the_head_is_not() -> None:
    graph = onnx.load_from_string(to_half(DEFAULT_BUNDLE / "model.onnx")).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert types["encoder.norm.weight.float16"] == TensorProto.FLOAT16
    assert types["head.bias"] == TensorProto.FLOAT
    kept = [name for name, kind in types.items() if kind == TensorProto.FLOAT]
    assert not [name for name in kept if name.startswith("encoder.")]
    casts = [node for node in graph.node if node.op_type == "Cast" and node.output[0].endswith(".float32")]
    assert len(casts) == 1


def test_a_graph_without_an_encoder_still_gets_its_pooling_in_float32(tiny_bundle: Path) -> None:
    exact = OnnxEngine(tiny_bundle / "model.onnx", "cpu", 1).run(*pad([[7, 8], [9]], PAD_ID))
    found = OnnxEngine(tiny_bundle / "model.onnx", "cpu", 1, "float16").run(*pad([[7, 8], [9]], PAD_ID))
    assert found == pytest.approx(exact, abs=5e-3)


def test_a_graph_without_pooling_is_refused(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", "sequence"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence"])]
    graph = helper.make_graph([helper.make_node("Cast", ["token_ids"], ["logits"], to=1)], "g", inputs, outputs)
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(EngineUnavailable, match="no mean pooling"):
        to_half(tmp_path / "model.onnx")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'lengnuan\[gpu\]'"):
        to_half(DEFAULT_BUNDLE / "model.onnx")
