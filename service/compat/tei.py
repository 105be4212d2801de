"""The classifier protocol of text-embeddings-inference: `/predict`, `/info`, `/health`.

As its OpenAPI document has it, with these differences: a flat list of texts, which there is a pair, is refused unless
`predict_flat_list` makes it a batch; pairs are refused; with `truncate` and no direction a long text keeps head and
tail, as everywhere in this service; `X-Truncated` counts such texts, for which the reply has no place.
"""

import importlib.metadata
import time
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lengnuan.service import errors
from lengnuan.service.answers import Answer, Answers, LongRule
from lengnuan.service.bodies import Body
from lengnuan.service.connection import read_body, unless_gone
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
    lifecycle_of,
    patience_s,
    priority_of,
    served_model,
)
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

PREDICT_ERRORS = (*BODY_ERRORS, *TEXT_ERRORS, *RUN_ERRORS)
ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
# Where the protocol has a status and a type of its own for an error; the rest are `Validation` with our status.
MEANINGS: dict[type[ServiceError], tuple[int, ErrorType]] = {
    errors.EmptyText: (400, "Empty"),
    errors.TextTooLong: (413, "Validation"),
    errors.InvalidUnicode: (422, "Tokenizer"),
    errors.EngineFailed: (424, "Backend"),
    errors.Overloaded: (429, "Overloaded"),
    errors.RateLimited: (429, "Overloaded"),
    errors.InternalError: (500, "Backend"),
    errors.NotReady: (503, "Unhealthy"),
    errors.DeadlineExceeded: (504, "Overloaded"),
}
HINT = 'a list must hold lists of one text each, [["text"], ["text"]]'

Direction = Literal["Left", "Right", "left", "right"]
KEPT: dict[str, LongRule] = {"left": "tail", "right": "head"}  # the side that is cut off, and what is left


class PredictRequest(Body):
    """Texts to classify."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"inputs": [["房间很干净"], ["服务太差了"]], "truncate": True}}
    )

    # Read by hand, since what is wrong with a list needs more than "not a string".
    inputs: Annotated[
        Any,
        Field(
            description=f"a string; {HINT}; a flat list of strings is a batch where predict_flat_list says so",
            json_schema_extra={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "maxItems": 1}},
                    {"type": "array", "items": {"type": "string"}},
                ]
            },
        ),
    ]
    raw_scores: Annotated[bool, Field(description="logits instead of probabilities")] = False
    truncate: Annotated[bool | None, Field(description="cut a text that is too long; otherwise it is refused")] = None
    truncation_direction: Annotated[
        Direction | None, Field(description="side that is cut off; without it, head and tail are kept")
    ] = None


class Score(BaseModel):
    """One label."""

    score: float
    label: str


class PredictError(BaseModel):
    """The body of every error of this protocol."""

    error: str
    error_type: ErrorType


class Classifier(BaseModel):
    """The labels, both ways."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(BaseModel):
    """What kind of model it is."""

    classifier: Classifier


class Info(BaseModel):
    """The model and the limits, in the protocol's words."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: Annotated[str | None, Field(description="version of the bundle")]
    model_dtype: Annotated[str, Field(description="of the arithmetic")]
    model_type: ModelType
    max_concurrent_requests: Annotated[int, Field(description="texts that may wait")]
    max_input_length: Annotated[int, Field(description="tokens of one text")]
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: Annotated[int, Field(description="texts in one request")]
    auto_truncate: Annotated[bool, Field(description="false: without truncate, a long text is refused")]
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None


async def _speak(request: Request) -> None:
    """Every error of the route, whoever raises it, takes the protocol's shape."""
    request.state.error_response = error_response


def add_routes(app: FastAPI) -> None:
    """Register the protocol's routes."""
    speak, tag = [Depends(_speak)], "text-embeddings-inference"
    app.add_api_route(
        "/predict",
        predict,
        methods=["POST"],
        response_model=list[Score] | list[list[Score]],
        responses=documented(*PREDICT_ERRORS, model=PredictError, status_of=_status_of),
        openapi_extra={**body_of(PredictRequest), "parameters": RUN_HEADERS},
        dependencies=speak,
        tags=[tag],
    )
    unready = documented(errors.NotReady, model=PredictError)
    app.add_api_route(
        "/info", info, methods=["GET"], response_model=Info, responses=unready, dependencies=speak, tags=[tag]
    )
    # Its 200 has no body; FastAPI would promise JSON.
    app.add_api_route(
        "/health", health, methods=["GET"], response_class=Response, responses=unready, dependencies=speak, tags=[tag]
    )


def _status_of(error: type[ServiceError]) -> int:
    return MEANINGS[error][0] if error in MEANINGS else error.status


