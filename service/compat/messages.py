"""Messages of the Open Inference Protocol, but for its tensors."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from lengnuan.service.bodies import Body
from lengnuan.service.compat.tensors import InputTensor, OutputTensor
from lengnuan.service.schemas import LARGEST, OnLongField


class InferParameters(Body):
    """Parameters of a request."""

    on_long: OnLongField = "truncate"
    timeout: Annotated[int | None, Field(ge=1, le=LARGEST, description="give up after so many microseconds")] = None
    binary_data_output: Annotated[bool, Field(description="outputs as binary data, unless they say otherwise")] = False


class OutputParameters(BaseModel):
    """Parameters of a requested output."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    binary_data: bool | None = None


class RequestedOutput(BaseModel):
    """An output to return."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal["label", "probabilities", "truncated", "logits", "tokens"]
    parameters: OutputParameters = OutputParameters()


class InferRequest(Body):
    """Texts to classify."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["房间很干净"]}]}
        }
    )

    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1, fail_fast=True)]
    id: Annotated[str | None, Field(max_length=256, description="comes back in the reply")] = None
    parameters: InferParameters = InferParameters()
    outputs: Annotated[
        tuple[RequestedOutput, ...],
        Field(max_length=16, fail_fast=True, strict=False, description="none: label, probabilities and truncated"),
    ] = ()


class InferReply(BaseModel):
    """The answers, one tensor a kind."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str
    model_version: str
    id: Annotated[str, Field(description="that of the request's body, or else the request id")]
    outputs: list[OutputTensor]


class InferError(BaseModel):
    """The body of every error of this protocol."""

    error: str


class ServerMetadata(BaseModel):
    """What the server is."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or output; -1 is any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What the model takes and gives; `labels` is the order of `probabilities` and `logits`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    labels: list[str]


class Live(BaseModel):
    """Alive."""

    live: Literal[True]


class Ready(BaseModel):
    """All models are ready."""

    ready: Literal[True]


class ModelReady(BaseModel):
    """The model is ready."""

    name: str
    ready: Literal[True]
