"""OpenVINO on the same graph gives the answers of ONNX Runtime, whatever stands around a text; and bfloat16's."""

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_bundle import MAX_TOKENS

from lengnuan.model import openvino_engine
from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import OnnxEngine, replay_golden
from lengnuan.model.errors import EngineUnavailable, is_out_of_memory
from lengnuan.model.openvino_engine import OpenVinoEngine
from lengnuan.model.openvino_graph import unpack_matrices
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID

installed = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="no openvino on this platform")
ROWS = [[260, 261], [258], [270, 2, 3, 4], [], [265] * MAX_TOKENS]


@pytest.fixture(scope="module")
def engine(tiny_bundle: Path) -> OpenVinoEngine:
    return OpenVinoEngine(tiny_bundle / "model.onnx", threads=1)


def property_of(engine: OpenVinoEngine, name: str) -> object:
    return engine._alone._requests[0].get_compiled_model().get_property(name)


def bfloat16_engine(model_file: Path) -> OpenVinoEngine:
    try:
        return OpenVinoEngine(model_file, "bfloat16", threads=1, max_tokens=MAX_TOKENS)
    except EngineUnavailable as missing:
        pytest.skip(str(missing))


@installed
@pytest.mark.parametrize("batch", [1, 2, 7, 33])
@pytest.mark.parametrize("length", [1, 3, MAX_TOKENS])
def test_float32_answers_are_those_of_onnxruntime(
    tiny_bundle: Path, engine: OpenVinoEngine, batch: int, length: int
) -> None:
    random = np.random.default_rng(batch * length)
    token_ids = random.integers(0, 270, (batch, length))
    mask = np.arange(length) < random.integers(0, length + 1, batch)[:, None]
    expected = OnnxEngine(tiny_bundle / "model.onnx", "cpu", threads=1).run(token_ids, mask)
    found = engine.run(token_ids, mask)
    assert found.dtype == np.float32
    assert found == pytest.approx(expected, abs=1e-5)


@installed
def test_int8_matrices_are_unpacked_but_not_the_embeddings() -> None:
    openvino = openvino_engine._import_openvino()
    graph = openvino_engine._runtime(openvino).read_model(str(DEFAULT_BUNDLE / "model.onnx"))

    def stored_as_int8(kind: str) -> int:
        """Nodes of a kind with an operand that is int8 times a scale."""
        nodes = [node for node in graph.get_ordered_ops() if node.get_type_name() == kind]
        operands = [value.get_node() for node in nodes for value in node.input_values()]
        casts = [value.get_node() for operand in operands for value in operand.input_values()]
        casts = [cast for cast in casts if cast.get_type_name() == "Convert"]
        return sum(cast.get_input_element_type(0) == openvino.Type.i8 for cast in casts)

    layers = Bundle.load(DEFAULT_BUNDLE).manifest.encoder["layers"]
    assert stored_as_int8("MatMul") >= 4 * layers
    unpack_matrices(openvino, graph)
    assert stored_as_int8("MatMul") == 0
    assert stored_as_int8("Gather") == 1


@installed
def test_a_graph_answers_alone_as_among_others(engine: OpenVinoEngine) -> None:
    together = engine.run(*pad(ROWS, PAD_ID))
    for row, logits in zip(ROWS, together, strict=True):
        assert engine.run(*pad([row], PAD_ID))[0] == pytest.approx(logits, abs=1e-5)


@installed
def test_a_graph_does_not_see_the_ids_under_the_padding(engine: OpenVinoEngine) -> None:
    token_ids, mask = pad(ROWS, PAD_ID)
    assert engine.run(np.where(mask, token_ids, 265), mask).tolist() == engine.run(token_ids, mask).tolist()


