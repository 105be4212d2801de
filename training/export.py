"""Network to ONNX, and the proof that both answer alike."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

from lengnuan.model.bundle import Tensor as TensorEntry
from lengnuan.model.bundle import WeightType
from lengnuan.model.encoder import Classifier
from lengnuan.model.engine import Engine
from lengnuan.training.errors import ParityFailed

log = logging.getLogger(__name__)

OPSET = 18
PARITY_LIMIT = 1e-4  # largest difference of a logit, float32 against float32
PARITY_BATCHES = (1, 2, 3, 7, 64)
LARGE = 256  # elements; smaller constants stay float32: nothing to gain, and scalars steer the graph
SCALE_BITS = 16
SMALLEST_PEAK = 1e-30  # a row with nothing above it counts as zeros: its scale might not be a normal float32

Case = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
Floats = npt.NDArray[np.float32]


def round_weights(model: Classifier, weight_type: WeightType) -> None:
    """Give `model` the values that the stored weights will have, so that every later figure is the shipped model's."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if weight_type == "float16":
                tensor.copy_(tensor.half().float())
            elif weight_type == "int8" and tensor.ndim == 2 and tensor.numel() >= LARGE:
                codes, scale = int8_codes(tensor.detach().numpy(), axis=1)
                tensor.copy_(torch.from_numpy(codes * scale))


def int8_codes(values: Floats, axis: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """The nearest `codes * scale` to a matrix, with one scale for each vector along `axis`.

    A scale keeps 16 bits only, rounded up. So a product with a code of 7 bits is exact, and rounding what is already
    rounded changes nothing: `export_onnx` finds the same codes and scales again from the values alone.

    Args:
        values: float32 [R, C].
        axis: 1 for a scale per row, 0 for a scale per column.

    Returns:
        codes: int8 [R, C] from -127 to 127; scale: float32 [R, 1] or [1, C], and 1 where all is zero.
    """
    peak = np.abs(values).max(axis=axis, keepdims=True)
    fraction, exponent = np.frexp(peak / np.float32(127))
    scale = np.ldexp(np.ceil(np.ldexp(fraction, SCALE_BITS)), exponent - SCALE_BITS)
    scale = np.where(peak < SMALLEST_PEAK, np.float32(1), scale)
    return np.rint(values / scale).astype(np.int8), scale


def export_onnx(model: Classifier, path: Path, weight_type: WeightType, metadata: Mapping[str, str]) -> None:
    """Write the graph: token_ids int64 [batch, sequence], mask bool [batch, sequence] -> logits [batch, classes].

    Args:
        model: in evaluation mode, float32, on the CPU.
        path: the file to write; a single one, weights inside.
        weight_type: how large weights are stored, after `round_weights` with the same type; the arithmetic is float32.
        metadata: goes into the graph, so that the file alone tells its labels and text pipeline.

    Raises:
        ParityFailed: the exporter froze an axis to the size of its example, or a matrix of the graph is not what
            `round_weights` makes of an int8 one.
    """
    model.eval()
    token_ids = torch.zeros(2, 3, dtype=torch.int64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=model.encoder.config.max_tokens)}
    with _quiet_exporter():
        program = torch.onnx.export(
            model,
            (token_ids, mask),
            dynamo=True,
            opset_version=OPSET,
            input_names=["token_ids", "mask"],
            output_names=["logits"],
            dynamic_shapes={"token_ids": axes, "mask": axes},
            verbose=False,
        )
    if program is None:
        raise ParityFailed("torch.onnx.export returned nothing")
    graph = program.model_proto
    check_axes(graph, model.head.out_features)
    if weight_type != "float32":
        _store_small(graph, weight_type)
    del graph.metadata_props[:]
    helper.set_model_props(graph, dict(metadata))
    for node in graph.graph.node:  # the exporter's notes hold source paths of the machine it ran on
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.checker.check_model(graph)
    onnx.save_model(graph, path)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's talk of itself (its own deprecations, no torchvision) away from the user."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def check_axes(graph: onnx.ModelProto, classes: int) -> None:
    """Both inputs and the output must have the named axes that the bundle promises.

    Raises:
        ParityFailed: names the tensor and the axes found.
    """
    wanted = {tensor.name: list(tensor.shape) for tensor in (*INPUTS, *graph_outputs(classes))}
    for value in (*graph.graph.input, *graph.graph.output):
        found = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if found != wanted.get(value.name):
            raise ParityFailed(f"exported graph: {value.name} has axes {found}, not {wanted.get(value.name)}")


INPUTS = (
    TensorEntry(name="token_ids", type="int64", shape=("batch", "sequence")),
    TensorEntry(name="mask", type="bool", shape=("batch", "sequence")),
)


def graph_outputs(classes: int) -> tuple[TensorEntry, ...]:
    """`outputs` of the manifest; `INPUTS` are its inputs."""
    return (TensorEntry(name="logits", type="float32", shape=("batch", classes)),)


