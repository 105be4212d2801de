"""The Open Inference Protocol, version 2, over REST, with its binary data extension.

One input `text`; outputs `label`, `probabilities`, `truncated`, and, only when asked for by name, `logits` and
`tokens`. `parameters` of a request may hold `on_long`, and `timeout` in microseconds. A model that is not ready is 503.
"""

import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel

from lengnuan.service import errors
from lengnuan.service.answers import Answer
from lengnuan.service.compat.messages import (
    InferError,
    InferReply,
    InferRequest,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    TensorMetadata,
)
from lengnuan.service.compat.tensors import Output, OutputTensor, texts_of
from lengnuan.service.connection import LENGTH_DIGITS, read_body, unless_gone
from lengnuan.service.errors import InvalidRequest, ServiceError
from lengnuan.service.routing import (
    BODY_ERRORS,
    JSON,
    RUN_ERRORS,
    RUN_HEADERS,
    TEXT_ERRORS,
    body_of,
    check_count,
    count_texts,
    documented,
    json_reply,
    lifecycle_of,
    patience_s,
    priority_of,
    served_model,
)
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

BINARY = "application/octet-stream"
JSON_LENGTH = "Inference-Header-Content-Length"
# The protocol's own client sends no type at all.
KINDS = (JSON, BINARY, "")
INFER_ERRORS = (errors.UnknownModel, *BODY_ERRORS, *TEXT_ERRORS, *RUN_ERRORS)
BY_DEFAULT = ("label", "probabilities", "truncated")


async def _speak(request: Request) -> None:
    """Every error of the route, whoever raises it, takes the protocol's shape."""
    request.state.error_response = error_response


def error_response(error: ServiceError, _: str) -> Response:
    """An error in the protocol's shape."""
    body = InferError(error=error.sentence()).model_dump_json()
    return Response(body, error.status, error.headers, JSON)


def add_routes(app: FastAPI) -> None:
    """Register the protocol's routes."""
    unready = documented(errors.NotReady, model=InferError)
    unknown = documented(errors.UnknownModel, errors.NotReady, model=InferError)
    model = "/v2/models/{name}"
    version = model + "/versions/{version}"
    for path, handler, reply, responses in (
        ("/v2", server, ServerMetadata, {}),
        ("/v2/health/live", live, Live, unready),
        ("/v2/health/ready", ready, Ready, unready),
        (model, metadata, ModelMetadata, unknown),
        (version, metadata, ModelMetadata, unknown),
        (model + "/ready", model_ready, ModelReady, unknown),
        (version + "/ready", model_ready, ModelReady, unknown),
    ):
        _add(app, path, handler, reply, responses)
    answers: dict[int | str, Any] = {
        200: {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}},  # and JSON, as everywhere
        **documented(*INFER_ERRORS, model=InferError),
    }
    for path in (model + "/infer", version + "/infer"):
        _add(app, path, infer, InferReply, answers, body_of(InferRequest))


def _add(
    app: FastAPI, path: str, handler: Any, reply: type[BaseModel], responses: dict[int | str, Any], body: Any = None
) -> None:
    # Declared here and not as arguments of the handler: FastAPI would promise a 422 for them.
    variables = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("name", "version")
        if f"{{{name}}}" in path
    ]
    app.add_api_route(
        path,
        handler,
        methods=["POST" if body else "GET"],
        response_model=reply,
        responses=responses,
        openapi_extra={"parameters": [*variables, *(RUN_HEADERS if body else [])], **(body or {})},
        dependencies=[Depends(_speak)],
        tags=["open inference protocol"],
    )


async def server() -> Response:
    """Name, release and extensions."""
    release = importlib.metadata.version("lengnuan")
    return json_reply(ServerMetadata(name="lengnuan", version=release, extensions=["binary_tensor_data"]))


async def live(request: Request) -> Response:
    """503 when only a restart can help."""
    lifecycle_of(request).check_alive()
    return json_reply(Live(live=True))


async def ready(request: Request) -> Response:
    """503 while loading, draining, or as long as any model is stalled or failing."""
    lifecycle_of(request).check_ready()
    return json_reply(Ready(ready=True))


