"""`/v1/classify/stream`: a line of JSON in, a line of JSON out, for as many as come, in bounded memory.

A few parts of the body are worked on at a time. While they are, and while the client does not take its answers, no
more is read, and the client can't send: back-pressure is TCP's own.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from lengnuan.service import errors
from lengnuan.service.answers import Answer
from lengnuan.service.batching import Priority
from lengnuan.service.connection import check_kind, until_gone
from lengnuan.service.errors import ClientClosed, DeadlineExceeded, Overloaded, ServiceError, TooManyTexts
from lengnuan.service.keys import Key
from lengnuan.service.replies import Fields, classification, error_fields, item_error
from lengnuan.service.routing import (
    PRIORITY_HEADER,
    body_of,
    documented,
    key_of,
    priority_of,
    schema_of,
    served_model,
)
from lengnuan.service.schemas import Classification, ItemError, StreamLine, StreamOptions
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

NDJSON = "application/x-ndjson"
STREAM_ERRORS = (
    *(errors.EmptyBody, errors.UnknownModel, errors.UnsupportedMediaType, errors.InvalidRequest, errors.UnknownField),
    *(errors.BodyTooLarge, errors.InternalError, errors.NotReady, errors.DeadlineExceeded),
)
# Lines that are classified together, and such parts that may be under way behind the one whose answers are due.
PART_LINES = 256
PARTS_AHEAD = 1
# Between two tries where the queue is full. A stream has time, so it asks again sooner than it is told to.
LONGEST_PAUSE_S = 2.0
# A line holds one text. JSON writes a character with at most 12 bytes (a surrogate pair), and there is a field's name.
BYTES_PER_CHAR = 12
LINE_EXTRA_BYTES = 1024

Block = list[bytes | None]
# Lines to classify together behind the number of the first of them, counted from 0; or, at the end, None or the reason.
Part = tuple[int, Block] | DeadlineExceeded | None


@dataclass(frozen=True)
class Job:
    """What all lines of one stream have in common."""

    served: ServedModel
    options: StreamOptions
    settings: Settings
    priority: Priority
    request_id: str
    key: Key | None


def add_routes(app: FastAPI) -> None:
    """Register the route."""
    fields = schema_of(StreamOptions)["properties"]
    app.add_api_route(
        "/v1/classify/stream",
        classify_stream,
        methods=["POST"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "One line for each line, in order: the answer, or `index` and `error`.",
                "content": {NDJSON: {"schema": {"anyOf": [schema_of(Classification), schema_of(ItemError)]}}},
            },
            **documented(*STREAM_ERRORS),
        },
        openapi_extra={
            "parameters": [
                *({"name": name, "in": "query", "schema": field} for name, field in fields.items()),
                PRIORITY_HEADER,
            ],
            **body_of(StreamLine, NDJSON),
        },
        tags=["inference"],
    )


async def classify_stream(request: Request) -> Response:
    """Classify any number of texts, one line of JSON each. What is wrong with a line is said in its place."""
    settings: Settings = request.app.state.settings
    check_kind(request, (NDJSON,))
    options = StreamOptions.from_fields(dict(request.query_params))
    priority = priority_of(request, options.priority, otherwise="bulk")
    served = served_model(request, options.model)
    blocks = _blocks(request, settings)
    first = await anext(blocks, None)  # before the reply, so that a client that expects 100 Continue gets it
    if first is None:
        raise errors.EmptyBody('the request has no body; it needs lines such as {"input": "..."}')
    job = Job(served, options, settings, priority, request.state.request_id, key_of(request))
    # Otherwise StreamingResponse would read the body itself, to see the client hang up.
    request.scope["asgi"] = {**request.scope.get("asgi", {}), "spec_version": "2.4"}
    parts = _parts(request, first, blocks, min(PART_LINES, settings.max_texts))
    return StreamingResponse(_answers(request, parts, job), media_type=NDJSON)


async def _blocks(request: Request, settings: Settings) -> AsyncIterator[Block]:
    """The lines of the body, as many at a time as have arrived; None for a line that is too long to be kept.

    Raises:
        DeadlineExceeded: nothing came for `keep_alive_s`.
        ClientClosed: the body did not come to its end.
    """
    longest = BYTES_PER_CHAR * settings.max_chars + LINE_EXTRA_BYTES
    chunks = request.stream()
    rest, skipping = b"", False
    while (data := await _next_chunk(chunks, settings.keep_alive_s)) is not None:
        *lines, rest = (rest + data).split(b"\n")
        block: Block = [None if len(line) > longest else line for line in lines]
        if lines and skipping:
            block[0], skipping = None, False
        if len(rest) > longest or skipping:
            rest, skipping = b"", True
        if block:
            yield block
    if rest or skipping:
        yield [None if skipping else rest]


async def _next_chunk(chunks: AsyncIterator[bytes], patience_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(patience_s):
            return await anext(chunks, None)
    except TimeoutError:
        raise DeadlineExceeded("read") from None
    except ClientDisconnect:
        raise ClientClosed("the client closed the connection") from None


async def _parts(request: Request, first: Block, blocks: AsyncIterator[Block], size: int) -> AsyncIterator[Part]:
    """The lines in parts, what ended them, and then nothing until the client hangs up.

    Raises:
        ClientClosed: it has.
    """
    start = 0
    block: Block | None = first
    silence = None
    try:
        while block is not None:
            for at in range(0, len(block), size):
                yield start + at, block[at : at + size]
            start += len(block)
            block = await anext(blocks, None)
    except DeadlineExceeded as error:
        silence = error
    yield silence
    await until_gone(request)
    raise ClientClosed("the client closed the connection")


async def _answers(request: Request, parts: AsyncIterator[Part], job: Job) -> AsyncIterator[bytes]:
    """The reply, part by part, while the next parts are already under way; no more once the client has hung up."""

    async def read() -> Part:
        return await anext(parts)

    coming = asyncio.create_task(read())
    running: deque[asyncio.Task[bytes]] = deque()
    end: bytes | None = None
    request.state.items = 0
    try:
        while running or end is None:
            more = [coming] if end is not None or len(running) <= PARTS_AHEAD else []
            await asyncio.wait([*itertools.islice(running, 1), *more], return_when=asyncio.FIRST_COMPLETED)
            if running and running[0].done():
                yield running.popleft().result()
                continue
            part = coming.result()
            coming = asyncio.create_task(read())
            if isinstance(part, tuple):
                request.state.items += len(part[1])
                running.append(asyncio.create_task(_answer_part(*part, job)))
            else:
                end = _line({"error": error_fields(part, job.request_id)}) if part else b""
        if end:
            yield end
    except ClientClosed:
        return
    finally:
        for task in (coming, *running):
            task.cancel()
        await asyncio.gather(coming, *running, return_exceptions=True)


async def _answer_part(first: int, lines: Block, job: Job) -> bytes:
    """The reply to some lines, of which the first one is line `first` of the body, counted from 0."""
    read = [_read(line) for line in lines]
    if job.key is not None:
        await asyncio.sleep(job.key.owe_texts(len(lines)))
    answers = iter(await _classify([text for text in read if isinstance(text, str)], job))
    reply = bytearray()
    for index, text in enumerate(read, start=first):
        item = next(answers) if isinstance(text, str) else text
        if isinstance(item, Answer):
            reply += _line(classification(index, item, job.options, job.served.bundle.labels))
        else:
            item.index = index
            item.param = "input" if item.param else None
            reply += _line(item_error(index, item, job.request_id))
    return bytes(reply)


def _read(line: bytes | None) -> str | ServiceError:
    try:
        if line is None:
            raise errors.BodyTooLarge("the line is too long")
        if not line.strip():
            raise errors.EmptyBody("the line is blank")
        return StreamLine.from_body(line).input
    except ServiceError as error:
        return error


async def _classify(texts: Sequence[str], job: Job) -> list[Answer | ServiceError]:
    """One item a text. Where the queue is full, waits for its turn as long as a request may take."""
    deadline = time.monotonic() + job.settings.request_timeout_s
    while texts:
        try:
            return (await job.served.classify(texts, job.options.on_long, True, deadline, job.priority)).items
        except TooManyTexts as error:  # windows
            if len(texts) == 1:
                return [error]
            half = len(texts) // 2
            return await _classify(texts[:half], job) + await _classify(texts[half:], job)
        except Overloaded as error:
            wait_s = min(LONGEST_PAUSE_S, float(error.headers["Retry-After"]))
            if time.monotonic() + wait_s >= deadline:
                return [error] * len(texts)
            await asyncio.sleep(wait_s)
        except ServiceError as error:
            return [error] * len(texts)
    return []


def _line(item: Fields) -> bytes:
    return to_json(item) + b"\n"