def graph_weights(path: Path) -> dict[str, torch.Tensor]:
    """The parameters in a graph of `export_onnx`, float32 by our names; as rounded as they are stored there.

    The exporter renames the matrices that it transposes, but not their biases: a matrix is the other factor of what a
    bias is added to.
    """
    graph = onnx.load(path).graph
    values = _restored({constant.name: numpy_helper.to_array(constant) for constant in graph.initializer})
    products = {node.output[0]: node.input for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type == "Add" and node.input[0] in products and node.input[1].endswith(".bias"):
            matrix = products[node.input[0]][1]
            values[node.input[1].removesuffix("bias") + "weight"] = values.pop(matrix).T
    return {name: torch.from_numpy(np.array(value, order="C")) for name, value in values.items()}


def _restored(stored: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """What `_store_small` kept, as it was before."""
    values: dict[str, npt.NDArray[Any]] = {}
    for key, kept in stored.items():
        name, _, kind = key.rpartition(".")
        if kind == "int8":
            values[name] = kept * stored[f"{name}.scale"]
        elif kind == "half":
            values[name] = kept.astype(np.float32)
        elif f"{name}.int8" not in stored:
            values[key] = kept
    return values


def _store_small(graph: onnx.ModelProto, weight_type: WeightType) -> None:
    """Keep large float32 constants in fewer bytes, and nodes that turn them back: a smaller file, the same arithmetic.

    The runtime folds those nodes once, at start.
    """
    constants: list[TensorProto] = []
    nodes: list[NodeProto] = []
    for constant in graph.graph.initializer:
        values = numpy_helper.to_array(constant)
        large = constant.data_type == TensorProto.FLOAT and values.size >= LARGE
        if large and weight_type == "float16":
            stored, restoring = _as_float16(constant.name, values)
        elif large and values.ndim == 2:  # long biases stay float32, as `round_weights` left them
            stored, restoring = _as_int8(constant.name, values)
        else:
            stored, restoring = [constant], []
        constants += stored
        nodes += restoring
    nodes += graph.graph.node
    names = {constant.name for constant in constants}
    shapes = [value for value in graph.graph.value_info if value.name not in names]
    for field, content in (("initializer", constants), ("node", nodes), ("value_info", shapes)):
        graph.graph.ClearField(field)
        getattr(graph.graph, field).extend(content)


def _as_float16(name: str, values: Floats) -> tuple[list[TensorProto], list[NodeProto]]:
    """What to store for the constant `name`, and the node that makes it float32 again."""
    half = numpy_helper.from_array(values.astype(np.float16), f"{name}.half")
    return [half], [helper.make_node("Cast", [half.name], [name], name=f"{name}.cast", to=TensorProto.FLOAT)]


def _as_int8(name: str, values: Floats) -> tuple[list[TensorProto], list[NodeProto]]:
    """As `_as_float16`, for a matrix that `round_weights` has rounded by rows: float32 [R, C].

    The exporter may have transposed and renamed it. A rounded matrix has the exact codes along one axis, whatever it
    is called; that product bit for bit is what makes the axis the right one.

    Raises:
        ParityFailed: no codes give exactly these values.
    """
    for axis in (1, 0):
        codes, scale = int8_codes(values, axis)
        if (codes * scale).tobytes() == values.tobytes():
            stored = [numpy_helper.from_array(codes, f"{name}.int8"), numpy_helper.from_array(scale, f"{name}.scale")]
            parts = [f"{name}.cast", f"{name}.scale"]
            cast = helper.make_node("Cast", [f"{name}.int8"], parts[:1], name=f"{name}.cast", to=TensorProto.FLOAT)
            return stored, [cast, helper.make_node("Mul", parts, [name], name=f"{name}.product")]
    raise ParityFailed(f"exported graph: {name} {list(values.shape)} is not what round_weights makes of an int8 matrix")


def parity_cases(vocab_size: int, max_tokens: int, seed: int = 0) -> Iterator[Case]:
    """Random ragged batches over batch {1, 2, 3, 7, 64} x length {1, 2, 17, max}; each has a fully padded row.

    Yields:
        token_ids: int64 [B, T] and mask: bool [B, T]. A batch of one comes twice: as a full row, and as padding only.
    """
    random = np.random.default_rng(seed)
    for batch in PARITY_BATCHES:
        for length in sorted({1, min(2, max_tokens), min(17, max_tokens), max_tokens}):
            token_ids = random.integers(0, vocab_size, (batch, length))
            lengths = random.integers(1, length + 1, batch)
            lengths[0] = length
            mask = np.arange(length) < lengths[:, None]
            yield token_ids, mask
            mask = mask.copy()
            mask[-1] = False
            yield token_ids, mask


@torch.no_grad()
def check_parity(model: Classifier, engine: Engine) -> dict[str, Any]:
    """Compare network and exported graph over `parity_cases`.

    Returns:
        For the report: the largest difference of a logit, the limit, and how many batches were compared.

    Raises:
        ParityFailed: a logit is not finite or differs by more than `PARITY_LIMIT`; names the batch's shape.
    """
    config = model.encoder.config
    worst = 0.0
    count = 0
    for token_ids, mask in parity_cases(config.vocab_size, config.max_tokens):
        expected = model(torch.from_numpy(token_ids), torch.from_numpy(mask)).numpy()
        found = engine.run(token_ids, mask)
        difference = float(np.abs(found - expected).max())
        if not np.isfinite(found).all() or not difference <= PARITY_LIMIT:
            raise ParityFailed(
                f"batch {token_ids.shape[0]} x length {token_ids.shape[1]}: network and graph differ by "
                f"{difference:g}, the limit is {PARITY_LIMIT:g}: nothing was exported"
            )
        worst = max(worst, difference)
        count += 1
    log.info("export: network and graph agree on %d batches, largest difference %.1e", count, worst)
    return {"max_difference": worst, "limit": PARITY_LIMIT, "batches": count}
