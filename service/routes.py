"""The routes: read, ask the served model, write. Everything they need is on `app.state`."""

import importlib.metadata
import platform
import time
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.routing import Route

from lengnuan.service import errors
from lengnuan.service.connection import read_body, unless_gone
from lengnuan.service.errors import ErrorReply, ServiceError
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import CONTENT_TYPE, Metrics
from lengnuan.service.replies import classify_reply, model_card
from lengnuan.service.schemas import ClassifyReply, ClassifyRequest, ModelList, Status, Version
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

CLASSIFY_ERRORS = (
    *(errors.EmptyBody, errors.NotUtf8, errors.InvalidJson, errors.UnknownModel),
    *(errors.BodyTooLarge, errors.TooManyTexts, errors.TextTooLarge, errors.UnsupportedMediaType),
    *(errors.InvalidRequest, errors.UnknownField, errors.EmptyText, errors.InvalidUnicode, errors.TextTooLong),
    *(errors.Overloaded, errors.EngineFailed, errors.InternalError, errors.NotReady, errors.DeadlineExceeded),
)


def add_routes(app: FastAPI) -> None:
    """Register every route of the service, with the errors it can answer."""
    app.add_api_route(
        "/v1/classify",
        classify,
        methods=["POST"],
        response_model=ClassifyReply,
        responses=_documented(*CLASSIFY_ERRORS),
        openapi_extra={"requestBody": _json_body(ClassifyRequest)},
        tags=["inference"],
    )
    # FastAPI prepares dependencies and response models that the handler has no use for, at a third of the price of a
    # short request. So its route is the documentation; this plain one, which is found first, answers.
    app.router.routes.insert(0, Route("/v1/classify", classify, methods=["POST"]))
    unready = _documented(errors.NotReady)
    for path, handler, model, responses in (
        ("/v1/models", models, ModelList, unready),
        ("/livez", livez, Status, unready),
        ("/readyz", readyz, Status, unready),
        ("/startupz", startupz, Status, unready),
        ("/version", version, Version, {}),
    ):
        tag = "inference" if path.startswith("/v1") else "operation"
        app.add_api_route(path, handler, methods=["GET"], response_model=model, responses=responses, tags=[tag])
    app.add_api_route("/metrics", metrics, methods=["GET"], response_class=PlainTextResponse, tags=["operation"])


async def classify(request: Request) -> Response:
    """Classify one text or many. Answers are in the order of the texts."""
    started = time.monotonic()
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s)
    wanted = ClassifyRequest.from_body(body)
    received = time.monotonic()
    served = _lifecycle(request).model()
    _check(wanted, served, settings)
    request.state.items = len(wanted.texts)
    timeout_s = wanted.timeout_ms / 1000 if wanted.timeout_ms else settings.request_timeout_s
    work = served.classify(wanted.texts, wanted.on_long, wanted.partial, received + timeout_s)
    answers = await unless_gone(request, work)
    return _json(classify_reply(request.state.request_id, wanted, served, answers, started))


async def models(request: Request) -> Response:
    """The served model: labels, limits, precision, scores, checksums."""
    served = _lifecycle(request).model()
    return _json(ModelList(object="list", data=[model_card(served, request.app.state.settings)]))


async def livez(request: Request) -> Response:
    """503 when only a restart can help."""
    _lifecycle(request).check_alive()
    return _json(Status(status="ok"))


async def readyz(request: Request) -> Response:
    """503 while loading, draining, stalled or failing: send requests elsewhere."""
    _lifecycle(request).check_ready()
    return _json(Status(status="ok"))


async def startupz(request: Request) -> Response:
    """503 until the model is loaded."""
    _lifecycle(request).model()
    return _json(Status(status="ok"))


async def metrics(request: Request) -> Response:
    """Metrics in the text format of Prometheus."""
    registry: Metrics = request.app.state.metrics
    return Response(registry.render(), headers={"Content-Type": CONTENT_TYPE})


async def version(request: Request) -> Response:
    """The running release, and the model once it is loaded."""
    served = _lifecycle(request).served
    return _json(
        Version(
            name="lengnuan",
            version=importlib.metadata.version("lengnuan"),
            python=platform.python_version(),
            model=served.bundle.manifest.name if served else None,
            model_version=served.bundle.version if served else None,
        )
    )


def _check(wanted: ClassifyRequest, served: ServedModel, settings: Settings) -> None:
    """Limits that depend on settings and model, not on the shape of the request."""
    name, longest_ms = served.bundle.manifest.name, int(settings.request_timeout_s * 1000)
    if wanted.model not in (None, name):
        raise errors.UnknownModel(f"the model served here is {name}", param="model")
    if not wanted.texts:
        raise errors.InvalidRequest("input has no text", param="input")
    if len(wanted.texts) > settings.max_texts:
        message = "the request has too many texts; split it"
        raise errors.TooManyTexts(message, param="input", limit=settings.max_texts, actual=len(wanted.texts))
    if wanted.timeout_ms is not None and wanted.timeout_ms > longest_ms:
        message = "timeout_ms is above the service's own limit"
        raise errors.InvalidRequest(message, param="timeout_ms", limit=longest_ms, actual=wanted.timeout_ms)


def _lifecycle(request: Request) -> Lifecycle:
    lifecycle: Lifecycle = request.app.state.lifecycle
    return lifecycle


def _json(reply: BaseModel) -> Response:
    # Unset, not None: an error's empty fields are written, an answer's unasked extras are not.
    return Response(reply.model_dump_json(exclude_unset=True), media_type="application/json")


def _documented(*refusals: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for these errors."""
    statuses = sorted({refusal.status for refusal in refusals})
    return {
        status: {"model": ErrorReply, "description": _describe(r for r in refusals if r.status == status)}
        for status in statuses
    }


def _describe(refusals: Iterable[type[ServiceError]]) -> str:
    return "\n".join(f"- `{refusal.code}`: {(refusal.__doc__ or '').splitlines()[0]}" for refusal in refusals)


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI `requestBody` for a body that the route reads itself."""
    return {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}
