import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from small_runs import sentences, small_config, write_tsv

from lengnuan.model.bundle import Bundle, WeightType
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine, replay_golden
from lengnuan.model.openvino_engine import OpenVinoEngine
from lengnuan.training import export
from lengnuan.training.errors import ParityFailed
from lengnuan.training.export import (
    Floats,
    check_axes,
    check_parity,
    export_onnx,
    graph_weights,
    int8_codes,
    parity_cases,
    round_weights,
)
from lengnuan.training.job import Job

CONFIG = EncoderConfig(vocab_size=300, max_tokens=24, width=16, layers=2, heads=2, feed_forward_width=32)


@pytest.fixture(scope="module")
def model() -> Classifier:
    torch.manual_seed(0)
    return Classifier(CONFIG, 3).eval()


@pytest.fixture(scope="module")
def exported(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    export_onnx(model, path, "float32", {"labels": '["a", "b", "c"]'})
    return path


def test_network_and_graph_agree_on_the_whole_matrix(model: Classifier, exported: Path) -> None:
    found = check_parity(model, OnnxEngine(exported, "cpu", 1))
    assert found["max_difference"] <= 1e-4
    assert found["batches"] == 5 * 4 * 2


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="no openvino on this platform")
@pytest.mark.parametrize("weight_type", ["float32", "float16", "int8"])
def test_network_and_graph_agree_in_openvino_too(tmp_path: Path, weight_type: WeightType) -> None:
    model = Classifier(CONFIG, 3).eval()
    round_weights(model, weight_type)
    export_onnx(model, tmp_path / "model.onnx", weight_type, {})
    assert check_parity(model, OpenVinoEngine(tmp_path / "model.onnx", threads=1))["max_difference"] <= 1e-5


def test_the_matrix_has_every_shape_and_fully_padded_rows() -> None:
    cases = list(parity_cases(300, 24))
    assert {ids.shape for ids, _ in cases} == {(b, t) for b in (1, 2, 3, 7, 64) for t in (1, 2, 17, 24)}
    assert sum(not mask[-1].any() for _, mask in cases) == len(cases) // 2


def test_axes_are_named_in_every_input_and_the_output(exported: Path) -> None:
    graph = onnx.load(exported).graph
    axes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    assert axes == {"token_ids": ["batch", "sequence"], "mask": ["batch", "sequence"]}
    assert [d.dim_param or d.dim_value for d in graph.output[0].type.tensor_type.shape.dim] == ["batch", 3]


def test_the_mask_is_boolean_and_is_fed_by_name(exported: Path) -> None:
    types = {value.name: value.type.tensor_type.elem_type for value in onnx.load(exported).graph.input}
    assert types == {"token_ids": onnx.TensorProto.INT64, "mask": onnx.TensorProto.BOOL}


def test_the_graph_itself_tells_its_labels(exported: Path) -> None:
    assert {p.key: p.value for p in onnx.load(exported).metadata_props} == {"labels": '["a", "b", "c"]'}