def error_response(error: ServiceError, _: str) -> Response:
    """An error in the protocol's shape."""
    kind = MEANINGS[type(error)][1] if type(error) in MEANINGS else "Validation"
    if isinstance(error, errors.TextTooLong):
        error.message = "the text has more tokens than the model reads; truncate=true would cut it"
    body = PredictError(error=error.sentence(), error_type=kind).model_dump_json()
    return Response(body, _status_of(type(error)), error.headers, JSON)


async def predict(request: Request) -> Response:
    """All labels with their scores, the highest first; for a batch, one such list a text."""
    started = time.monotonic()
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s)
    wanted = PredictRequest.from_body(body)
    texts = _texts(wanted.inputs, settings.predict_flat_list)
    served = served_model(request)
    check_count(texts, settings, "inputs")
    count_texts(request, len(texts))
    deadline = time.monotonic() + patience_s(request)
    work = served.classify(texts, _long_rule(wanted), False, deadline, priority_of(request))
    answers = await unless_gone(request, work)
    items = [item for item in answers.items if isinstance(item, Answer)]
    lists = [_scores(served, item, wanted.raw_scores) for item in items]
    content = _json(lists[0]) if isinstance(wanted.inputs, str) else b"[" + b",".join(map(_json, lists)) + b"]"
    headers = _headers(served, answers, items, sum(map(len, texts)), time.monotonic() - started)
    return Response(content, headers=headers, media_type=JSON)


async def info(request: Request) -> Response:
    """The served model and its limits."""
    served = served_model(request)
    settings: Settings = request.app.state.settings
    manifest = served.bundle.manifest
    numbers = {label: place for place, label in enumerate(manifest.labels)}
    reply = Info(
        model_id=served.name,
        model_sha=served.bundle.version,
        model_dtype=served.engine.precision,
        model_type=ModelType(
            classifier=Classifier(id2label={str(n): label for label, n in numbers.items()}, label2id=numbers)
        ),
        max_concurrent_requests=settings.queue_items,
        max_input_length=manifest.max_tokens,
        max_batch_tokens=settings.max_batch_tokens,
        max_batch_requests=settings.max_batch_rows,
        max_client_batch_size=settings.max_texts,
        auto_truncate=False,
        tokenization_workers=1,
        version=importlib.metadata.version("lengnuan"),
        sha=None,
        docker_label=None,
    )
    return Response(reply.model_dump_json(), media_type=JSON)


async def health(request: Request) -> Response:
    """200 without a body when ready."""
    lifecycle_of(request).check_ready()
    return Response()


def _texts(inputs: Any, flat_list: bool) -> list[str]:
    """The texts of a request, whichever way they are wrapped."""
    if isinstance(inputs, str):
        return [inputs]
    if not isinstance(inputs, list):
        raise InvalidRequest(f"inputs must be a string or a list; {HINT}", param="inputs")
    texts: list[str] = []
    for index, item in enumerate(inputs):
        if isinstance(item, str) and not flat_list:
            message = f"a flat list could be a pair or a batch: {HINT}; or start with --predict-flat-list"
            raise InvalidRequest(message, param="inputs", index=index)
        text = item[0] if isinstance(item, list) and len(item) == 1 else item
        if isinstance(text, list) and len(text) == 2:
            raise InvalidRequest(f"this model reads one text, not a pair: {HINT}", param="inputs", index=index)
        if not isinstance(text, str):
            raise InvalidRequest(f"inputs can't be read: {HINT}", param="inputs", index=index)
        texts.append(text)
    return texts


def _long_rule(wanted: PredictRequest) -> LongRule:
    if not wanted.truncate:
        return "error"
    return KEPT[wanted.truncation_direction.lower()] if wanted.truncation_direction else "truncate"


def _scores(served: ServedModel, answer: Answer, raw: bool) -> list[Score]:
    values = answer.logits.tolist() if raw else answer.prediction.probabilities
    scores = [Score(score=value, label=label) for value, label in zip(values, served.bundle.labels, strict=True)]
    return sorted(scores, key=lambda entry: -entry.score)


def _json(scores: list[Score]) -> bytes:
    return b"[" + b",".join(entry.model_dump_json().encode() for entry in scores) + b"]"


def _headers(served: ServedModel, answers: Answers, items: list[Answer], chars: int, spent_s: float) -> dict[str, str]:
    """The protocol's own; times in whole milliseconds."""
    times = {
        "x-compute-time": spent_s,
        "x-total-time": spent_s,
        "x-tokenization-time": answers.tokenize_s,
        "x-queue-time": answers.queue_s,
        "x-inference-time": answers.infer_s,
    }
    return {
        "x-compute-type": f"{served.engine.provider}+{served.engine.runtime}",
        "x-compute-characters": str(chars),
        "x-compute-tokens": str(sum(item.tokens_used for item in items)),
        "x-truncated": str(sum(item.truncated for item in items)),
        **{name: str(int(1000 * seconds)) for name, seconds in times.items()},
    }
