"""What all peers have in common: the bundle's tokenizer and graph, run as a person would write it at home.

Ids, cutting and temperature are Lengnuan's own (`lengnuan.model`), so that every server gives the same answers and
none is slower for its tokenizer. Batches are padded to their longest text, in the order in which the texts arrive.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lengnuan.model.padding import pad
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import PAD_ID, Tokenizer, cut

ROWS = 32  # texts in a run of the network, and requests in a batch of the servers that have batches
WAIT_MS = 5  # for further requests, in the servers that have batches
TIMEOUT_S = 60  # longer than any wait at 256 clients: an answer that comes late is measured as late
# How the choices reach the worker processes that some servers start: they hand nothing else on.
FOLDER, ENGINE, PRECISION = "PEER_BUNDLE", "PEER_ENGINE", "PEER_PRECISION"

Run = Callable[[dict[str, npt.NDArray[Any]]], npt.NDArray[np.float32]]


class PeerClassifier:
    """A bundle's tokenizer and graph on one thread."""

    def __init__(self, folder: Path, engine: str, precision: str) -> None:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
        self._labels: list[str] = manifest["labels"]
        self._max_tokens: int = manifest["max_tokens"]
        self._temperature: float = manifest["temperature"]
        self._run = ENGINES[engine](folder / "model.onnx", precision)

    def __call__(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Label and probabilities of each text, `ROWS` of them at a time."""
        return [
            {"label": self._labels[int(row.argmax())], "probs": row.tolist()}
            for start in range(0, len(texts), ROWS)
            for row in self._probabilities(texts[start : start + ROWS])
        ]

    def many(self, requests: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """One reply a request, from batches that don't mind the borders between them."""
        answers = iter(self([text for texts in requests for text in texts]))
        return [{"data": [next(answers) for _ in texts]} for texts in requests]

    def _probabilities(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        rows = [cut(self._tokenizer.encode(text), self._max_tokens) for text in texts]
        token_ids, mask = pad(rows, PAD_ID)
        return softmax(self._run({"token_ids": token_ids, "mask": mask}) / self._temperature)


def texts_of(request: dict[str, Any]) -> list[str]:
    """The texts of a request body: `{"input": text}` or `{"input": [text, ...]}`."""
    given = request["input"]
    return [given] if isinstance(given, str) else given


def _onnxruntime(file: Path, precision: str) -> Run:
    import onnxruntime

    if precision != "float32":
        raise ValueError("ONNX Runtime computes in float32 here")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(["logits"], inputs)[0]


def _openvino(file: Path, precision: str) -> Run:
    import openvino

    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # it would round to int8, and the answers be others
    }
    request = openvino.Core().compile_model(str(file), "CPU", properties).create_infer_request()
    return lambda inputs: np.array(request.infer(inputs, share_inputs=True)[0], dtype=np.float32)


ENGINES: dict[str, Callable[[Path, str], Run]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}


def arguments() -> argparse.Namespace:
    """`--port` of a peer's command line; the bundle and the engine go into the environment, for worker processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--engine", choices=ENGINES, default="onnxruntime")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    found = parser.parse_args()
    os.environ |= {FOLDER: str(found.bundle), ENGINE: found.engine, PRECISION: found.precision}
    return found


def from_environment() -> PeerClassifier:
    """The classifier that the command line asked for, in any process of the server."""
    return PeerClassifier(Path(os.environ[FOLDER]), os.environ[ENGINE], os.environ[PRECISION])
