"""Which engine a wish opens, on machines that have this and lack that; the runtimes are fakes that answer as told."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_fixtures import FakeEngine, write_fake_bundle

from lengnuan.model import opening
from lengnuan.model.bundle import Bundle, Reduced
from lengnuan.model.errors import BundleRefused, EngineUnavailable
from lengnuan.model.opening import open_engine

REDUCED = Reduced(
    tolerance=0.5,
    largest_difference=0.25,
    spread=0.01,
    flipped_share=0.0,
    texts=10,
    runtime="openvino 0",
    processor="a CPU",
)


class Opened(FakeEngine):
    """`FakeEngine`, off by `error`."""

    def __init__(self, runtime: str, provider: str, precision: str, error: float = 0.0) -> None:
        super().__init__()
        self.runtime, self.provider, self.precision = runtime, provider, precision
        self.error = error

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return super().run(token_ids, mask) + np.float32(self.error)


@dataclasses.dataclass
class Machine:
    """What is installed and what works; `opened` is what was opened, in order."""

    openvino: bool = True
    bfloat16: bool = True
    bfloat16_error: float = 0.1
    float16_error: float = 0.01
    float32_error: float = 0.0
    cuda: str = "none"  # none, works, broken
    opened: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def open_openvino(
        self, _: Path, precision: str = "float32", threads: int = 0, max_tokens: int = 0, workers: int = 1
    ) -> Opened:
        if not self.openvino:
            raise EngineUnavailable("engine openvino: not here")
        if precision == "bfloat16" and not self.bfloat16:
            raise EngineUnavailable("precision bfloat16: not in this CPU")
        self.opened.append(("openvino", precision))
        error = self.bfloat16_error if precision == "bfloat16" else self.float32_error
        opened = Opened("openvino", "cpu", precision, error)
        opened.workers = workers
        return opened

    def open_onnxruntime(self, _: Path, device: str, threads: int, precision: str = "float32") -> Opened:
        if device == "cuda" and self.cuda != "works":
            raise EngineUnavailable("device cuda: not here")
        on_gpu = device != "cpu" and self.cuda == "works"
        self.opened.append(("onnxruntime", precision))
        error = self.float16_error if precision == "float16" else 0.0
        return Opened("onnxruntime", "cuda" if on_gpu else "cpu", precision, error)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Everything but a GPU; a test takes away what it is about."""
    found = Machine()
    monkeypatch.setattr(opening, "OpenVinoEngine", found.open_openvino)
    monkeypatch.setattr(opening, "OnnxEngine", found.open_onnxruntime)
    monkeypatch.setattr(opening, "cuda_listed", lambda: found.cuda != "none")
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return stating(Bundle.load(write_fake_bundle(tmp_path)), {"bfloat16": REDUCED})


def stating(bundle: Bundle, reduced: dict[str, Reduced]) -> Bundle:
    precision = bundle.manifest.precision.model_copy(update={"reduced": reduced})
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"precision": precision}))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_openvino_is_told_how_many_calls_come_at_once(machine: Machine, bundle: Bundle, precision: str) -> None:
    assert open_engine(bundle, precision=precision, workers=3).workers == 3


def kind(bundle: Bundle, **wishes: Any) -> tuple[str, str, str]:
    engine = open_engine(bundle, **wishes)
    return engine.runtime, engine.provider, engine.precision


BFLOAT16 = ("openvino", "cpu", "bfloat16")
FLOAT32 = ("openvino", "cpu", "float32")
ONNX = ("onnxruntime", "cpu", "float32")
CUDA = ("onnxruntime", "cuda", "float32")


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, BFLOAT16),
        ({"device": "cpu"}, BFLOAT16),
        ({"engine": "openvino"}, BFLOAT16),
        ({"precision": "bfloat16"}, BFLOAT16),
        ({"precision": "float32"}, FLOAT32),
        ({"engine": "openvino", "precision": "float32"}, FLOAT32),
        ({"engine": "onnxruntime"}, ONNX),
        ({"engine": "onnxruntime", "precision": "float32"}, ONNX),
    ],
    ids=str,
)
def test_what_is_here_is_had(machine: Machine, bundle: Bundle, wishes: dict[str, Any], expected: tuple[str]) -> None:
    assert kind(bundle, **wishes) == expected
    assert machine.opened == [(expected[0], expected[2])]


