"""The application: settings in, FastAPI out. Nothing runs before its lifespan starts."""

import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from lengnuan.model.engine import Engine
from lengnuan.service import explain, routes, stream, tokenize
from lengnuan.service.access import Access
from lengnuan.service.compat import oip, tei
from lengnuan.service.errors import (
    ErrorWriter,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    error_response,
)
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics
from lengnuan.service.settings import Settings

DESCRIPTION = """Chinese text classification.

Every reply has an `X-Request-Id` header: the caller's own, or a new one. Every error has the body
`{"error": {code, message, param, index, limit, actual, request_id}}`.
"""


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """Put the service together.

    Args:
        settings: what to serve, and how.
        engine: runs the bundle's graph; None opens the bundle's own with ONNX Runtime.

    Returns:
        The application; its `state` has `settings`, `metrics` and `lifecycle`.
    """
    metrics = Metrics()
    lifecycle = Lifecycle(settings, metrics, engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        lifecycle.start()
        try:
            yield
        finally:
            await lifecycle.stop()

    # FastAPI's own /docs page loads its scripts from the internet; this one brings them along.
    app = FastAPIOffline(
        title="Lengnuan",
        description=DESCRIPTION,
        version=importlib.metadata.version("lengnuan"),
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
        # It would look for OpenTelemetry's global settings on every request, and put whole addresses into spans.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.lifecycle = lifecycle
    app.add_middleware(Access, lifecycle=lifecycle, metrics=metrics)
    app.add_exception_handler(ServiceError, _reply)
    app.add_exception_handler(HTTPException, _reply)
    for routes_of in (routes, tokenize, explain, stream, tei, oip):
        routes_of.add_routes(app)
    return app


async def _reply(request: Request, error: Exception) -> Response:
    """The one handler: every error gets the same shape, or that of the protocol that the route speaks."""
    refusal = error if isinstance(error, ServiceError) else _from_starlette(error)
    request.state.code = refusal.code
    write: ErrorWriter = getattr(request.state, "error_response", error_response)
    return write(refusal, request.state.request_id)


def _from_starlette(error: Exception) -> ServiceError:
    """What the router itself refuses."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        return NotFound("no such path; /docs lists them")
    if error.status_code == 405:
        refusal = MethodNotAllowed("the path has no such method")
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        refusal.headers = {"Allow": ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))}
        return refusal
    return InvalidRequest("the request can't be read")
