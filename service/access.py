"""What happens around every request: its id, its measures, its log line, and the reply when all else fails.

Pure ASGI, so that a client's hanging up stays visible inside.
"""

import asyncio
import logging
import random
import re
import time
import traceback

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lengnuan.service.errors import ClientClosed, InternalError, NotReady, ServiceError, error_response
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"
LONGEST_REQUEST_ID = 64
UNMATCHED = "unmatched"

# As ASGI has them.
_RAW_ID = REQUEST_ID.lower().encode()
_NO_SNIFFING, _CLOSE = (b"x-content-type-options", b"nosniff"), (b"connection", b"close")
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:-]")
# No two ids are to be alike, and none is a secret: a call of the system would cost more than all else that makes one.
_IDS = random.Random()
QUIET_ROUTES = frozenset({"/livez", "/readyz", "/startupz", "/metrics"})


class Access:
    """Outermost middleware.

    HEAD is answered as GET: the server leaves out the body.

    Args:
        app: what answers.
        lifecycle: while it drains, clients are told to close their connections; a request that the server gives up
            then, as it does at the end of `shutdown_timeout_s`, is answered with `NotReady`.
        metrics: where requests are measured.
    """

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; let the start and the end of the service through."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(Headers(scope=scope))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        method, started, status = scope["method"], time.monotonic(), 0
        if method == "HEAD":
            scope = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (_RAW_ID, request_id.encode()), _NO_SNIFFING]
                message["headers"] = [*headers, _CLOSE] if self._lifecycle.draining else headers
            await send(message)

        async def refuse(error: ServiceError) -> None:
            state["code"] = error.code
            await state.get("error_response", error_response)(error, request_id)(scope, receive, answer)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            _log_mistake(error, request_id)
            if status:
                raise  # half an answer is out: the server closes the connection
            await refuse(InternalError("the service made a mistake; its log has it under the request id"))
        except asyncio.CancelledError:
            if status or not self._lifecycle.draining:
                raise
            await refuse(NotReady("the service shut down before the answer was there"))
        finally:
            self._metrics.http_in_flight.dec()
            self._finish(scope, method, status or ClientClosed.status, time.monotonic() - started)

    def _finish(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Measure and log."""
        route = _template(scope)
        self._metrics.observe_http(route, method, status, seconds)
        fields = {"route": route, "method": method, "status": status, "duration_ms": round(seconds * 1000, 3)}
        state = scope["state"]
        state["route"], state["status"] = route, status
        fields |= {name: state[name] for name in ("request_id", "items", "code") if name in state}
        if "key" in state:
            fields["key"] = state["key"].name
            self._metrics.observe_key(state["key"].name, status, state.get("items", 0))
        log.log(logging.DEBUG if route in QUIET_ROUTES else logging.INFO, "request", extra={"fields": fields})


def _template(scope: Scope) -> str:
    """The path under which the route was registered, never that of the request, which may hold anything."""
    if "route" in scope:
        return str(scope["route"].path)
    # FastAPI names only its own routes in the scope. A plain route (/openapi.json) and a mount (the files of /docs)
    # are known by what they call.
    called = scope.get("endpoint")
    for route in scope["app"].routes if called else ():
        if called in (getattr(route, "endpoint", None), getattr(route, "app", None)):
            return str(route.path)
    return UNMATCHED


def _request_id(headers: Headers) -> str:
    """The caller's own, stripped of what a log or a header can't hold; a new one if nothing is left."""
    return _NOT_IN_AN_ID.sub("", headers.get(REQUEST_ID, ""))[:LONGEST_REQUEST_ID] or f"{_IDS.getrandbits(128):032x}"


def _log_mistake(error: Exception, request_id: str) -> None:
    """Where it happened, without the error's message, which may quote the caller."""
    place = "".join(traceback.format_tb(error.__traceback__))
    fields = {"request_id": request_id, "error": type(error).__name__, "place": place}
    log.error("unexpected error", extra={"fields": fields})
