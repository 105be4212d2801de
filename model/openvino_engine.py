"""OpenVINO: the same graph on a CPU, in float32 or in bfloat16. The package is imported only when it is asked for."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.model.bundle import ComputeType
from lengnuan.model.engine import Logits
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.threads import usable_cpus

HINTS: dict[ComputeType, str] = {"float32": "f32", "bfloat16": "bf16"}
# Nothing here converts models, and this part of the package loads the code that reports usage to its maker.
CONVERTER = "openvino.tools.ovc"


class OpenVinoEngine:
    """OpenVINO on the CPU.

    Args:
        model_file: a bundle's graph.
        precision: of the arithmetic. float32 really is that: OpenVINO's own default is bfloat16 where the CPU has it.
        threads: 0 takes what the container's quota allows.

    Raises:
        EngineUnavailable: openvino is not installed, the CPU has no bfloat16, or the graph can't be opened.
    """

    runtime = "openvino"
    provider = "cpu"

    def __init__(self, model_file: Path, precision: ComputeType = "float32", threads: int = 0) -> None:
        core = _import_openvino().Core()
        if precision == "bfloat16" and not _has_bfloat16(core):
            raise EngineUnavailable(
                f"precision bfloat16: {processor()} has no bfloat16 arithmetic (AVX512-BF16 or AMX-BF16): use float32"
            )
        self.precision = precision
        self.threads = threads or usable_cpus()
        try:
            compiled = core.compile_model(str(model_file), "CPU", _properties(precision, self.threads))
        except Exception as error:  # openvino's own class is RuntimeError, its loader raises others
            raise EngineUnavailable(f"{model_file}: openvino can't open it: {error}") from error
        self._request = compiled.create_infer_request()

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> Logits:
        """See `Engine.run`."""
        inputs = {"token_ids": token_ids, "mask": mask}
        found = self._request.infer(inputs, share_inputs=True, share_outputs=True)["logits"]
        return np.array(found, dtype=np.float32)  # a copy: the next run writes into the same memory


def openvino_version() -> str:
    """The installed release, for instance `2026.4.1`; raises `EngineUnavailable` when there is none."""
    return str(_import_openvino().__version__).split("-")[0]


def processor() -> str:
    """What OpenVINO calls this machine's CPU; raises `EngineUnavailable` when it is not installed."""
    return str(_import_openvino().Core().get_property("CPU", "FULL_DEVICE_NAME"))


def _properties(precision: ComputeType, threads: int) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        # With weights stored as int8 the default (32) would round activations to int8 too.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        # Pods share cores: threads that are tied to one wait while another is free.
        "ENABLE_CPU_PINNING": False,
        # The number of threads is already what the container may use, whatever kind of core they run on.
        "ENABLE_HYPER_THREADING": True,
    }


def _has_bfloat16(core: Any) -> bool:
    """In hardware. Where it is not, OpenVINO would round as bfloat16 does and be slower than float32."""
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _import_openvino() -> ModuleType:
    """The package without its converter.

    Raises:
        EngineUnavailable: it is not installed, or its libraries do not load here.
    """
    first = "openvino" not in sys.modules
    if first:
        sys.modules[CONVERTER] = None  # type: ignore[assignment]  # an ImportError, which the package expects
    try:
        import openvino
    except ImportError as error:
        raise EngineUnavailable(
            f"engine openvino: it can't be imported ({error}): `pip install openvino`, or use engine onnxruntime"
        ) from error
    finally:
        if first:
            del sys.modules[CONVERTER]
    module: ModuleType = openvino
    return module
