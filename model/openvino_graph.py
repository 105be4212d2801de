"""What is changed in a bundle's graph before OpenVINO compiles it: the same answers, with less to do.

The functions take OpenVINO's module, because only `openvino_engine.py` imports it, and change a graph in place.
"""

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

KEPT = "kept"
PLACE = "place"
# OpenVINO keeps what it has prepared for each number of tokens. In steps it has soon seen them all; one by one the
# memory of a service grows for hours (docs/decisions.md).
PACK_STEP = 16


def pack_tokens(openvino: ModuleType, graph: Any) -> bool:
    """Let everything but attention run on the real tokens alone, in one row, whatever the lengths of the texts.

    Embeddings, projections, feed-forward and norms treat every token by itself, and are nine tenths of the work at the
    lengths of reviews; only attention and pooling need to know which tokens stand in one row. So the tokens are laid
    side by side behind the embeddings and after each attention, and back into their rows before each attention and
    before the pooling. At the places of padding stands another token's vector then; the mask hides it, as it hides
    padding. The method is known as unpadding, from fast BERT training (NVIDIA's MLPerf 1.1 submission, and ModernBERT,
    arXiv:2412.13663).

    The graph gets two inputs more, which `packing` makes of the mask.

    Returns:
        False, and the graph is as it was, where it is not built like those that `training/export.py` writes.
    """
    found = _find_places(graph)
    if found is None:
        return False
    summed, entries, exits, weighted = found
    ops = openvino.opset13
    kept, place = (_index_input(openvino, name) for name in (KEPT, PLACE))
    token_ids = next(node for node in graph.get_parameters() if "token_ids" in node.output(0).get_names())
    shape = ops.shape_of(token_ids)

    def integers(*values: int) -> Any:
        return ops.constant(np.array(values, dtype=np.int64))

    def packed(rows: Any) -> Any:
        """[B, T, C] -> [1, N, C]."""
        flat = ops.reshape(rows, integers(-1, _width(rows)), special_zero=False)
        return ops.unsqueeze(ops.gather(flat, kept, integers(0)), integers(0)).output(0)

    def in_rows(tokens: Any) -> Any:
        """[1, N, C] -> [B, T, C]."""
        flat = ops.gather(ops.squeeze(tokens, integers(0)), place, integers(0))
        whole = ops.concat([shape, integers(_width(tokens))], axis=0)
        return ops.reshape(flat, whole, special_zero=False).output(0)

    for node in (summed, *exits):
        readers = list(node.output(0).get_target_inputs())
        tokens = packed(node.output(0))
        for reader in readers:
            reader.replace_source_output(tokens)
    for entry in (*(node.input(0) for node in entries), weighted):
        entry.replace_source_output(in_rows(entry.get_source_output()))
    graph.add_parameters([kept, place])
    graph.validate_nodes_and_infer_types()
    return True


