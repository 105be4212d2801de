"""Everything the service refuses or fails at: one class a code, one shape on the wire.

```
ServiceError
├── EmptyBody, NotUtf8, InvalidJson                                   400
├── Unauthorized                                                      401
├── Forbidden                                                         403
├── NotFound, UnknownModel                                            404
├── MethodNotAllowed                                                  405
├── BodyTooLarge, TooManyTexts, TextTooLarge                          413
├── UnsupportedMediaType                                              415
├── InvalidRequest, UnknownField, EmptyText, InvalidUnicode, TextTooLong   422
├── Overloaded, RateLimited                                           429
├── ClientClosed                                                      499, only ever logged
├── EngineFailed, InternalError                                       500
├── NotReady                                                          503
└── DeadlineExceeded                                                  504
```

Those of `/admin/reload` alone are in `admin_errors.py`. Messages are written here and by whoever raises, from numbers
and names of fields; never from a caller's text.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

Outcome = Literal["ok", "truncated_ok", "invalid", "too_long", "shed", "expired", "cancelled", "failed"]
Stage = Literal["read", "tokenize", "queue", "infer"]


class ErrorDetail(BaseModel):
    """Why a request, or one text of it, was refused. Never holds a caller's text."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    param: str | None
    index: int | None
    limit: int | None
    actual: int | None
    request_id: str
    stage: Stage | None = None


class ErrorReply(BaseModel):
    """The body of every reply whose status is 4xx or 5xx."""

    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


class ServiceError(Exception):
    """What a caller is told, and how the texts it concerns are counted.

    Args:
        message: one sentence, with the way out where there is one.
        param: the field at fault.
        index: the place of the text at fault in `input`.
        limit: the limit that was passed.
        actual: what was found instead.
    """

    status = 500
    code = "internal_error"
    outcome: Outcome = "failed"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        index: int | None = None,
        limit: int | None = None,
        actual: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.index = index
        self.limit = limit
        self.actual = actual
        self.headers: dict[str, str] = {}

    def detail(self, request_id: str) -> ErrorDetail:
        """The error as it goes on the wire."""
        return ErrorDetail(request_id=request_id, **self._fields())

    def sentence(self) -> str:
        """The whole error in words, for protocols that have no fields for it."""
        where = "" if self.index is None else f"text {self.index}"
        numbers = "" if self.limit is None else f"{self.actual}, at most {self.limit}"
        details = ": ".join(part for part in (where, numbers) if part)
        return f"{self.message} ({details})" if details else self.message

    def _fields(self) -> dict[str, Any]:
        names = ("code", "message", "param", "index", "limit", "actual")
        return {name: getattr(self, name) for name in names}


class EmptyBody(ServiceError):
    """The request has no body."""

    status, code, outcome = 400, "empty_body", "invalid"


class NotUtf8(ServiceError):
    """The body is in another encoding: GBK and UTF-16 are the usual ones."""

    status, code, outcome = 400, "not_utf8", "invalid"


class InvalidJson(ServiceError):
    """The body is not JSON by RFC 8259, which has no NaN."""

    status, code, outcome = 400, "invalid_json", "invalid"


class Unauthorized(ServiceError):
    """No API key, or one that is not valid."""

    status, code, outcome = 401, "unauthorized", "invalid"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """The API key is valid, but not for this path."""

    status, code, outcome = 403, "forbidden", "invalid"


class NotFound(ServiceError):
    """No such path."""

    status, code, outcome = 404, "not_found", "invalid"


class UnknownModel(ServiceError):
    """The request names a model that is not served here."""

    status, code, outcome = 404, "unknown_model", "invalid"


class MethodNotAllowed(ServiceError):
    """The path has other methods."""

    status, code, outcome = 405, "method_not_allowed", "invalid"


class BodyTooLarge(ServiceError):
    """More bytes than `max_body_bytes`, announced or received."""

    status, code, outcome = 413, "body_too_large", "invalid"


class TooManyTexts(ServiceError):
    """More texts in one request than `max_texts`."""

    status, code, outcome = 413, "too_many_texts", "invalid"


class TextTooLarge(ServiceError):
    """More characters in one text than `max_chars`, a guard against abuse far above what the model reads."""

    status, code, outcome = 413, "text_too_large", "too_long"


class UnsupportedMediaType(ServiceError):
    """The body is not announced as plain JSON."""

    status, code, outcome = 415, "unsupported_media_type", "invalid"


class InvalidRequest(ServiceError):
    """A field is missing, of the wrong type, or out of its range."""

    status, code, outcome = 422, "invalid_request", "invalid"


class UnknownField(ServiceError):
    """A field that the request does not have: refused, since ignoring it would hide a mistake."""

    status, code, outcome = 422, "unknown_field", "invalid"


class EmptyText(ServiceError):
    """Nothing visible in the text, so there is nothing to classify."""

    status, code, outcome = 422, "empty_text", "invalid"


class InvalidUnicode(ServiceError):
    """Half of a surrogate pair: a character that was cut in two."""

    status, code, outcome = 422, "invalid_unicode", "invalid"


class TextTooLong(ServiceError):
    """More tokens than the model reads, and the request asked for an error instead of truncation."""

    status, code, outcome = 422, "text_too_long", "too_long"


class Overloaded(ServiceError):
    """The queue has no room for all texts of the request; none of them was started.

    Args:
        message: see `ServiceError`.
        retry_after_s: when the queue should have room again.
        limit: texts or tokens that may wait.
        actual: how many would.
    """

    status, code, outcome = 429, "overloaded", "shed"

    def __init__(self, message: str, *, retry_after_s: int, limit: int, actual: int) -> None:
        super().__init__(message, limit=limit, actual=actual)
        self.headers = {"Retry-After": str(retry_after_s)}


class RateLimited(ServiceError):
    """The API key has asked too often of late.

    Args:
        message: see `ServiceError`.
        retry_after_s: when it may ask again.
    """

    status, code, outcome = 429, "rate_limited", "shed"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after_s)}


class ClientClosed(ServiceError):
    """The client hung up before its answer; nobody reads this."""

    status, code, outcome = 499, "client_closed", "cancelled"


class EngineFailed(ServiceError):
    """The model raised on this text, or gave something that is not a number."""

    code = "engine_failed"


class InternalError(ServiceError):
    """A mistake in the service itself; the log has it under the request id."""


class NotReady(ServiceError):
    """Loading, leaving, or broken."""

    status, code = 503, "not_ready"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": "1"}


class DeadlineExceeded(ServiceError):
    """The time that the request had is over.

    Args:
        stage: where it was at that moment.
    """

    status, code, outcome = 504, "deadline_exceeded", "expired"

    def __init__(self, stage: Stage) -> None:
        super().__init__(f"the deadline passed in stage {stage}", param=None if stage == "read" else "timeout_ms")
        self.stage = stage
        if stage == "read":
            self.headers = {"Connection": "close"}  # or the rest of the body might trickle in for ever

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "stage": self.stage}


ErrorWriter = Callable[[ServiceError, str], Response]


def error_response(error: ServiceError, request_id: str) -> Response:
    """An error as a reply. A route that speaks another protocol sets its own writer, `request.state.error_response`."""
    body = ErrorReply(error=error.detail(request_id)).model_dump_json(exclude_unset=True)
    return Response(body, error.status, error.headers, "application/json")
