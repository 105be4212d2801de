"""Who may ask: the middleware that wants an API key, and what the OpenAPI document says of it. Pure ASGI."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lengnuan.service.errors import (
    ErrorWriter,
    Forbidden,
    RateLimited,
    ServiceError,
    Unauthorized,
    error_response,
)
from lengnuan.service.keys import Key, Keys
from lengnuan.service.routing import JSON, documented

# What orchestrators and Prometheus ask for. They have no key.
OPEN = frozenset(
    {"/livez", "/readyz", "/startupz", "/metrics", "/version", "/health", "/v2/health/live", "/v2/health/ready"}
)
HEADER = "X-API-Key"


class Authorize:
    """Refuses every request without a key, but for the `OPEN` paths, before any of its body is read.

    Args:
        app: what answers.
        keys: those that are valid.
        writers: how errors are written below some paths, by what the path begins with; ours elsewhere.
    """

    def __init__(self, app: ASGIApp, keys: Keys, writers: Mapping[str, ErrorWriter]) -> None:
        self._app = app
        self._keys = keys
        self._writers = writers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, its key in `state["key"]`, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            state = scope["state"]
            try:
                state["key"] = key = self._owner(Headers(scope=scope))
                key.take_request(scope["path"])
            except ServiceError as error:
                state["code"] = error.code
                await self._writer(scope["path"])(error, state["request_id"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _owner(self, headers: Headers) -> Key:
        presented = _presented(headers)
        if not presented:
            raise Unauthorized(f"this service needs a key: Authorization: Bearer KEY, or {HEADER}: KEY")
        key = self._keys.find(presented.encode("latin-1"))
        if key is None:
            raise Unauthorized("the key is not valid here")
        return key

    def _writer(self, path: str) -> ErrorWriter:
        return next((write for start, write in self._writers.items() if path.startswith(start)), error_response)


def _presented(headers: Headers) -> str:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get(HEADER, "")


def document_keys(app: FastAPI) -> None:
    """Say in the app's OpenAPI document how a key is given, and what is answered without."""
    plain = app.openapi

    def with_keys() -> dict[str, Any]:
        document = plain()
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": HEADER},
        }
        for path in document["paths"].keys() - OPEN:
            for operation in document["paths"][path].values():
                _document_operation(operation)
        return document

    app.openapi = with_keys  # type: ignore[method-assign]  # FastAPI's own way to change the document


def _document_operation(operation: dict[str, Any]) -> None:
    operation["security"] = [{"bearer": []}, {"header": []}]
    responses = operation["responses"]
    ours = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
    content = next((found["content"] for status, found in responses.items() if status >= "4"), ours)
    for status, found in documented(Unauthorized, Forbidden, RateLimited).items():
        known = responses.setdefault(str(status), {"description": "", "content": {JSON: content[JSON]}})
        if found["description"] not in known["description"]:
            known["description"] = "\n".join(filter(None, (known["description"], found["description"])))
