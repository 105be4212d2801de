"""Which engine runs a bundle on this machine, and in which precision."""

import logging
from typing import Literal

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Device, Engine, OnnxEngine, cuda_listed, replay_golden
from lengnuan.model.errors import EngineUnavailable, ModelError
from lengnuan.model.openvino_engine import OpenVinoEngine

log = logging.getLogger(__name__)

EngineName = Literal["auto", "onnxruntime", "openvino"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]


def open_engine(
    bundle: Bundle,
    device: Device = "auto",
    engine: EngineName = "auto",
    precision: PrecisionName = "auto",
    threads: int = 0,
    workers: int = 1,
) -> Engine:
    """Open what is to run a bundle; it has given the golden answers before it is returned.

    `auto` takes CUDA where it works, and on a CPU OpenVINO. There it takes float16 and here, where the CPU has it,
    bfloat16, if the bundle states what that does to its answers and the golden ones are within it; else float32; and
    ONNX Runtime where OpenVINO is not installed. Whatever was wanted and can't be had is logged. Anything but `auto` is
    had, or an error.

    Args:
        bundle: loaded and checked.
        device: `cuda` is ONNX Runtime's.
        engine: the runtime.
        precision: of the arithmetic.
        threads: for the CPU; 0 takes what the container's quota allows.
        workers: OpenVINO's calls that may go on at once; 0 takes one a thread.

    Raises:
        EngineUnavailable: what was asked for is not here, or two wishes exclude each other; says what to change.
        BundleRefused: a golden text has other ids, or a logit that is off by more than the manifest allows.
    """
    opened, difference = _open(bundle, device, engine, precision, threads, workers)
    log.info(
        "engine opened: %s on %s in %s, %d threads, up to %d batches at once",
        *(opened.runtime, opened.provider, opened.precision, opened.threads, opened.workers),
    )
    bound = bundle.manifest.precision.bound(opened.precision)
    log.info(
        "golden answers replayed: %d texts, largest difference %.2g, allowed in %s: %g",
        *(len(bundle.golden), difference, opened.precision, bound),
    )
    return opened


def _open(
    bundle: Bundle, device: Device, engine: EngineName, precision: PrecisionName, threads: int, workers: int
) -> tuple[Engine, float]:
    """An engine and the largest difference of its golden answers."""
    if engine == "openvino" and (device == "cuda" or precision == "float16"):
        raise EngineUnavailable("engine openvino runs on the CPU only: use device cpu, or engine onnxruntime")
    if device == "cuda" or engine == "onnxruntime" or precision == "float16":
        if precision == "bfloat16":
            raise EngineUnavailable(
                "precision bfloat16 is OpenVINO's, on a CPU; ONNX Runtime computes in float32, and on CUDA in float16"
            )
        return _onnxruntime(bundle, device, precision, threads)
    if device == "auto" and engine == "auto" and precision != "bfloat16" and cuda_listed():
        opened, difference = _onnxruntime(bundle, "auto", precision, threads)
        if opened.provider == "cuda":
            return opened, difference
    if precision == "bfloat16":
        return _bfloat16(bundle, threads, workers)
    if precision == "auto":
        try:
            return _bfloat16(bundle, threads, workers)
        except ModelError as error:
            log.info("precision auto takes float32: %s", error)
    return _replayed(bundle, _float32(bundle, engine, threads, workers))


def _onnxruntime(bundle: Bundle, device: Device, precision: PrecisionName, threads: int) -> tuple[Engine, float]:
    """On CUDA in float16 where the bundle states what that does and its golden answers are within it; else in float32.

    Raises:
        ModelError: CUDA or float16 was asked for and can't be had.
    """
    states = bundle.manifest.precision.states("float16")
    if precision == "float16" and (device == "cpu" or not states):
        reason = "is for CUDA" if device == "cpu" else f"{bundle.path} does not state what it does to the answers"
        raise EngineUnavailable(f"precision float16: {reason}: use float32, or `lengnuan-train measure` on a GPU")
    if precision == "float16" or (precision == "auto" and device != "cpu" and states and cuda_listed()):
        try:
            return _replayed(bundle, OnnxEngine(bundle.model_file, "cuda", threads, "float16"))
        except ModelError as error:
            if precision == "float16":
                raise
            log.info("precision auto takes float32: %s", error)
    return _replayed(bundle, OnnxEngine(bundle.model_file, device, threads))


def _bfloat16(bundle: Bundle, threads: int, workers: int) -> tuple[Engine, float]:
    """OpenVINO in bfloat16, whose golden answers are within the bundle's bound for it.

    Raises:
        ModelError: there is no bound, no bfloat16 here, or an answer is outside.
    """
    if not bundle.manifest.precision.states("bfloat16"):
        raise EngineUnavailable(
            f"precision bfloat16: {bundle.path} does not state what it does to the answers; "
            "`lengnuan-train measure` finds out, or use float32"
        )
    opened = OpenVinoEngine(bundle.model_file, "bfloat16", threads, bundle.manifest.max_tokens, workers)
    return _replayed(bundle, opened)


def _float32(bundle: Bundle, engine: EngineName, threads: int, workers: int) -> Engine:
    """OpenVINO, the faster of the two in float32 as well (docs/decisions.md), or ONNX Runtime."""
    try:
        return OpenVinoEngine(bundle.model_file, "float32", threads, workers=workers)
    except EngineUnavailable as error:
        if engine == "openvino":
            raise
        log.info("engine auto takes onnxruntime: %s", error)
    return OnnxEngine(bundle.model_file, "cpu", threads)


def _replayed(bundle: Bundle, engine: Engine) -> tuple[Engine, float]:
    return engine, replay_golden(bundle, engine)
