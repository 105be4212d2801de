"""A graph can name a file for its weights. It must not lead an engine out of the bundle's folder."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tiny_bundle import tiny_graph, tiny_tokenizer

from lengnuan.model.bundle import MODEL
from lengnuan.model.engine import Engine, OnnxEngine
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_engine import OpenVinoEngine
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID

OUTSIDE, INSIDE = "secret.bin", "weights.bin"


def with_onnxruntime(file: Path) -> Engine:
    return OnnxEngine(file, "cpu", threads=1)


def with_openvino(file: Path) -> Engine:
    return OpenVinoEngine(file, "float32", threads=1)


every_engine = pytest.mark.parametrize("open_graph", [with_onnxruntime, with_openvino])


def bundle_folder(root: Path, location: str) -> Path:
    """A graph whose table lies in `location`; the bytes are there, inside and outside alike."""
    folder = root / "bundle"
    folder.mkdir()
    graph = tiny_graph(tiny_tokenizer())
    [table] = [tensor for tensor in graph.graph.initializer if tensor.name == "table"]
    (root / OUTSIDE).write_bytes(table.raw_data)
    if location == "a link":
        (folder / INSIDE).symlink_to(root / OUTSIDE)
        location = INSIDE
    else:
        (folder / INSIDE).write_bytes(table.raw_data)
    length = str(len(table.raw_data))
    table.ClearField("raw_data")
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, told in (("location", location), ("offset", "0"), ("length", length)):
        table.external_data.add(key=key, value=told)
    (folder / MODEL).write_bytes(graph.SerializeToString())
    return folder / MODEL


@every_engine
@pytest.mark.parametrize("location", [f"../{OUTSIDE}", f"./x/../../{OUTSIDE}", "{root}/" + OUTSIDE, "a link"])
def test_a_file_outside_is_refused(tmp_path: Path, location: str, open_graph: Callable[[Path], Engine]) -> None:
    file = bundle_folder(tmp_path, location.replace("{root}", str(tmp_path)))
    with pytest.raises(EngineUnavailable, match=MODEL):
        open_graph(file)


@every_engine
def test_a_file_inside_is_read_as_if_it_were_in_the_graph(tmp_path: Path, open_graph: Callable[[Path], Engine]) -> None:
    whole = tmp_path / MODEL
    whole.write_bytes(tiny_graph(tiny_tokenizer()).SerializeToString())
    batch = pad([[260, 261], [270]], PAD_ID)
    found = open_graph(bundle_folder(tmp_path, INSIDE)).run(*batch)
    assert found.tolist() == open_graph(whole).run(*batch).tolist()
