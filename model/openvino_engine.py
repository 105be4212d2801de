"""OpenVINO: the same graph on a CPU, in float32 or in bfloat16. The package is imported only when it is asked for."""

import functools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.model.bundle import ComputeType
from lengnuan.model.engine import WIDTH_STEP, Logits
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_graph import cut_off_head, pack_tokens, packing, unpack_matrices
from lengnuan.model.threads import usable_cpus

HINTS: dict[ComputeType, str] = {"float32": "f32", "bfloat16": "bf16"}
# Nothing here converts models, and this part of the package loads the code that reports usage to its maker.
CONVERTER = "openvino.tools.ovc"
# Stands where a result will be. A run that gets no memory may raise nothing and leave what is there, which would be the
# answers of the batch before (2026.4.1).
UNTOUCHED = np.finfo(np.float32).min


class OpenVinoEngine:
    """OpenVINO on the CPU.

    Only attention and pooling see padding; the rest runs on the real tokens alone (`pack_tokens`).

    In bfloat16 only the encoder is; mean pooling and the linear layer after it stay in float32, and batches are widened
    to a multiple of `WIDTH_STEP`. So a text gets the same answer whatever stands beside it (docs/decisions.md).

    With several `workers` a call that is alone gets all threads, and calls that go on together share them: the first is
    the shortest way to an answer, the second gets more done. The answers are the same bits (docs/decisions.md).

    Args:
        model_file: a bundle's graph.
        precision: of the arithmetic. float32 really is that: OpenVINO's own default is bfloat16 where the CPU has it.
        threads: 0 takes what the container's quota allows.
        max_tokens: the network's limit, beyond which no batch may be widened; 0 widens none.
        workers: calls of `run` that may go on at once; 0 takes one a thread.

    Raises:
        EngineUnavailable: openvino is not installed, the CPU has no bfloat16, or the graph can't be opened.
    """

    runtime = "openvino"
    provider = "cpu"

    def __init__(
        self,
        model_file: Path,
        precision: ComputeType = "float32",
        threads: int = 0,
        max_tokens: int = 0,
        workers: int = 1,
    ) -> None:
        openvino = _import_openvino()
        core = _runtime(openvino)
        if precision == "bfloat16" and not _has_bfloat16(core):
            raise EngineUnavailable(
                f"precision bfloat16: {processor()} has no bfloat16 arithmetic (AVX512-BF16 or AMX-BF16): use float32"
            )
        self.precision = precision
        self.threads = threads or usable_cpus()
        self.workers = min(workers or self.threads, self.threads)
        self._max_tokens = max_tokens if precision == "bfloat16" else 0
        self._lock = threading.Lock()
        self._calls = 0
        try:
            graph = core.read_model(str(model_file))
            unpack_matrices(openvino, graph)
            self.packs = pack_tokens(openvino, graph)
            head = cut_off_head(openvino, graph) if precision == "bfloat16" else None
            parts: list[tuple[Any, ComputeType]] = [(graph, precision)]
            if head is not None:
                parts.append((head, "float32"))
            self._alone = _Lane([_compiled(core, *part, self.threads, 1) for part in parts])
            self._shared: SimpleQueue[_Lane] = SimpleQueue()
            if self.workers > 1:
                compiled = [_compiled(core, *part, self.threads, self.workers) for part in parts]
                for _ in range(self.workers):
                    self._shared.put(_Lane(compiled))
        except Exception as error:  # openvino's own class is RuntimeError, its loader raises others
            raise EngineUnavailable(f"{model_file}: openvino can't open it: {error}") from error

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> Logits:
        """See `Engine.run`."""
        more = min(-token_ids.shape[1] % WIDTH_STEP, self._max_tokens - token_ids.shape[1])
        if more > 0:
            token_ids = np.pad(token_ids, ((0, 0), (0, more)))
            mask = np.pad(mask, ((0, 0), (0, more)))
        with self._lock:
            alone = self._calls == 0
            self._calls += 1
        inputs: dict[str, Any] = {"token_ids": token_ids, "mask": mask}
        if self.packs:
            inputs |= packing(mask)
        # Whoever began alone keeps all threads to the end; a call that begins meanwhile is not the only one.
        lane = self._alone if alone or self.workers == 1 else self._shared.get()
        try:
            return lane.run(inputs)
        finally:
            if lane is not self._alone:
                self._shared.put(lane)
            with self._lock:
                self._calls -= 1


class _Lane:
    """The memory of one call: the parts of a graph, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._requests = [part.create_infer_request() for part in parts]

    def run(self, inputs: dict[str, Any]) -> Logits:
        """The last part's result: float32 [B, K].

        Raises:
            MemoryError: there was too little.
        """
        found: Any = inputs
        results: list[npt.NDArray[np.float32]] = []
        for request in self._requests:
            results.append(request.infer(found, share_inputs=True, share_outputs=True)[0])
            if (results[-1] == UNTOUCHED).any():
                raise MemoryError("OpenVINO gave no result, as it does when it gets no memory")
            found = results[-1:]
        logits = np.array(results[-1], dtype=np.float32)  # a copy: the next run writes into the same memory
        for result in results:
            result.fill(UNTOUCHED)
        return logits


def openvino_version() -> str:
    """The installed release, for instance `2026.4.1`; raises `EngineUnavailable` when there is none."""
    return str(_import_openvino().__version__).split("-")[0]


def processor() -> str:
    """What OpenVINO calls this machine's CPU; raises `EngineUnavailable` when it is not installed."""
    return str(_runtime(_import_openvino()).get_property("CPU", "FULL_DEVICE_NAME"))


def _compiled(core: Any, graph: Any, precision: ComputeType, threads: int, streams: int) -> Any:
    """The graph, for as many calls at once as `streams`, which share the threads."""
    return core.compile_model(graph, "CPU", _properties(precision, threads, streams))


def _properties(precision: ComputeType, threads: int, streams: int) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": streams,
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


@functools.cache
def _runtime(openvino: ModuleType) -> Any:
    """The one `Core` of this process, never given up.

    Its CPU plugin gives the thread that opens it another stack for signals, and frees that stack at its end. With
    several, one after the other, a stack that is gone is put back, and the next signal ends the process (2026.4.1).
    """
    return openvino.Core()


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
