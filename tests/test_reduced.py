"""What the manifest may state about bfloat16: measured in every shape, with a margin, or nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from service_fixtures import FakeEngine, logits_of

from lengnuan.model.bundle import MANIFEST, Bundle
from lengnuan.model.engine import OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.training import reduced
from lengnuan.training.commands import run
from lengnuan.training.errors import UsageError
from lengnuan.training.reduced import SAFETY, compare, measure, measure_bundle

LIMIT = 12
ROWS = [[1 + (row + place) % 7 for place in range(1 + row % 9)] for row in range(50)]
EXACT = np.array([logits_of(row) for row in ROWS], dtype=np.float32)

Shape = tuple[int, int]


class Rough(FakeEngine):
    """`FakeEngine`, off by what `error` says of a batch's shape, upwards in the first logit only."""

    precision = "bfloat16"

    def __init__(self, error: Callable[[Shape], float]) -> None:
        super().__init__()
        self.error = error

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return super().run(token_ids, mask) + np.array([self.error(token_ids.shape), 0.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("worst", "error"),
    [
        ("alone", lambda shape: 0.25 if shape[0] == 1 else 0.0),
        ("sorted batches", lambda shape: 0.25 if shape[0] == 50 else 0.0),
        ("padded to the limit", lambda shape: 0.25 if shape[1] == LIMIT else 0.0),
    ],
)
def test_every_shape_is_judged(worst: str, error: Callable[[Shape], float]) -> None:
    found = compare(Rough(error), ROWS, EXACT, LIMIT)
    assert found.by_shape[worst][0] == pytest.approx(0.25, abs=1e-6)
    assert [name for name, (difference, _) in found.by_shape.items() if difference > 0] == [worst]
    assert found.spread == pytest.approx(0.25, abs=1e-6)


def test_an_engine_without_error_differs_nowhere() -> None:
    found = compare(Rough(lambda _: 0.0), ROWS, EXACT, LIMIT)
    assert set(found.by_shape.values()) == {(0.0, 0.0)}
    assert found.spread == 0.0


def test_a_text_counts_as_flipped_when_another_label_wins() -> None:
    flipped = float(np.mean((EXACT[:, 0] < EXACT[:, 1]) & (EXACT[:, 0] + 0.5 > EXACT[:, 1])))
    found = compare(Rough(lambda _: 0.5), ROWS, EXACT, LIMIT)
    assert flipped > 0
    assert [share for _, share in found.by_shape.values()] == [pytest.approx(flipped)] * 3


def test_padding_never_reaches_beyond_the_limit() -> None:
    engine = Rough(lambda _: 0.0)
    rows = [[1] * 40, *ROWS]
    compare(engine, rows, np.array([logits_of(row[:LIMIT]) for row in rows], dtype=np.float32), LIMIT)
    assert max(tokens for _, tokens in engine.shapes) == LIMIT


def with_engine(monkeypatch: pytest.MonkeyPatch, engine: object) -> None:
    """What `OpenVinoEngine` opens."""
    monkeypatch.setattr(reduced, "OpenVinoEngine", lambda *_: engine)
    monkeypatch.setattr(reduced, "openvino_version", lambda: "1.2.3")
    monkeypatch.setattr(reduced, "processor", lambda: "a CPU")


def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise EngineUnavailable("precision bfloat16: not in this CPU")

    monkeypatch.setattr(reduced, "OpenVinoEngine", refuse)


def test_the_stated_tolerance_leaves_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch, Rough(lambda _: 1e-3))
    found = measure(Path("model.onnx"), ROWS, EXACT, LIMIT)["bfloat16"]
    assert found is not None
    assert found.tolerance == pytest.approx(SAFETY * 1e-3, rel=0.05)
    assert found.largest_difference == pytest.approx(1e-3, rel=1e-3)
    assert (found.flipped_share, found.texts) == (0.0, len(ROWS))
    assert found.spread <= 1e-6
    assert (found.runtime, found.processor) == ("openvino 1.2.3", "a CPU")


@pytest.mark.parametrize("error", [0.5, float("nan"), float("inf")])
def test_a_network_whose_labels_flip_states_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: float
) -> None:
    with_engine(monkeypatch, Rough(lambda _: error))
    assert measure(Path("model.onnx"), ROWS, EXACT, LIMIT) == {"bfloat16": None}
    assert "not stated, so the bundle will be served in float32" in caplog.text


