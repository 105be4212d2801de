import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tiny_bundle import MAX_TOKENS

from lengnuan.model.bundle import Bundle, GoldenAnswer
from lengnuan.model.engine import OnnxEngine, replay_golden, score
from lengnuan.model.errors import BundleRefused, EngineUnavailable
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID


class SumEngine:
    """Answers with the sum and the number of each row's real ids, and remembers the shapes it was given."""

    runtime, provider, precision = "fake", "cpu", "float32"

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self.shapes.append(token_ids.shape)
        return np.stack([(token_ids * mask).sum(axis=1), mask.sum(axis=1)], axis=1).astype(np.float32)


@pytest.fixture
def engine(tiny_bundle: Path) -> OnnxEngine:
    return OnnxEngine(Bundle.load(tiny_bundle).model_file, "cpu", threads=1)


def test_score_keeps_the_order_of_the_rows() -> None:
    rows = [list(range(1, length + 1)) for length in (5, 1, 9, 3, 3, 7)]
    assert score(SumEngine(), rows, max_tokens=20, batch_tokens=8).tolist() == [[sum(row), len(row)] for row in rows]


def test_score_never_pads_beyond_the_budget() -> None:
    fake = SumEngine()
    score(fake, [[1] * length for length in (1, 2, 3, 4, 5, 6, 7, 8) * 5], max_tokens=20, batch_tokens=24)
    assert all(rows * tokens <= 24 for rows, tokens in fake.shapes)
    assert sum(rows for rows, _ in fake.shapes) == 40


def test_score_fills_a_batch_up_to_the_budget() -> None:
    fake = SumEngine()
    score(fake, [[1, 1]] * 6, max_tokens=20, batch_tokens=8)
    assert fake.shapes == [(4, 2), (2, 2)]


def test_score_runs_a_row_that_is_over_the_budget_alone() -> None:
    fake = SumEngine()
    score(fake, [[1] * 10, [1]], max_tokens=20, batch_tokens=4)
    assert fake.shapes == [(1, 1), (1, 10)]


def test_score_counts_an_empty_row_as_one_padded_token() -> None:
    fake = SumEngine()
    score(fake, [[]] * 5, max_tokens=20, batch_tokens=2)
    assert fake.shapes == [(2, 1), (2, 1), (1, 1)]


def test_score_cuts_long_rows_to_head_and_tail() -> None:
    assert score(SumEngine(), [[1, 2, 3, 4, 5, 6]], max_tokens=3).tolist() == [[1 + 2 + 6, 3]]


def test_a_graph_answers_alone_as_among_others(engine: OnnxEngine) -> None:
    rows = [[260, 261], [258], [270, 2, 3, 4], []]
    together = engine.run(*pad(rows, PAD_ID))
    assert together.dtype == np.float32
    for row, logits in zip(rows, together, strict=True):
        assert engine.run(*pad([row], PAD_ID))[0] == pytest.approx(logits, abs=1e-6)


def test_a_graph_does_not_see_the_ids_under_the_padding(engine: OnnxEngine) -> None:
    token_ids, mask = pad([[260, 261, 262], [258]], PAD_ID)
    changed = np.where(mask, token_ids, 265)
    assert engine.run(changed, mask).tolist() == engine.run(token_ids, mask).tolist()


def test_an_empty_row_is_finite(engine: OnnxEngine) -> None:
    assert np.isfinite(engine.run(*pad([[]], PAD_ID))).all()


def test_the_provider_is_named(engine: OnnxEngine) -> None:
    assert (engine.runtime, engine.provider, engine.precision, engine.threads) == ("onnxruntime", "cpu", "float32", 1)


def test_golden_answers_are_accepted(tiny_bundle: Path, engine: OnnxEngine) -> None:
    assert replay_golden(Bundle.load(tiny_bundle), engine) <= 1e-5


def with_golden(bundle: Bundle, **changes: object) -> Bundle:
    first: GoldenAnswer = dataclasses.replace(bundle.golden[1], **changes)
    return dataclasses.replace(bundle, golden=(bundle.golden[0], first))


