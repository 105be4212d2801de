"""`/v1/explain`: which words an answer rests on, by leaving each one out."""

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lengnuan.model.text import Span
from lengnuan.service import errors
from lengnuan.service.answers import Answer
from lengnuan.service.bodies import Body
from lengnuan.service.connection import read_body, unless_gone
from lengnuan.service.errors import EmptyText, ServiceError, TooManyTexts
from lengnuan.service.routing import (
    BODY_ERRORS,
    RUN_ERRORS,
    RUN_HEADERS,
    TEXT_ERRORS,
    body_of,
    count_texts,
    documented,
    json_reply,
    patience_s,
    priority_of,
    served_model,
)
from lengnuan.service.schemas import ModelName, OnLong, OnLongField, TimeoutMs
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings
from lengnuan.service.tokenize import Inspector, Token, check_chars

EXPLAIN_ERRORS = (errors.UnknownModel, *BODY_ERRORS, *TEXT_ERRORS, *RUN_ERRORS)


class ExplainRequest(Body):
    """One text to explain the answer for."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": "房间很干净，但是服务太差了"}})

    input: Annotated[str, Field(description="one text")]
    model: ModelName = None
    on_long: OnLongField = "truncate"
    timeout_ms: TimeoutMs = None


class Word(BaseModel):
    """A word of the text: a piece of the vocabulary, at its place."""

    word: str
    start: Annotated[int, Field(description="place in the text as it was sent, in Unicode characters")]
    end: int
    confidence_without: Annotated[
        float | None, Field(description="probability of the label for the text without this word; null if none is left")
    ]
    contribution: Annotated[
        float | None, Field(description="what the word adds to the log-odds of the label; below 0 it speaks against it")
    ]


class ExplainReply(BaseModel):
    """The answer, and what each word does for it."""

    id: Annotated[str, Field(description="the request id")]
    object: Literal["explanation"]
    model: str
    model_version: str
    label: str
    confidence: float
    abstained: bool
    truncated: Annotated[bool, Field(description="the model read the head and the tail only; no other word is listed")]
    tokens: int
    words: Annotated[list[Word], Field(description="in the order of the text")]


def add_routes(app: FastAPI) -> None:
    """Register the route."""
    app.add_api_route(
        "/v1/explain",
        explain,
        methods=["POST"],
        response_model=ExplainReply,
        responses=documented(*EXPLAIN_ERRORS),
        openapi_extra={**body_of(ExplainRequest), "parameters": RUN_HEADERS},
        tags=["inference"],
    )


async def explain(request: Request) -> Response:
    """The answer for a text, and how it changes without each of its words: all of them run as one request's texts."""
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s)
    wanted = ExplainRequest.from_body(body)
    served = served_model(request, wanted.model)
    check_chars([wanted.input])
    deadline = time.monotonic() + patience_s(request, wanted.timeout_ms)
    return json_reply(await unless_gone(request, _explain(request, served, wanted, deadline)))


async def _explain(request: Request, served: ServedModel, wanted: ExplainRequest, deadline: float) -> ExplainReply:
    text, settings, inspector = wanted.input, request.app.state.settings, request.app.state.inspector
    spans = await _words(served, inspector, text, wanted.on_long, deadline)
    if len(spans) >= settings.max_texts:
        message = "the text has too many words to leave out"
        raise TooManyTexts(message, param="input", limit=settings.max_texts - 1, actual=len(spans))
    without = [text[:start] + text[end:] for start, end in spans]
    count_texts(request, 1 + len(without))
    answers = await served.classify([text, *without], wanted.on_long, True, deadline, priority_of(request))
    whole, *others = answers.items
    if isinstance(whole, ServiceError):
        raise whole
    return ExplainReply(
        id=request.state.request_id,
        object="explanation",
        model=served.name,
        model_version=served.bundle.version,
        label=whole.prediction.label,
        confidence=whole.prediction.confidence,
        abstained=whole.prediction.abstained,
        truncated=whole.truncated,
        tokens=whole.tokens,
        words=_contributions(served, text, spans, whole, others),
    )


async def _words(served: ServedModel, inspector: Inspector, text: str, on_long: OnLong, deadline: float) -> list[Span]:
    """Where the words are that the model reads."""
    [item] = await served.encode_all([text], on_long, deadline)
    if isinstance(item, ServiceError):
        raise item
    windows = await inspector.windows(served, text, on_long, deadline)
    return joined_spans(token for window in windows for token in window)


def joined_spans(tokens: Iterable[Token]) -> list[Span]:
    """The parts of the text that tokens stand for, in order, none overlapping: several bytes make one character."""
    spans: list[Span] = []
    for start, end in sorted({span for _, span in tokens}):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif start < end:
            spans.append((start, end))
    return spans


def _contributions(
    served: ServedModel, text: str, spans: Sequence[Span], whole: Answer, others: Sequence[Answer | ServiceError]
) -> list[Word]:
    labels, temperature = served.bundle.labels, served.bundle.manifest.temperature
    place = labels.index(whole.prediction.label)

    def log_odds(answer: Answer) -> float:
        scaled = answer.logits.astype(np.float64) / temperature
        return float(scaled[place] - np.logaddexp.reduce(np.delete(scaled, place)))

    words: list[Word] = []
    for (start, end), other in zip(spans, others, strict=True):
        if isinstance(other, ServiceError) and not isinstance(other, EmptyText):
            raise other
        left = None if isinstance(other, ServiceError) else other
        words.append(
            Word(
                word=text[start:end],
                start=start,
                end=end,
                confidence_without=left.prediction.probabilities[place] if left else None,
                contribution=log_odds(whole) - log_odds(left) if left else None,
            )
        )
    return words