@installed
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_calls_that_go_on_together_give_the_bits_of_a_call_alone(tiny_bundle: Path, precision: str) -> None:
    try:
        together = OpenVinoEngine(tiny_bundle / "model.onnx", precision, 2, MAX_TOKENS, workers=2)
    except EngineUnavailable as missing:
        pytest.skip(str(missing))
    alone = OpenVinoEngine(tiny_bundle / "model.onnx", precision, 1, MAX_TOKENS)
    assert (together.workers, alone.workers) == (2, 1)
    batches = [pad([[260 + n, *[261] * (n % 7)], [262]], PAD_ID) for n in range(60)]
    lanes = set()
    run = together._alone.__class__.run
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(together._alone.__class__, "run", lambda lane, inputs: lanes.add(lane) or run(lane, inputs))
        found = list(pool.map(lambda batch: together.run(*batch), batches))
    assert len(lanes) > 1, "some calls went on together"
    for batch, logits in zip(batches, found, strict=True):
        assert logits.tolist() == alone.run(*batch).tolist()


@installed
def test_workers_are_no_more_than_threads(tiny_bundle: Path) -> None:
    assert OpenVinoEngine(tiny_bundle / "model.onnx", threads=2, workers=0).workers == 2
    assert OpenVinoEngine(tiny_bundle / "model.onnx", threads=1, workers=5).workers == 1


@installed
def test_an_answer_is_not_overwritten_by_the_next_run(engine: OpenVinoEngine) -> None:
    first = engine.run(*pad([[260]], PAD_ID))
    before = first.copy()
    engine.run(*pad([[270, 5]], PAD_ID))
    assert first.tolist() == before.tolist()


@installed
def test_an_empty_row_is_finite(engine: OpenVinoEngine) -> None:
    assert np.isfinite(engine.run(*pad([[]], PAD_ID))).all()


@installed
def test_arrays_that_are_not_contiguous_are_read_right(engine: OpenVinoEngine) -> None:
    token_ids, mask = pad(ROWS, PAD_ID)
    expected = engine.run(token_ids[::2].copy(), mask[::2].copy())
    assert engine.run(token_ids[::2], mask[::2]).tolist() == expected.tolist()
    assert engine.run(np.asfortranarray(token_ids[::2]), mask[::2]).tolist() == expected.tolist()


@installed
def test_float32_is_neither_bfloat16_nor_int8_whatever_the_cpu_could_do(engine: OpenVinoEngine) -> None:
    assert property_of(engine, "INFERENCE_PRECISION_HINT").get_type_name() == "f32"
    assert property_of(engine, "DYNAMIC_QUANTIZATION_GROUP_SIZE") == 0


@installed
def test_the_provider_is_named(engine: OpenVinoEngine) -> None:
    assert (engine.runtime, engine.provider, engine.precision, engine.threads) == ("openvino", "cpu", "float32", 1)
    assert property_of(engine, "INFERENCE_NUM_THREADS") == 1


@installed
def test_threads_are_those_that_the_container_grants(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_engine, "usable_cpus", lambda: 1)
    engine = OpenVinoEngine(tiny_bundle / "model.onnx")
    assert (engine.threads, property_of(engine, "INFERENCE_NUM_THREADS")) == (1, 1)


@installed
def test_golden_answers_are_accepted(tiny_bundle: Path, engine: OpenVinoEngine) -> None:
    assert replay_golden(Bundle.load(tiny_bundle), engine) <= 1e-5


@installed
def test_bfloat16_answers_are_near_those_of_float32(tiny_bundle: Path, engine: OpenVinoEngine) -> None:
    reduced = bfloat16_engine(tiny_bundle / "model.onnx")
    assert reduced.precision == "bfloat16"
    assert property_of(reduced, "INFERENCE_PRECISION_HINT").get_type_name() == "bf16"
    found, exact = reduced.run(*pad(ROWS, PAD_ID)), engine.run(*pad(ROWS, PAD_ID))
    assert found.dtype == np.float32
    assert found == pytest.approx(exact, abs=0.05)


@installed
def test_in_bfloat16_a_text_alone_is_as_among_others(tiny_bundle: Path) -> None:
    reduced = bfloat16_engine(tiny_bundle / "model.onnx")
    together = reduced.run(*pad(ROWS * 3, PAD_ID))
    for row, logits in zip(ROWS, together, strict=False):
        assert reduced.run(*pad([row], PAD_ID))[0] == pytest.approx(logits, abs=1e-5)


