"""What the routes share: their part of the OpenAPI document, the limits they hold, the reply they write."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from lengnuan.service import errors
from lengnuan.service.batching import PRIORITIES, Priority
from lengnuan.service.connection import LENGTH_DIGITS
from lengnuan.service.errors import ErrorReply, ServiceError
from lengnuan.service.holding import hold
from lengnuan.service.keys import Key
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

JSON = "application/json"
TIMEOUT, PRIORITY = "X-Request-Timeout-Ms", "X-Priority"
TIMEOUT_HEADER: dict[str, Any] = {
    "name": TIMEOUT,
    "in": "header",
    "description": "give up after so many milliseconds, at the latest when the service would",
    "schema": {"type": "integer", "minimum": 1},
}
PRIORITY_HEADER: dict[str, Any] = {
    "name": PRIORITY,
    "in": "header",
    "description": "bulk takes what interactive requests leave of the engine",
    "schema": {"type": "string", "enum": list(PRIORITIES)},
}
RUN_HEADERS = [TIMEOUT_HEADER, PRIORITY_HEADER]
BODY_ERRORS = (
    *(errors.EmptyBody, errors.NotUtf8, errors.InvalidJson, errors.BodyTooLarge, errors.UnsupportedMediaType),
    *(errors.InvalidRequest, errors.UnknownField),
)
TEXT_ERRORS = (errors.TooManyTexts, errors.TextTooLarge, errors.EmptyText, errors.InvalidUnicode, errors.TextTooLong)
RUN_ERRORS = (
    *(errors.Overloaded, errors.EngineFailed, errors.InternalError, errors.NotReady, errors.DeadlineExceeded),
)


def lifecycle_of(request: Request) -> Lifecycle:
    """The loading, serving and leaving of the app's model."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    return lifecycle


def json_reply(reply: BaseModel | dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """A reply as JSON. Fields without a value that was never set are left out."""
    # Unset, not None: an error's empty fields are written, an answer's unasked extras are not.
    content = to_json(reply) if isinstance(reply, dict) else reply.model_dump_json(exclude_unset=True)
    return Response(content, headers=headers, media_type=JSON)


def served_model(request: Request, name: str | None = None) -> ServedModel:
    """The model that the request asks for, which it holds until its end; another may take its place meanwhile.

    Raises:
        NotReady: there is none yet.
        UnknownModel: none goes by that name.
    """
    served = lifecycle_of(request).model(name)
    hold(request.scope, served.holders)
    return served


def check_count(texts: Sequence[str], settings: Settings, param: str = "input") -> None:
    """Raise for no text at all, and for more than one request may have."""
    if not texts:
        raise errors.InvalidRequest(f"{param} has no text", param=param)
    if len(texts) > settings.max_texts:
        message = "the request has too many texts; split it"
        raise errors.TooManyTexts(message, param=param, limit=settings.max_texts, actual=len(texts))


def count_texts(request: Request, count: int) -> None:
    """Note how many texts a request has, for its log line and for the rate of its key.

    Raises:
        RateLimited: that many are too many.
    """
    key = key_of(request)
    if key is not None:
        key.take_texts(count)
    request.state.items = count


def key_of(request: Request) -> Key | None:
    """The API key that the request came with; None where none is needed."""
    found: Key | None = request.scope["state"].get("key")
    return found


def patience_s(request: Request, timeout_ms: int | None = None) -> float:
    """How long a request may take: what its body says, its header or the service's limit, whichever is the shortest.

    A body that asks for more than the service gives is mistaken; a header may be a proxy's, for all that is behind it.

    Args:
        request: whose header is read.
        timeout_ms: from the body.

    Raises:
        InvalidRequest: the body asks for more than the service gives, or the header can't be read.
    """
    settings: Settings = request.app.state.settings
    longest_ms = int(settings.request_timeout_s * 1000)
    if timeout_ms is not None and timeout_ms > longest_ms:
        message = "the timeout is above the service's own limit"
        raise errors.InvalidRequest(message, param="timeout_ms", limit=longest_ms, actual=timeout_ms)
    given = [settings.request_timeout_s]
    if timeout_ms is not None:
        given.append(timeout_ms / 1000)
    header = request.headers.get(TIMEOUT)
    if header is not None:
        if not (header.isascii() and header.isdecimal() and len(header) <= LENGTH_DIGITS and int(header)):
            raise errors.InvalidRequest(f"{TIMEOUT} must be a number of milliseconds, at least 1", param=TIMEOUT)
        given.append(int(header) / 1000)
    return min(given)


def priority_of(request: Request, wanted: Priority | None = None, otherwise: Priority = "interactive") -> Priority:
    """Of a request's texts: what its body or query wants, or else its header, or else what is usual.

    Raises:
        InvalidRequest: the header has another value.
    """
    header = request.headers.get(PRIORITY)
    if wanted is not None or header is None:
        return wanted or otherwise
    for priority in PRIORITIES:
        if header == priority:
            return priority
    raise errors.InvalidRequest(f"{PRIORITY} must be one of {', '.join(PRIORITIES)}", param=PRIORITY)


def documented(
    *refusals: type[ServiceError],
    model: type[BaseModel] = ErrorReply,
    status_of: Callable[[type[ServiceError]], int] = lambda refusal: refusal.status,
) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for these errors.

    Args:
        refusals: all that the route can answer with.
        model: the shape of its errors.
        status_of: the status of an error, where a protocol has its own.
    """
    return {
        status: {"model": model, "description": _describe(r for r in refusals if status_of(r) == status)}
        for status in sorted({status_of(refusal) for refusal in refusals})
    }


def _describe(refusals: Iterable[type[ServiceError]]) -> str:
    return "\n".join(f"- `{refusal.code}`: {(refusal.__doc__ or '').splitlines()[0]}" for refusal in refusals)


def body_of(model: type[BaseModel], kind: str = JSON) -> dict[str, Any]:
    """OpenAPI `requestBody` for a body that the route reads itself."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema_of(model)}}}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, with its parts written out where they are used."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def written_out(node: Any) -> Any:
        if isinstance(node, list):
            return [written_out(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            node = {**parts[node["$ref"].rpartition("/")[2]], **{k: v for k, v in node.items() if k != "$ref"}}
        return {key: written_out(value) for key, value in node.items()}

    result: dict[str, Any] = written_out(schema)
    return result