def test_a_golden_text_with_other_ids_is_refused(tiny_bundle: Path, engine: OnnxEngine) -> None:
    bundle = Bundle.load(tiny_bundle)
    ids = list(bundle.golden[1].ids)
    with pytest.raises(BundleRefused) as refused:
        replay_golden(with_golden(bundle, ids=(7, 8)), engine)
    assert str(refused.value) == f"{tiny_bundle}: golden text 1 has ids {ids}, recorded [7, 8]"


@pytest.mark.parametrize("off_by", [1e-3, -5.0, float("nan")])
def test_a_golden_logit_that_is_off_is_refused(tiny_bundle: Path, engine: OnnxEngine, off_by: float) -> None:
    bundle = Bundle.load(tiny_bundle)
    wrong = tuple(value + off_by for value in bundle.golden[1].logits)
    with pytest.raises(BundleRefused, match=r"golden text 1 has logits .*, recorded .*off by more than 0\.0001"):
        replay_golden(with_golden(bundle, logits=wrong), engine)


def test_golden_logits_of_another_width_are_refused(tiny_bundle: Path, engine: OnnxEngine) -> None:
    bundle = Bundle.load(tiny_bundle)
    wide = tuple(dataclasses.replace(answer, logits=(0.0, 0.0, 0.0)) for answer in bundle.golden)
    with pytest.raises(BundleRefused, match=r"shape \(5, 2\), recorded \(5, 3\)"):
        replay_golden(dataclasses.replace(bundle, golden=wide), engine)


def test_an_engine_of_a_precision_that_the_bundle_does_not_state_is_refused(
    tiny_bundle: Path, engine: OnnxEngine
) -> None:
    engine.precision = "bfloat16"
    with pytest.raises(BundleRefused, match="states no tolerance for bfloat16"):
        replay_golden(Bundle.load(tiny_bundle), engine)


def test_replay_runs_texts_that_are_over_the_limit(tiny_bundle: Path) -> None:
    assert max(len(answer.ids) for answer in Bundle.load(tiny_bundle).golden) > MAX_TOKENS


def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


def test_cuda_that_is_not_here_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cuda(monkeypatch)
    with pytest.raises(EngineUnavailable, match=r"has \['CPUExecutionProvider'\] only: `pip uninstall onnxruntime`"):
        OnnxEngine(tiny_bundle / "model.onnx", "cuda")


def test_cuda_that_does_not_start_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: found)
    monkeypatch.setattr("lengnuan.model.engine._choose_provider", lambda _: ("cuda", ["CPUExecutionProvider"]))
    with pytest.raises(EngineUnavailable, match="could not start CUDA"):
        OnnxEngine(tiny_bundle / "model.onnx", "cuda", threads=1)


def test_auto_takes_the_cpu_where_there_is_no_cuda(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cuda(monkeypatch)
    assert OnnxEngine(tiny_bundle / "model.onnx", "auto", threads=1).provider == "cpu"


@pytest.mark.parametrize("content", [None, b"", b"no graph"], ids=["missing", "empty", "junk"])
def test_a_graph_that_can_not_be_opened_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EngineUnavailable) as refused:
        OnnxEngine(file, "cpu", threads=1)
    assert str(refused.value).startswith(f"{file}: onnxruntime can't open it: ")


def test_nothing_is_reported_to_the_maker_of_the_runtime(tmp_path: Path, tiny_bundle: Path) -> None:
    """ONNX Runtime keeps an id of the machine and a queue of reports in the home folder when telemetry is on."""
    code = (
        f"import lengnuan.model.engine as e, pathlib; e.OnnxEngine(pathlib.Path({str(tiny_bundle)!r}) / 'model.onnx')"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    subprocess.run([sys.executable, "-c", code], env=env | {"HOME": str(tmp_path)}, check=True, capture_output=True)
    assert list(tmp_path.rglob("*")) == []
