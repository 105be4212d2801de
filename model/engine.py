"""What runs the network outside training: arrays in, logits out. It knows nothing of text or labels."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

# ONNX Runtime's import gives the machine an id in the home folder and sends usage reports to its maker, unless this
# is set before. Its own disable_telemetry_events() comes too late. So this is the one place that imports it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from lengnuan.model.bundle import Bundle, ComputeType
from lengnuan.model.errors import BundleRefused, EngineUnavailable
from lengnuan.model.half_precision import to_half
from lengnuan.model.padding import pad
from lengnuan.model.threads import usable_cpus
from lengnuan.model.tokenizer import PAD_ID, cut

log = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]
Logits = npt.NDArray[np.float32]
# In bfloat16 batches are widened to a multiple of it, because some texts get another answer at widths between
# (measured: docs/decisions.md). Rows of the same number of steps go together.
WIDTH_STEP = 16


class EngineFacts(Protocol):
    """What is told of an engine.

    Attributes:
        runtime: the library, for instance `onnxruntime`.
        provider: the device really in use, for instance `cpu` or `cuda`.
        precision: of the arithmetic: `float32`, `bfloat16` or `float16`.
    """

    runtime: str
    provider: str
    precision: ComputeType


class Engine(EngineFacts, Protocol):
    """Runs batches.

    Attributes:
        threads: of the CPU, at most.
        workers: calls of `run` that may go on at once, each from a thread of its own.
    """

    threads: int
    workers: int

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> Logits:
        """token_ids: int64 [B, T], mask: bool [B, T], True = real token -> logits: float32 [B, K].

        Blocks until the batch is done.
        """
        ...


class OnnxEngine:
    """ONNX Runtime on CPU or CUDA.

    Args:
        model_file: a bundle's graph.
        device: `cuda` means CUDA or an error; `auto` falls back to the CPU with a warning.
        threads: for the CPU; 0 takes what the container's quota allows.
        precision: float16 is for GPUs; a CPU does it too, slower than float32.

    Raises:
        EngineUnavailable: CUDA was asked for and is not usable, or the graph can't be opened.
    """

    runtime = "onnxruntime"
    workers = 1

    def __init__(
        self,
        model_file: Path,
        device: Device = "auto",
        threads: int = 0,
        precision: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.precision: ComputeType = precision
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or usable_cpus()
        options.inter_op_num_threads = 1
        # Every batch has its own shape, so a plan for one shape is memory held for nothing.
        options.enable_mem_pattern = False
        # Idle threads that spin would take the core from the web server and from neighbours in the pod.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self.threads = options.intra_op_num_threads
        self.provider, names = _choose_provider(device)
        graph = to_half(model_file) if precision == "float16" else str(model_file)
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=names)
        except Exception as error:  # onnxruntime's own classes share no base but Exception
            raise EngineUnavailable(f"{model_file}: onnxruntime can't open it: {error}") from error
        self._check_provider(device)

    def _check_provider(self, device: Device) -> None:
        if self.provider == "cuda" and "CUDAExecutionProvider" not in self._session.get_providers():
            if device == "cuda":
                raise EngineUnavailable(
                    "device cuda: onnxruntime could not start CUDA (its log says why): it needs a driver, and the CUDA "
                    "and cuDNN release it was built for; or use device cpu"
                )
            log.warning("device auto: CUDA could not be started, running on the CPU")
            self.provider = "cpu"

    def run(self, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> Logits:
        """See `Engine.run`."""
        (logits,) = self._session.run(["logits"], {"token_ids": token_ids, "mask": mask})
        result: Logits = logits
        return result


def cuda_listed() -> bool:
    """True where this build of ONNX Runtime knows CUDA; whether it also starts is seen when a graph is opened."""
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def _choose_provider(device: Device) -> tuple[str, list[str | tuple[str, dict[str, str]]]]:
    """The provider hoped for, and what to ask ONNX Runtime for."""
    # The arena grows by what a batch needs, not to the next power of two, and keeps it.
    cuda = ("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    available = onnxruntime.get_available_providers()
    if device != "cpu" and "CUDAExecutionProvider" in available:
        return "cuda", [cuda, "CPUExecutionProvider"]
    if device == "cuda":
        raise EngineUnavailable(
            f"device cuda: this onnxruntime has {available} only: `pip uninstall onnxruntime`, then "
            "`pip install onnxruntime-gpu`; or use device cpu"
        )
    return "cpu", ["CPUExecutionProvider"]


def score(engine: Engine, rows: Sequence[Sequence[int]], max_tokens: int, batch_tokens: int = 4096) -> Logits:
    """Logits of many rows of ids, in their order: float32 [N, K]. For offline use; the service has the `Batcher`.

    Args:
        engine: what runs them.
        rows: at least one; each is cut to `max_tokens` (head and tail).
        max_tokens: the network's limit.
        batch_tokens: padded tokens a batch may hold.
    """
    short = [cut(row, max_tokens) for row in rows]
    order = sorted(range(len(short)), key=lambda i: len(short[i]))
    parts: list[Logits] = []
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and max(1, len(short[order[end]])) * (end + 1 - start) <= batch_tokens:
            end += 1
        parts.append(engine.run(*pad([short[i] for i in order[start:end]], PAD_ID)))
        start = end
    logits = np.concatenate(parts)
    logits[order] = logits.copy()
    return logits


def replay_golden(bundle: Bundle, engine: Engine) -> float:
    """Compare the engine's answers to the recorded ones; returns the largest difference of a logit.

    Raises:
        BundleRefused: a text has other ids, or a logit is further off than the manifest allows with the engine's
            precision; gives both.
    """
    if not bundle.manifest.precision.states(engine.precision):
        raise BundleRefused(f"{bundle.path}: states no tolerance for {engine.precision}: use float32")
    bound = bundle.manifest.precision.bound(engine.precision)
    ids = [bundle.tokenizer.encode(answer.text) for answer in bundle.golden]
    for index, (found, answer) in enumerate(zip(ids, bundle.golden, strict=True)):
        if tuple(found) != answer.ids:
            raise BundleRefused(f"{bundle.path}: golden text {index} has ids {found}, recorded {list(answer.ids)}")
    logits = score(engine, ids, bundle.manifest.max_tokens)
    expected = np.array([answer.logits for answer in bundle.golden], dtype=np.float32)
    if logits.shape != expected.shape:
        raise BundleRefused(f"{bundle.path}: logits have shape {logits.shape}, recorded {expected.shape}")
    difference = np.abs(logits - expected).max(axis=1)
    worst = int(np.nan_to_num(difference, nan=np.inf).argmax())
    if not difference[worst] <= bound:
        raise BundleRefused(
            f"{bundle.path}: golden text {worst} has logits {logits[worst].tolist()}, recorded "
            f"{expected[worst].tolist()}: off by more than {bound:g} in {engine.precision}"
        )
    return float(difference[worst])
