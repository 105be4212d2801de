from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine
from lengnuan.training import export
from lengnuan.training.errors import ParityFailed
from lengnuan.training.export import check_axes, check_parity, export_onnx, parity_cases, round_weights

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
