"""A bundle's graph in float16, for GPUs: rewritten when it is opened, so a bundle has one graph for all devices."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lengnuan.model.errors import EngineUnavailable


def to_half(model_file: Path) -> bytes:
    """The graph with the encoder in float16; mean pooling and the linear layer after it stay in float32.

    LayerNormalization keeps its statistics in float32 by itself (its `stash_type`). The score of a masked place,
    -10000, is within float16's range.

    Args:
        model_file: as `training/export.py` writes it.

    Returns:
        The same inputs and outputs, serialised.

    Raises:
        EngineUnavailable: the package onnx is missing, or the graph is built otherwise.
    """
    try:
        import onnx
    except ImportError as error:
        raise EngineUnavailable(
            "precision float16 needs the package onnx: `pip install 'lengnuan[gpu]'`, or use float32"
        ) from error
    model = onnx.load(str(model_file))
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    pooled = next((node for node in graph.node if node.op_type == "Mul" and _weights_tokens(node, makers)), None)
    if pooled is None:
        raise EngineUnavailable(
            f"{model_file}: no mean pooling in this graph, so it can't be run in float16: use float32"
        )
    place = next(i for i, name in enumerate(pooled.input) if not _from_mask(name, makers))
    encoder = list(_before(pooled.input[place], makers))
    _halve(onnx, graph, encoder)
    widened = f"{pooled.input[place]}.float32"
    cast = onnx.helper.make_node("Cast", [pooled.input[place]], [widened], to=onnx.TensorProto.FLOAT)
    graph.node.insert(list(graph.node).index(pooled), cast)
    pooled.input[place] = widened
    serialised: bytes = model.SerializeToString()
    return serialised


def _halve(onnx: ModuleType, graph: Any, nodes: Sequence[Any]) -> None:
    """Let some nodes work in float16: what they make and the constants they take. What nobody takes any more goes."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    halves: dict[str, Any] = {}  # copies, because the head may use the same constant
    for node in nodes:
        for i, name in enumerate(node.input):
            if name in constants and constants[name].data_type == onnx.TensorProto.FLOAT:
                if name not in halves:
                    half = onnx.numpy_helper.to_array(constants[name]).astype("float16")
                    halves[name] = onnx.numpy_helper.from_array(half, f"{name}.float16")
                node.input[i] = halves[name].name
    for node in nodes:
        for attribute in node.attribute if node.op_type == "Cast" else ():
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend([*kept, *halves.values()])


def _weights_tokens(node: Any, makers: dict[str, Any]) -> bool:
    """Of its two inputs exactly one is the mask."""
    return [_from_mask(name, makers) for name in node.input].count(True) == 1


def _from_mask(name: str, makers: dict[str, Any]) -> bool:
    """Whether it is the mask, in another shape and as numbers."""
    while name in makers and makers[name].op_type in ("Cast", "Unsqueeze"):
        name = makers[name].input[0]
    return name == "mask"


def _before(name: str, makers: dict[str, Any]) -> Iterator[Any]:
    """Every node that a value depends on, each once."""
    waiting, seen = [name], set()
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and id(node) not in seen:
            seen.add(id(node))
            waiting += node.input
            yield node