def test_where_it_can_not_be_measured_nothing_is_stated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_bfloat16(monkeypatch)
    caplog.set_level("INFO")
    assert measure(Path("model.onnx"), ROWS, EXACT, LIMIT) == {}
    assert "bfloat16: not measured" in caplog.text
    assert "not in this CPU" in caplog.text


class Rounded:
    """A bundle's own graph, each logit off by a known amount."""

    precision = "bfloat16"

    def __init__(self, folder: Path, error: float) -> None:
        self._exact = OnnxEngine(folder / "model.onnx", "cpu", threads=1)
        self._error = np.array([error, 0.0], dtype=np.float32)

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return self._exact.run(token_ids, mask) + self._error


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_measuring_a_bundle_changes_its_manifest_only(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(bundle_copy)
    with_engine(monkeypatch, Rounded(bundle_copy, 1e-3))
    measure_bundle(bundle_copy, ["好", "差差差", "", "电影很好看!"])
    after = contents(bundle_copy)
    assert {name for name in after if after[name] != before[name]} == {MANIFEST}
    old, new = json.loads(before[MANIFEST]), json.loads(after[MANIFEST])
    stated = new["precision"].pop("reduced")["bfloat16"]
    assert (stated["texts"], stated["tolerance"]) == (3, pytest.approx(2e-3, rel=0.05))
    old["precision"].pop("reduced")
    assert new == old
    assert Bundle.load(bundle_copy).manifest.precision.bound("bfloat16") == stated["tolerance"]


def test_a_bound_that_no_longer_holds_is_taken_out(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch, Rounded(bundle_copy, 1e-3))
    measure_bundle(bundle_copy, ["好", "差"])
    with_engine(monkeypatch, Rounded(bundle_copy, 100.0))
    measure_bundle(bundle_copy, ["好", "差"])
    assert not Bundle.load(bundle_copy).manifest.precision.states("bfloat16")


def test_without_bfloat16_a_bundle_stays_as_it_is(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(bundle_copy)
    without_bfloat16(monkeypatch)
    with pytest.raises(EngineUnavailable, match="nothing to measure"):
        measure_bundle(bundle_copy, ["好"])
    assert contents(bundle_copy) == before


def test_measuring_needs_texts(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch, Rounded(bundle_copy, 0.0))
    with pytest.raises(UsageError, match="no text"):
        measure_bundle(bundle_copy, ["", " "])


def test_the_command_reads_the_texts_of_its_files(
    bundle_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev.tsv").write_text("label\treview\n1\t好\n0\t差\n", encoding="utf-8")
    (tmp_path / "more.txt").write_text("电影\n", encoding="utf-8")
    with_engine(monkeypatch, Rounded(bundle_copy, 1e-3))
    arguments = ["measure", "--bundle", str(bundle_copy), "--text-column", "review", "--data"]
    assert run([*arguments, str(tmp_path / "dev.tsv"), str(tmp_path / "more.txt")]) == 0
    assert Bundle.load(bundle_copy).manifest.precision.reduced["bfloat16"].texts == 3


def test_float16_is_measured_on_cuda_and_what_another_machine_stated_stays(
    bundle_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engine(monkeypatch, Rounded(bundle_copy, 1e-3))
    measure_bundle(bundle_copy, ["好", "差"])
    before = Bundle.load(bundle_copy).manifest.precision.reduced["bfloat16"]
    without_bfloat16(monkeypatch)
    exact = OnnxEngine

    def open_onnx(file: Path, device: str, threads: int, precision: str = "float32") -> object:
        return exact(file, "cpu", threads) if precision == "float32" else Rounded(bundle_copy, 2e-3)

    monkeypatch.setattr(reduced, "OnnxEngine", open_onnx)
    monkeypatch.setattr(reduced, "version", lambda _: "1.0")
    measure_bundle(bundle_copy, ["好", "差"])
    stated = Bundle.load(bundle_copy).manifest.precision.reduced
    assert stated["bfloat16"] == before
    assert (stated["float16"].runtime, stated["float16"].processor) == ("onnxruntime 1.0", "CUDA")
    assert stated["float16"].tolerance == pytest.approx(4e-3, rel=0.05)
