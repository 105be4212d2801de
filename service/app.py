"""The application: settings in, FastAPI out. Nothing runs before its lifespan starts."""

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from lengnuan.model.engine import Engine
from lengnuan.service import admin, explain, pages, routes, stream, tokenize
from lengnuan.service.access import REQUEST_ID, Access
from lengnuan.service.authorize import HEADER, Authorize, document_keys
from lengnuan.service.compat import oip, tei
from lengnuan.service.errors import (
    ErrorWriter,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    error_response,
)
from lengnuan.service.holding import LeaveAtTheEnd
from lengnuan.service.keys import Keys
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics
from lengnuan.service.routing import PRIORITY, TIMEOUT
from lengnuan.service.settings import Settings, SettingsRefused, name_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

DESCRIPTION = """Chinese text classification.

Every reply has an `X-Request-Id` header: the caller's own, or a new one. Every error has the body
`{"error": {code, message, param, index, limit, actual, request_id}}`.
"""


def create_app(settings: Settings, engine: Engine | None = None, lifecycle: Lifecycle | None = None) -> FastAPI:
    """Put the service together.

    Args:
        settings: what to serve, and how.
        engine: runs every bundle's graph; None opens each bundle's own.
        lifecycle: of the models; None makes one that loads and runs them in this process.

    Returns:
        The application; its `state` has `settings`, `metrics` and `lifecycle`.

    Raises:
        SettingsRefused: the file with the keys or the admin's token can't be used, or tracing is not installed.
    """
    living = lifecycle or Lifecycle(settings, Metrics(), engine)
    tracing = _open_tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await living.start()
        try:
            yield
        finally:
            await living.stop()
            if tracing is not None:
                await asyncio.to_thread(tracing.shutdown)

    # FastAPI's own /docs page loads its scripts from the internet; this one brings them along.
    app = FastAPIOffline(
        title="Lengnuan",
        description=DESCRIPTION,
        version=importlib.metadata.version("lengnuan"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # It would look for OpenTelemetry's global settings on every request, and send whole addresses, bodies and the
        # messages of exceptions; tracing.py has ours.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.settings, app.state.metrics, app.state.lifecycle = settings, living.metrics, living
    _surround(app, settings, tracing)
    app.add_exception_handler(ServiceError, _reply)
    app.add_exception_handler(HTTPException, _reply)
    for routes_of in (routes, tokenize, explain, stream, tei, oip):
        routes_of.add_routes(app)
    admin.add_routes(app, settings)
    pages.add_docs(app)
    return app


def _open_tracing(endpoint: str) -> "TracerProvider":
    try:
        from lengnuan.service.tracing import open_provider
    except ImportError as error:
        message = f"needs OpenTelemetry ({error}): pip install 'lengnuan[tracing]'"
        raise SettingsRefused(f"{name_of('otlp_endpoint')}: {message}") from error
    return open_provider(endpoint)


def _surround(app: FastAPI, settings: Settings, tracing: "TracerProvider | None") -> None:
    """Put on what every request passes, from the inside out. All of it is pure ASGI: see `Access`."""
    metrics: Metrics = app.state.metrics
    app.add_middleware(routes.Classify, refuse=_reply)
    app.add_middleware(LeaveAtTheEnd)
    if settings.keys_file is not None:
        writers = {"/v2": oip.error_response, "/predict": tei.error_response, "/info": tei.error_response}
        app.add_middleware(
            Authorize, keys=Keys(settings.keys_file, metrics, rates=not settings.http_processes), writers=writers
        )
        document_keys(app)
    if settings.cors_origins:  # outside of the keys, since browsers ask for permission without one
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins.split(","),
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", HEADER, REQUEST_ID, TIMEOUT, PRIORITY),
            expose_headers=(REQUEST_ID, "Retry-After"),
        )
    app.add_middleware(Access, lifecycle=app.state.lifecycle, metrics=metrics)
    if tracing is not None:
        from lengnuan.service.tracing import Tracing

        app.add_middleware(Tracing, tracer=tracing.get_tracer("lengnuan"))


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