@installed
@pytest.mark.parametrize(("tokens", "width"), [(1, 16), (16, 16), (17, 20), (20, 20), (21, 21)])
def test_in_bfloat16_widths_are_rounded_up_but_not_beyond_the_limit(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, width: int
) -> None:
    monkeypatch.setattr(openvino_engine, "_has_bfloat16", lambda _: True)
    reduced = OpenVinoEngine(tiny_bundle / "model.onnx", "bfloat16", threads=1, max_tokens=20)
    token_ids, mask = pad([[260] * tokens, [258]], PAD_ID)
    found = reduced.run(token_ids, mask)
    assert list(reduced._alone._requests[0].get_input_tensor(0).shape) == [2, width]
    expected = OnnxEngine(tiny_bundle / "model.onnx", "cpu", threads=1).run(token_ids, mask)
    assert found == pytest.approx(expected, abs=0.05)


@installed
def test_float32_widths_stay_as_they_are(tiny_bundle: Path) -> None:
    exact = OpenVinoEngine(tiny_bundle / "model.onnx", threads=1, max_tokens=20)
    exact.run(*pad([[260, 261, 262]], PAD_ID))
    assert list(exact._alone._requests[0].get_input_tensor(0).shape) == [1, 3]


@installed
def test_bfloat16_that_the_cpu_does_not_have_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_engine, "_has_bfloat16", lambda _: False)
    with pytest.raises(EngineUnavailable, match=r"precision bfloat16: .* has no bfloat16 arithmetic .*: use float32"):
        OpenVinoEngine(tiny_bundle / "model.onnx", "bfloat16")


def test_a_package_that_is_not_installed_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(
        EngineUnavailable, match=r"engine openvino: .*`pip install openvino`, or use engine onnxruntime"
    ):
        OpenVinoEngine(tiny_bundle / "model.onnx")


@installed
@pytest.mark.parametrize("content", [None, b"", b"no graph"], ids=["missing", "empty", "junk"])
def test_a_graph_that_can_not_be_opened_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EngineUnavailable) as refused:
        OpenVinoEngine(file, threads=1)
    assert str(refused.value).startswith(f"{file}: openvino can't open it: ")


@installed
def test_nothing_is_reported_to_the_maker_of_the_runtime(tmp_path: Path, tiny_bundle: Path) -> None:
    """The package's model converter loads a client for Google Analytics, which keeps an id in the home folder."""
    code = (
        "import sys, pathlib, lengnuan.model.openvino_engine as e; "
        f"e.OpenVinoEngine(pathlib.Path({str(tiny_bundle)!r}) / 'model.onnx', threads=1); "
        "sys.stdout.write(' '.join(sys.modules))"
    )
    env = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"} | {"HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert "openvino" in run.stdout.split()
    assert [name for name in run.stdout.split() if "telemetry" in name] == []
    assert list(tmp_path.rglob("*")) == []


@installed
def test_a_signal_is_survived_after_engines_have_come_and_gone(tiny_bundle: Path) -> None:
    code = (
        "import os, pathlib, signal; import lengnuan.model.openvino_engine as e; "
        f"file = pathlib.Path({str(tiny_bundle)!r}) / 'model.onnx'; "
        "first, second = (e.OpenVinoEngine(file, threads=1) for _ in range(2)); del first; del second; "
        "signal.signal(signal.SIGTERM, lambda *_: print('handled')); os.kill(os.getpid(), signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_a_run_that_leaves_the_last_result_in_place_is_out_of_memory() -> None:
    memory = np.zeros((2, 3), dtype=np.float32)
    written = iter([1.0, None, 2.0])

    class Request:
        def infer(self, *_: object, **__: object) -> list[np.ndarray]:
            value = next(written)
            if value is not None:
                memory.fill(value)
            return [memory]

    lane = openvino_engine._Lane([SimpleNamespace(create_infer_request=Request)])
    assert lane.run({}).tolist() == [[1.0] * 3] * 2
    with pytest.raises(MemoryError) as failure:
        lane.run({})
    assert is_out_of_memory(failure.value)
    assert lane.run({}).tolist() == [[2.0] * 3] * 2