@pytest.mark.parametrize("weight_type", ["float32", "float16", "int8"])
def test_the_graph_gives_every_parameter_back(weight_type: WeightType, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Classifier(CONFIG, 3).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # no two alike
    round_weights(model, weight_type)
    export_onnx(model, tmp_path / "model.onnx", weight_type, {})
    found = graph_weights(tmp_path / "model.onnx")
    expected = model.state_dict()
    assert expected.keys() <= found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_frozen_axis_is_refused() -> None:
    ids = helper.make_tensor_value_info("token_ids", onnx.TensorProto.INT64, [2, "sequence"])
    graph = helper.make_graph([], "frozen", [ids], [])
    with pytest.raises(ParityFailed, match=r"token_ids has axes \[2, 'sequence'\]"):
        check_axes(helper.make_model(graph), 3)


def test_the_same_row_alone_in_company_and_padded_is_the_same_in_the_graph(exported: Path) -> None:
    engine = OnnxEngine(exported, "cpu", 1)
    random = np.random.default_rng(0)
    row = random.integers(0, 300, (1, 5))
    alone = engine.run(row, np.ones((1, 5), dtype=bool))
    company = random.integers(0, 300, (32, 24))
    company[7, :5] = row
    mask = np.ones((32, 24), dtype=bool)
    mask[7, 5:] = False
    assert np.abs(engine.run(company, mask)[7] - alone).max() <= 1e-5


def test_ids_under_the_padding_change_nothing_in_the_graph(exported: Path) -> None:
    engine = OnnxEngine(exported, "cpu", 1)
    ids = np.array([[5, 6, 7, 8]])
    mask = np.array([[True, True, False, False]])
    other = np.array([[5, 6, 200, 201]])
    assert np.array_equal(engine.run(ids, mask), engine.run(other, mask))


def test_half_weights_halve_the_file_and_keep_parity(tmp_path: Path, exported: Path) -> None:
    torch.manual_seed(0)
    model = Classifier(CONFIG, 3).eval()
    round_weights(model, "float16")
    path = tmp_path / "half.onnx"
    export_onnx(model, path, "float16", {})
    check_parity(model, OnnxEngine(path, "cpu", 1))
    assert path.stat().st_size < 0.75 * exported.stat().st_size


def rounded_to_int8(config: EncoderConfig = CONFIG) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(config, 40).eval()  # so many classes that the head is large too
    round_weights(model, "int8")
    return model


@pytest.fixture(scope="module")
def int8_model() -> Classifier:
    return rounded_to_int8()


@pytest.fixture(scope="module")
def int8_file(int8_model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    export_onnx(int8_model, path, "int8", {})
    return path


def restored(path: Path) -> dict[str, Floats]:
    """The matrices that an int8 graph computes from its codes and scales, by the name the network reads them under."""
    graph = onnx.load(path).graph
    constants = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    products = [node for node in graph.node if node.op_type == "Mul" and node.input[0] in casts]
    return {node.output[0]: constants[casts[node.input[0]]] * constants[node.input[1]] for node in products}


def test_a_code_is_the_nearest_multiple_of_its_row_s_scale() -> None:
    values = np.random.default_rng(0).normal(0.0, 0.02, (50, 40)).astype(np.float32)
    codes, scale = int8_codes(values, axis=1)
    assert codes.dtype == np.int8
    assert scale.dtype == np.float32
    assert scale.shape == (50, 1)
    assert np.allclose(scale[:, 0], np.abs(values).max(axis=1) / 127, rtol=2.0**-15)
    assert (np.abs(codes).max(axis=1) == 127).all()
    assert (np.abs(codes * scale - values) <= 0.5001 * scale).all()


def test_columns_are_the_rows_of_the_transposed_matrix() -> None:
    values = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    codes, scale = int8_codes(values, axis=1)
    transposed, scales = int8_codes(values.T, axis=0)
    assert np.array_equal(transposed, codes.T)
    assert np.array_equal(scales, scale.T)


@pytest.mark.parametrize("size", [1e-38, 1e-20, 0.02, 1e20])
def test_rounding_what_is_rounded_to_int8_changes_no_bit(size: float) -> None:
    values = (np.random.default_rng(0).normal(size=(2000, 20)) * size).astype(np.float32)
    once = np.multiply(*int8_codes(values, axis=1))
    assert np.multiply(*int8_codes(once, axis=1)).tobytes() == once.tobytes()


def test_a_row_of_zeros_divides_nothing_by_zero() -> None:
    values = np.array([[0.0, -0.0], [1.0, -0.4]], dtype=np.float32)
    codes, scale = int8_codes(values, axis=1)
    assert codes.tolist() == [[0, 0], [127, -51]]
    assert scale[0] == 1.0


def test_int8_weights_quarter_the_file_and_keep_parity(tmp_path: Path) -> None:
    model = rounded_to_int8(replace(CONFIG, vocab_size=2000, width=64, feed_forward_width=128))
    path = tmp_path / "model.onnx"
    export_onnx(model, path, "int8", {})
    assert check_parity(model, OnnxEngine(path, "cpu", 1))["max_difference"] <= 1e-5
    as_float32 = 4 * sum(weights.numel() for weights in model.parameters())
    assert path.stat().st_size < 0.35 * as_float32


def test_the_int8_graph_restores_every_large_matrix_bit_for_bit(int8_model: Classifier, int8_file: Path) -> None:
    found = {(matrix.shape, matrix.tobytes()) for matrix in restored(int8_file).values()}
    matrices = [p.detach().numpy() for p in int8_model.parameters() if p.ndim == 2 and p.numel() >= 256]
    assert len(found) == len(matrices) == 2 + 2 * 4 + 1
    for matrix in matrices:
        assert {(kept.shape, kept.tobytes()) for kept in (matrix, matrix.T)} & found


def test_biases_and_norms_stay_float32(int8_model: Classifier) -> None:
    torch.manual_seed(0)
    original = dict(Classifier(CONFIG, 40).named_parameters())
    for name, tensor in int8_model.named_parameters():
        assert torch.equal(tensor, original[name]) == (tensor.ndim < 2), name


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_int8_takes_every_kind_of_position(positions: str, tmp_path: Path) -> None:
    model = rounded_to_int8(replace(CONFIG, positions=positions, layers=1))
    export_onnx(model, tmp_path / "model.onnx", "int8", {})
    check_parity(model, OnnxEngine(tmp_path / "model.onnx", "cpu", 1))


def test_weights_that_were_not_rounded_are_not_stored_as_int8(model: Classifier, tmp_path: Path) -> None:
    with pytest.raises(ParityFailed, match=r"\[300, 16\] is not what round_weights makes"):
        export_onnx(model, tmp_path / "model.onnx", "int8", {})


def test_the_runtime_computes_int8_weights_back_once_at_its_start(int8_file: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(int8_file), options, providers=["CPUExecutionProvider"])
    constants = onnx.load(tmp_path / "optimised.onnx").graph.initializer
    assert onnx.TensorProto.INT8 not in {constant.data_type for constant in constants}
    kept = {(tuple(constant.dims), numpy_helper.to_array(constant).tobytes()) for constant in constants}
    assert {(matrix.shape, matrix.tobytes()) for matrix in restored(int8_file).values()} <= kept


@pytest.mark.integration
def test_an_int8_bundle_replays_its_golden_answers(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", sentences(120))
    brief = {"epochs": 1, "min_steps": 5, "optimiser": {"learning_rate": 1e-2}, "allow_collapsed": True}
    job = Job(small_config(tmp_path, fit=brief, export={"weight_type": "int8"}), tmp_path / "run")
    job.fit()
    bundle = Bundle.load(job.export())
    assert bundle.manifest.precision.weights == "int8"
    assert onnx.TensorProto.INT8 in {c.data_type for c in onnx.load(bundle.model_file).graph.initializer}
    assert replay_golden(bundle, OnnxEngine(bundle.model_file, "cpu", 1)) <= 1e-6


def test_a_changed_network_fails_parity(model: Classifier, exported: Path) -> None:
    engine = OnnxEngine(exported, "cpu", 1)
    other = Classifier(CONFIG, 3).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.head.weight[0, 0] += 1.0
    with pytest.raises(ParityFailed, match="batch 1 x length 1"):
        check_parity(other, engine)


def test_answers_that_are_not_finite_fail_parity(
    model: Classifier, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OnnxEngine(exported, "cpu", 1)
    monkeypatch.setattr(engine, "run", lambda ids, mask: np.full((len(ids), 3), np.nan, dtype=np.float32))
    with pytest.raises(ParityFailed):
        check_parity(model, engine)


def test_the_graph_holds_no_path_of_the_machine_it_was_made_on(exported: Path) -> None:
    assert str(Path(export.__file__).parent).encode() not in exported.read_bytes()