@pytest.mark.parametrize(
    ("lacking", "expected", "why"),
    [
        ({"openvino": False}, ONNX, "engine openvino: not here"),
        ({"bfloat16": False}, FLOAT32, "precision bfloat16: not in this CPU"),
        ({"bfloat16_error": 0.6}, FLOAT32, "off by more than 0.5 in bfloat16"),
        ({"bfloat16_error": float("nan")}, FLOAT32, "off by more than 0.5 in bfloat16"),
    ],
    ids=str,
)
def test_auto_falls_back_and_says_why(
    machine: Machine,
    bundle: Bundle,
    lacking: dict[str, Any],
    expected: tuple[str],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vars(machine).update(lacking)
    with caplog.at_level(logging.INFO, logger=open_engine.__module__):
        assert kind(bundle) == expected
    assert why in caplog.text


def test_auto_takes_float32_for_a_bundle_that_nobody_has_measured(
    machine: Machine, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=open_engine.__module__):
        assert kind(stating(bundle, {})) == FLOAT32
    assert "does not state what it does to the answers; `lengnuan-train measure` finds out" in caplog.text
    assert machine.opened == [("openvino", "float32")]


@pytest.mark.parametrize(
    ("lacking", "why"),
    [({"openvino": False}, "engine openvino: not here"), ({"bfloat16": False}, "not in this CPU")],
    ids=str,
)
def test_bfloat16_that_can_not_be_had_is_an_error(
    machine: Machine, bundle: Bundle, lacking: dict[str, Any], why: str
) -> None:
    vars(machine).update(lacking)
    with pytest.raises(EngineUnavailable, match=why):
        open_engine(bundle, precision="bfloat16")
    assert machine.opened == []


def test_bfloat16_that_nobody_has_measured_is_an_error(machine: Machine, bundle: Bundle) -> None:
    with pytest.raises(EngineUnavailable, match="does not state what it does to the answers"):
        open_engine(stating(bundle, {}), precision="bfloat16")
    assert machine.opened == []


def test_bfloat16_that_was_asked_for_and_answers_wrong_is_refused(machine: Machine, bundle: Bundle) -> None:
    machine.bfloat16_error = 0.6
    with pytest.raises(BundleRefused, match=r"golden text .* off by more than 0\.5 in bfloat16"):
        open_engine(bundle, precision="bfloat16")


def test_openvino_that_was_asked_for_and_is_not_here_is_an_error(machine: Machine, bundle: Bundle) -> None:
    machine.openvino = False
    with pytest.raises(EngineUnavailable, match="engine openvino: not here"):
        open_engine(bundle, engine="openvino")


def test_float32_is_held_to_its_own_tolerance(machine: Machine, bundle: Bundle) -> None:
    machine.float32_error = 0.1
    with pytest.raises(BundleRefused, match=r"off by more than 0\.0001 in float32"):
        open_engine(bundle, precision="float32")


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"engine": "onnxruntime", "precision": "bfloat16"}, "precision bfloat16 is OpenVINO's"),
        ({"device": "cuda", "precision": "bfloat16"}, "precision bfloat16 is OpenVINO's"),
        ({"device": "cuda", "engine": "openvino"}, "engine openvino runs on the CPU only"),
    ],
    ids=str,
)
def test_wishes_that_exclude_each_other_are_an_error(
    machine: Machine, bundle: Bundle, wishes: dict[str, Any], why: str
) -> None:
    machine.cuda = "works"
    with pytest.raises(EngineUnavailable, match=why):
        open_engine(bundle, **wishes)
    assert machine.opened == []


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, CUDA),
        ({"device": "cuda"}, CUDA),
        ({"device": "cuda", "engine": "onnxruntime"}, CUDA),
        ({"precision": "float32"}, CUDA),
        ({"device": "cpu"}, BFLOAT16),
        ({"engine": "openvino"}, BFLOAT16),
        ({"precision": "bfloat16"}, BFLOAT16),
    ],
    ids=str,
)
def test_with_a_gpu(machine: Machine, bundle: Bundle, wishes: dict[str, Any], expected: tuple[str]) -> None:
    machine.cuda = "works"
    assert kind(bundle, **wishes) == expected


HALF = ("onnxruntime", "cuda", "float16")


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, HALF),
        ({"device": "cuda"}, HALF),
        ({"precision": "float16"}, HALF),
        ({"engine": "onnxruntime"}, HALF),
        ({"precision": "float32"}, CUDA),
        ({"device": "cpu"}, BFLOAT16),
        ({"device": "cpu", "engine": "onnxruntime"}, ONNX),
    ],
    ids=str,
)
def test_with_a_gpu_and_a_bound_for_float16(
    machine: Machine, bundle: Bundle, wishes: dict[str, Any], expected: tuple[str]
) -> None:
    machine.cuda = "works"
    assert kind(stating(bundle, {"bfloat16": REDUCED, "float16": REDUCED}), **wishes) == expected


def test_float16_outside_its_bound_gives_way_to_float32_unless_it_was_asked_for(
    machine: Machine, bundle: Bundle
) -> None:
    machine.cuda, machine.float16_error = "works", 0.6
    half = stating(bundle, {"float16": REDUCED})
    assert kind(half) == CUDA
    with pytest.raises(BundleRefused, match=r"off by more than 0\.5 in float16"):
        open_engine(half, precision="float16")


def test_float16_without_a_bound_without_cuda_or_on_the_cpu_is_an_error(machine: Machine, bundle: Bundle) -> None:
    half = stating(bundle, {"float16": REDUCED})
    with pytest.raises(EngineUnavailable, match="device cuda: not here"):
        open_engine(half, precision="float16")
    machine.cuda = "works"
    with pytest.raises(EngineUnavailable, match=r"does not state .* measure` on a GPU"):
        open_engine(bundle, precision="float16")
    with pytest.raises(EngineUnavailable, match="is for CUDA"):
        open_engine(half, device="cpu", precision="float16")
    with pytest.raises(EngineUnavailable, match="engine openvino runs on the CPU only"):
        open_engine(half, engine="openvino", precision="float16")


def test_a_gpu_that_does_not_start_leaves_the_best_of_the_cpu(machine: Machine, bundle: Bundle) -> None:
    machine.cuda = "broken"
    assert kind(bundle) == BFLOAT16


def test_cuda_that_is_not_here_is_an_error(machine: Machine, bundle: Bundle) -> None:
    with pytest.raises(EngineUnavailable, match="device cuda: not here"):
        open_engine(bundle, device="cuda")


def test_what_was_opened_is_logged(machine: Machine, bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=open_engine.__module__):
        open_engine(bundle)
    assert "engine opened: openvino on cpu in bfloat16, 1 threads" in caplog.text
    assert "golden answers replayed: 3 texts, largest difference 0.1, allowed in bfloat16: 0.5" in caplog.text


def test_with_the_real_runtimes_float32_is_what_a_bundle_gets_that_states_nothing(tiny_bundle: Path) -> None:
    assert open_engine(Bundle.load(tiny_bundle), device="cpu", threads=1).precision == "float32"
