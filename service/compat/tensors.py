"""Tensors of the Open Inference Protocol, as JSON and in its binary data extension.

Binary data follow the JSON part of a body, in the order of the tensors; `Inference-Header-Content-Length` says where
the JSON ends. Little-endian; a BYTES element is its length as 4 bytes and its bytes.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from lengnuan.service.errors import InvalidRequest, NotUtf8

Datatype = Literal["BYTES", "FP32", "BOOL", "INT64"]
Values = np.ndarray[Any, np.dtype[Any]] | Sequence[str]
NUMPY = {"FP32": "<f4", "BOOL": "?", "INT64": "<i8"}
BINARY_SIZE = "binary_data_size"


class InputTensor(BaseModel):
    """The texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(description="`text`")]
    shape: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**31)]], Field(description="[n] or [n, 1]", max_length=8, fail_fast=True)
    ]
    datatype: Annotated[str, Field(description="`BYTES`")]
    parameters: Annotated[
        dict[str, JsonValue], Field(description=f"`{BINARY_SIZE}`: bytes behind the JSON, instead of `data`")
    ] = {}
    data: Annotated[JsonValue, Field(description="n texts, flat or each in a list of its own")] = None


class OutputTensor(BaseModel):
    """One kind of answer for all texts, row by row."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: list[str] | list[float] | list[bool] | list[int] | None = None


@dataclass(frozen=True)
class Output:
    """An output before it is written. `values`: n strings, or an array of n or [n, K] numbers."""

    name: str
    datatype: Datatype
    values: Values

    @property
    def shape(self) -> list[int]:
        """Sizes of the dimensions."""
        return list(self.values.shape) if isinstance(self.values, np.ndarray) else [len(self.values)]

    def as_json(self) -> OutputTensor:
        """With the numbers or strings in it."""
        data = self.values.ravel().tolist() if isinstance(self.values, np.ndarray) else list(self.values)
        return OutputTensor(name=self.name, datatype=self.datatype, shape=self.shape, data=data)

    def as_binary(self) -> tuple[OutputTensor, bytes]:
        """Without them, and what goes behind the JSON instead."""
        if isinstance(self.values, np.ndarray):
            raw = self.values.astype(NUMPY[self.datatype]).tobytes()
        else:
            raw = b"".join(struct.pack("<I", len(item)) + item for item in (text.encode() for text in self.values))
        parameters = {BINARY_SIZE: len(raw)}
        return OutputTensor(name=self.name, datatype=self.datatype, shape=self.shape, parameters=parameters), raw


def texts_of(tensor: InputTensor, binary: bytes) -> list[str]:
    """The texts of the one input.

    Args:
        tensor: as it stands in the JSON.
        binary: all that follows the JSON.

    Raises:
        ServiceError: another name, type, shape or number of elements, or bytes that are not UTF-8.
    """
    if (tensor.name, tensor.datatype) != ("text", "BYTES"):
        raise InvalidRequest("the input must have the name text and the datatype BYTES", param="inputs")
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ([], [1]):
        raise InvalidRequest("the shape of text must be [n] or [n, 1]", param="inputs")
    unknown = next((name for name in tensor.parameters if name != BINARY_SIZE), None)
    if unknown is not None:
        raise InvalidRequest(f"an input has no parameter but {BINARY_SIZE}", param="inputs")
    if BINARY_SIZE in tensor.parameters:
        texts = _from_binary(tensor, binary)
    else:
        texts = list(_from_json(tensor.data))
        if binary:
            raise InvalidRequest(f"bytes follow the JSON, but the input has no {BINARY_SIZE}", param="inputs")
    if len(texts) != tensor.shape[0]:
        message = "the shape of text does not match its data"
        raise InvalidRequest(message, param="inputs", limit=tensor.shape[0], actual=len(texts))
    return texts


def _from_json(data: JsonValue) -> Iterable[str]:
    if not isinstance(data, list):
        raise InvalidRequest("text needs data, a list of strings", param="inputs")
    for index, item in enumerate(data):
        text = item[0] if isinstance(item, list) and len(item) == 1 else item
        if not isinstance(text, str):
            raise InvalidRequest("data must be n strings, flat or each in a list", param="inputs", index=index)
        yield text


def _from_binary(tensor: InputTensor, binary: bytes) -> list[str]:
    if tensor.data is not None or tensor.parameters[BINARY_SIZE] != len(binary):
        message = f"{BINARY_SIZE} must be the number of bytes behind the JSON, and there must be no data"
        raise InvalidRequest(message, param="inputs", actual=len(binary))
    texts: list[str] = []
    at = 0
    while at < len(binary):
        end = at + 4
        if end <= len(binary):
            end += struct.unpack_from("<I", binary, at)[0]
        if end > len(binary) or end < at + 4:
            raise InvalidRequest("the binary data end in the middle of a text", param="inputs", index=len(texts))
        try:
            texts.append(binary[at + 4 : end].decode())
        except UnicodeDecodeError:
            raise NotUtf8("a text must be UTF-8 (is it GBK?)", param="inputs", index=len(texts)) from None
        at = end
    return texts
