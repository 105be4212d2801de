"""`/v1/tokenize`: what the model sees of a text."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lengnuan.model.text import Span
from lengnuan.service import errors
from lengnuan.service.answers import Encoded, LongRule
from lengnuan.service.bodies import Body
from lengnuan.service.connection import read_body, unless_gone
from lengnuan.service.errors import DeadlineExceeded, ServiceError, TextTooLarge
from lengnuan.service.routing import (
    BODY_ERRORS,
    TEXT_ERRORS,
    TIMEOUT_HEADER,
    body_of,
    check_count,
    documented,
    json_reply,
    patience_s,
    served_model,
)
from lengnuan.service.schemas import ItemError, ModelName, OnLongField, Partial, Texts, TimeoutMs
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

TOKENIZE_ERRORS = (
    *(errors.UnknownModel, *BODY_ERRORS, *TEXT_ERRORS),
    *(errors.InternalError, errors.NotReady, errors.DeadlineExceeded),
)
# In one request. A character costs 35 to 170 microseconds, so this much is a few seconds of one thread.
MAX_CHARS = 20_000

# An id, and the part of the raw text that it stands for.
Token = tuple[int, Span]


class TokenizeRequest(Body):
    """Texts to look at through the model's eyes."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": "这部电影太精彩了"}})

    input: Texts
    model: ModelName = None
    on_long: OnLongField = "truncate"
    timeout_ms: TimeoutMs = None
    partial: Partial = False


class Window(BaseModel):
    """The tokens of one run of the model. The three lists go together."""

    ids: list[int]
    pieces: Annotated[list[str], Field(description="as in the vocabulary; a byte as <0xE6>")]
    spans: Annotated[
        list[Span], Field(description="[start, end) in the text as it was sent, in Unicode characters; may be empty")
    ]


class Tokenized(BaseModel):
    """What the model sees of one text."""

    index: Annotated[int, Field(description="place of the text in `input`")]
    tokens: Annotated[int, Field(description="length of the whole text")]
    tokens_used: Annotated[int, Field(description="length of what the model reads")]
    truncated: bool
    windows: Annotated[list[Window], Field(description="one, or with on_long=window as many as the text needs")]


class TokenizeReply(BaseModel):
    """One entry of `data` for each text, in the order of `input`."""

    id: Annotated[str, Field(description="the request id")]
    object: Literal["list"]
    model: str
    model_version: str
    data: list[Tokenized | ItemError]


class Inspector:
    """Finds the places of tokens, in a thread of its own: it takes fifty times as long as finding their ids."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="inspect")

    async def windows(self, served: ServedModel, text: str, on_long: LongRule, deadline: float) -> list[list[Token]]:
        """What `served` reads of a text that it does not refuse.

        Raises:
            DeadlineExceeded: it took until `deadline` (`time.monotonic()`).
        """

        def find() -> list[list[Token]]:
            tokens = list(zip(*served.bundle.tokenizer.encode_with_spans(text), strict=True))
            return served.parts(tokens, on_long)

        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.get_running_loop().run_in_executor(self._executor, find)
        except TimeoutError:
            raise DeadlineExceeded("tokenize") from None


def add_routes(app: FastAPI) -> None:
    """Register the route; `app.state.inspector` is there for others too."""
    app.state.inspector = Inspector()
    app.add_api_route(
        "/v1/tokenize",
        tokenize,
        methods=["POST"],
        response_model=TokenizeReply,
        responses=documented(*TOKENIZE_ERRORS),
        openapi_extra={**body_of(TokenizeRequest), "parameters": [TIMEOUT_HEADER]},
        tags=["inference"],
    )


async def tokenize(request: Request) -> Response:
    """What the model sees: ids, pieces, and their places in the text. Runs no model; a text is refused as elsewhere."""
    settings: Settings = request.app.state.settings
    body = await read_body(request, settings.max_body_bytes, settings.request_timeout_s)
    wanted = TokenizeRequest.from_body(body)
    served = served_model(request, wanted.model)
    texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input
    check_count(texts, settings)
    check_chars(texts)
    deadline = time.monotonic() + patience_s(request, wanted.timeout_ms)
    data = await unless_gone(request, _look(request, served, texts, wanted, deadline))
    reply_id = request.state.request_id
    return json_reply(
        TokenizeReply(id=reply_id, object="list", model=served.name, model_version=served.bundle.version, data=data)
    )


def check_chars(texts: Sequence[str]) -> None:
    """Raise `TextTooLarge` for more than can be looked at in one request."""
    chars = sum(map(len, texts))
    if chars > MAX_CHARS:
        message = "too many characters to look at in one request; /v1/classify reads more"
        raise TextTooLarge(message, param="input", limit=MAX_CHARS, actual=chars)


async def _look(
    request: Request, served: ServedModel, texts: Sequence[str], wanted: TokenizeRequest, deadline: float
) -> list[Tokenized | ItemError]:
    data: list[Tokenized | ItemError] = []
    for index, item in enumerate(await served.encode_all(texts, wanted.on_long, deadline)):
        if isinstance(item, ServiceError):
            if not wanted.partial:
                raise item
            data.append(ItemError(index=index, error=item.detail(request.state.request_id)))
            continue
        inspector: Inspector = request.app.state.inspector
        windows = await inspector.windows(served, texts[index], wanted.on_long, deadline)
        data.append(_tokenized(index, item, windows, served))
    return data


def _tokenized(index: int, item: Encoded, windows: Sequence[Sequence[Token]], served: ServedModel) -> Tokenized:
    return Tokenized(
        index=index,
        tokens=item.tokens,
        tokens_used=item.tokens_used,
        truncated=item.truncated,
        windows=[
            Window(
                ids=[token_id for token_id, _ in tokens],
                pieces=[served.bundle.tokenizer.piece(token_id) for token_id, _ in tokens],
                spans=[span for _, span in tokens],
            )
            for tokens in windows
        ],
    )