def packing(mask: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.int32]]:
    """The inputs that `pack_tokens` adds.

    Args:
        mask: bool [B, T], True = real token.

    Returns:
        `kept`: int32 [N], where the real tokens stand among the B * T, and the first place again and again up to a
        multiple of `PACK_STEP`. `place`: int32 [B * T], where each of those finds a vector among the N: its own if it
        is real.
    """
    real = mask.ravel()
    found = np.flatnonzero(real)
    kept = np.zeros(max(1, -(-len(found) // PACK_STEP)) * PACK_STEP, dtype=np.int32)
    kept[: len(found)] = found
    place = np.maximum(np.cumsum(real) - 1, 0)
    return {KEPT: kept, PLACE: place.astype(np.int32)}


def cut_off_head(openvino: ModuleType, graph: Any) -> Any:
    """Take the last matrix product and what follows it out of a graph.

    OpenVINO chooses the kernel of that product by the number of rows, and would round its result to bfloat16.

    Returns:
        That part as a graph of its own, from the pooled vectors float32 [B, C] to the logits; None, and the graph as it
        was, where the last product does not take one vector a text.
    """
    product = _of_type(graph, "MatMul")[-1:]
    if not product or product[0].input_value(0).get_partial_shape().rank != 2:
        return None
    pooled = product[0].input_value(0)
    entry = openvino.opset13.parameter(pooled.get_partial_shape(), openvino.Type.f32)
    product[0].input(0).replace_source_output(entry.output(0))
    head = openvino.Model(graph.get_results(), [entry], "head")
    for result in graph.get_results():
        graph.remove_result(result)
    graph.add_results([openvino.opset13.result(pooled)])
    return head


def unpack_matrices(openvino: ModuleType, graph: Any) -> None:
    """Put matrices that are stored as int8 and a scale into the graph as the float32 that they stand for.

    Or else OpenVINO keeps them as int8 and unpacks them again for every batch (docs/decisions.md). The embeddings stay
    as they are: of those only the rows that are looked up get unpacked.
    """
    for node in _of_type(graph, "MatMul"):
        product = node.input_value(1).get_node()
        if product.get_type_name() != "Multiply":
            continue
        cast, scale = (product.input_value(i).get_node() for i in range(2))
        if cast.get_type_name() != "Convert" or scale.get_type_name() != "Constant":
            continue
        stored = cast.input_value(0).get_node()
        if stored.get_type_name() == "Constant":
            matrix = openvino.opset13.constant(stored.data.astype(np.float32) * scale.data)
            node.input(1).replace_source_output(matrix.output(0))


def _find_places(graph: Any) -> tuple[Any, list[Any], list[Any], Any] | None:
    """Where tokens become and leave rows, or None where that is not plain.

    Returns:
        The sum of the embeddings, the reshapes into heads, as many out of them, and the input of the pooling.
    """
    lookups = [node for node in _of_type(graph, "Gather") if _reads(node.input_value(1), "token_ids")]
    sums = [reader.get_node() for node in lookups for reader in node.output(0).get_target_inputs()]
    reshapes = _of_type(graph, "Reshape")
    entries = [node for node in reshapes if (_rank(node.input_value(0)), _rank(node.output(0))) == (3, 5)]
    exits = [node for node in reshapes if (_rank(node.input_value(0)), _rank(node.output(0))) == (4, 3)]
    pooled = [node for node in _of_type(graph, "Multiply") if _is_weighting(node)]
    whole = len(sums) == len(pooled) == 1 and sums[0].get_type_name() == "Add" and _rank(sums[0].output(0)) == 3
    if not whole or not entries or len(entries) != len(exits):
        return None
    hidden = next(pooled[0].input(i) for i in range(2) if _width(pooled[0].input_value(i)) > 1)
    return sums[0], entries, exits, hidden


def _is_weighting(node: Any) -> bool:
    """Vectors [B, T, C] times one number a token [B, T, 1]."""
    values = [node.input_value(i) for i in range(2)]
    if any(_rank(value) != 3 or value.get_partial_shape()[2].is_dynamic for value in values):
        return False
    widths = sorted(map(_width, values))
    return widths[0] == 1 < widths[1]


def _index_input(openvino: ModuleType, name: str) -> Any:
    node = openvino.opset13.parameter(openvino.PartialShape([-1]), openvino.Type.i32, name)
    node.output(0).set_names({name})
    return node


def _of_type(graph: Any, name: str) -> list[Any]:
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == name]


def _reads(value: Any, name: str) -> bool:
    """Whether it is that input of the graph, maybe converted to another type of integer."""
    node = value.get_node()
    if node.get_type_name() == "Convert":
        value = node.input_value(0)
    return name in value.get_names()


def _rank(value: Any) -> int:
    rank = value.get_partial_shape().rank
    return -1 if rank.is_dynamic else int(rank.get_length())


def _width(value: Any) -> int:
    return int(value.get_partial_shape()[2].get_length())
