"""The routes: read, ask the served model, write. Everything they need is on `app.state`."""

import importlib.metadata
import platform
import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lengnuan.service import errors
from lengnuan.service.connection import read_body, unless_gone
from lengnuan.service.errors import ServiceError
from lengnuan.service.metrics import CONTENT_TYPE
from lengnuan.service.replies import classify_reply, model_card
from lengnuan.service.routing import (
    BODY_ERRORS,
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
from lengnuan.service.schemas import ClassifyReply, ClassifyRequest, ModelList, Status, Version
from lengnuan.service.settings import Settings

CLASSIFY = "/v1/classify"
CLASSIFY_ERRORS = (errors.UnknownModel, *BODY_ERRORS, *TEXT_ERRORS, *RUN_ERRORS)


def add_routes(app: FastAPI) -> None:
    """Register every route of the service, with the errors it can answer."""
    app.add_api_route(
        CLASSIFY,
        classify,
        methods=["POST"],
        response_model=ClassifyReply,
        responses=documented(*CLASSIFY_ERRORS),
        openapi_extra={**body_of(ClassifyRequest), "parameters": RUN_HEADERS},
        tags=["inference"],
    )
    unready = documented(errors.NotReady)
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


class Classify:
    """Middleware: answers `/v1/classify` ahead of the router.

    FastAPI and Starlette have eight more layers between here and a handler, which does without them. So FastAPI's own
    route is the documentation, and answers what is no POST.

    Args:
        app: what answers all else.
        refuse: makes the reply of an error.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[Request, ServiceError], Awaitable[Response]]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != CLASSIFY or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = classify  # what a router would say of it
        request = Request(scope, receive, send)
        try:
            response = await classify(request)
        except ServiceError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)


async def classify(request: Request) -> Response:
    """Classify one text or many. Answers are in the order of the texts."""
    started = time.monotonic()
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s)
    wanted = ClassifyRequest.from_body(body)
    received = time.monotonic()
    served = served_model(request, wanted.model)
    check_count(wanted.texts, settings)
    count_texts(request, len(wanted.texts))
    deadline = received + patience_s(request, wanted.timeout_ms)
    priority = priority_of(request, wanted.priority)
    work = served.classify(wanted.texts, wanted.on_long, wanted.partial, deadline, priority)
    answers = await unless_gone(request, work)
    return json_reply(classify_reply(request.state.request_id, wanted, served, answers, started))


async def models(request: Request) -> Response:
    """The served models, the default first: names, labels, limits, precision, scores, checksums."""
    lifecycle = lifecycle_of(request)
    settings: Settings = request.app.state.settings
    cards = [model_card(lifecycle.model(slot.name), slot.aliases, settings) for slot in lifecycle.slots.values()]
    return json_reply(ModelList(object="list", data=cards))


async def livez(request: Request) -> Response:
    """503 when only a restart can help."""
    lifecycle_of(request).check_alive()
    return json_reply(Status(status="ok"))


async def readyz(request: Request) -> Response:
    """503 while loading, draining, stalled or failing: send requests elsewhere."""
    lifecycle_of(request).check_ready()
    return json_reply(Status(status="ok"))


async def startupz(request: Request) -> Response:
    """503 until every model is loaded."""
    lifecycle_of(request).model()
    return json_reply(Status(status="ok"))


async def metrics(request: Request) -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(await lifecycle_of(request).render_metrics(), headers={"Content-Type": CONTENT_TYPE})


async def version(request: Request) -> Response:
    """The running release, and the default model once it is loaded."""
    served = lifecycle_of(request).served
    return json_reply(
        Version(
            name="lengnuan",
            version=importlib.metadata.version("lengnuan"),
            python=platform.python_version(),
            model=served.name if served else None,
            model_version=served.bundle.version if served else None,
        )
    )