async def model_ready(request: Request) -> Response:
    """As `/v2/health/ready`, for this model."""
    served, lifecycle = _served(request), lifecycle_of(request)
    lifecycle.check_ready(lifecycle.slot(served.name))
    return json_reply(ModelReady(name=served.name, ready=True))


async def metadata(request: Request) -> Response:
    """Inputs, outputs and labels of the model."""
    served = _served(request)
    k = len(served.bundle.labels)
    outputs = (
        *(("label", "BYTES", [-1]), ("probabilities", "FP32", [-1, k]), ("truncated", "BOOL", [-1])),
        *(("logits", "FP32", [-1, k]), ("tokens", "INT64", [-1])),
    )
    return json_reply(
        ModelMetadata(
            name=served.name,
            versions=[served.bundle.version],
            platform=f"onnx_{served.engine.runtime}",
            inputs=[TensorMetadata(name="text", datatype="BYTES", shape=[-1])],
            outputs=[TensorMetadata(name=n, datatype=datatype, shape=shape) for n, datatype, shape in outputs],
            labels=list(served.bundle.labels),
        )
    )


async def infer(request: Request) -> Response:
    """Classify the texts; the outputs that were asked for, or else label, probabilities and truncated."""
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s, KINDS)
    length = _json_length(request, len(body))
    wanted = InferRequest.from_body(body[:length])
    served = _served(request)
    texts = texts_of(wanted.inputs[0], body[length:])
    check_count(texts, settings, "inputs")
    count_texts(request, len(texts))
    timeout_us = wanted.parameters.timeout
    deadline = time.monotonic() + patience_s(request, None if timeout_us is None else -(-timeout_us // 1000))
    work = served.classify(texts, wanted.parameters.on_long, False, deadline, priority_of(request))
    answers = await unless_gone(request, work)
    items = [item for item in answers.items if isinstance(item, Answer)]
    return _reply(served, wanted, items, wanted.id or request.state.request_id)


def _served(request: Request) -> ServedModel:
    """The model that the path names."""
    served = served_model(request, request.path_params["name"])
    if request.path_params.get("version", served.bundle.version) != served.bundle.version:
        raise errors.UnknownModel(f"the version served here is {served.bundle.version}")
    return served


def _json_length(request: Request, size: int) -> int:
    """Bytes of a body's JSON part."""
    told = request.headers.get(JSON_LENGTH)
    if told is None:
        return size
    if not (told.isascii() and told.isdecimal() and len(told) <= LENGTH_DIGITS and int(told) <= size):
        raise InvalidRequest(f"{JSON_LENGTH} must be the length of the JSON part, at most that of the body")
    return int(told)


def _reply(served: ServedModel, wanted: InferRequest, items: Sequence[Answer], reply_id: str) -> Response:
    asked: dict[str, bool | None] = {output.name: output.parameters.binary_data for output in wanted.outputs}
    tensors: list[OutputTensor] = []
    tail = b""
    for name, binary in (asked or dict.fromkeys(BY_DEFAULT)).items():
        output = _output(name, items)
        if wanted.parameters.binary_data_output if binary is None else binary:
            tensor, raw = output.as_binary()
            tail += raw
        else:
            tensor = output.as_json()
        tensors.append(tensor)
    reply = InferReply(model_name=served.name, model_version=served.bundle.version, id=reply_id, outputs=tensors)
    content = reply.model_dump_json(exclude_unset=True).encode()
    if not tail:
        return Response(content, media_type=JSON)
    headers = {JSON_LENGTH: str(len(content))}
    return Response(content + tail, headers=headers, media_type=BINARY)


def _output(name: str, items: Sequence[Answer]) -> Output:
    match name:
        case "label":
            return Output(name, "BYTES", [item.prediction.label for item in items])
        case "probabilities":
            return Output(name, "FP32", np.array([item.prediction.probabilities for item in items], np.float32))
        case "logits":
            return Output(name, "FP32", np.array([item.logits for item in items], np.float32))
        case "truncated":
            return Output(name, "BOOL", np.array([item.truncated for item in items]))
        case _:
            return Output(name, "INT64", np.array([item.tokens for item in items], np.int64))
