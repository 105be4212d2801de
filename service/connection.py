"""The client's end of a request: its body as it arrives, and its hanging up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from lengnuan.service.errors import BodyTooLarge, ClientClosed, DeadlineExceeded, UnsupportedMediaType

T = TypeVar("T")

# As many as the largest 64-bit number has: what is longer is no length, and not to be repeated in an error.
LENGTH_DIGITS = 19


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body of a JSON request. Counts bytes as they come, so a missing or false Content-Length changes nothing.

    Waits at most `timeout_s` for the whole of it.

    Raises:
        UnsupportedMediaType: not announced as JSON, or compressed.
        BodyTooLarge: stops reading at once.
        DeadlineExceeded: the body came too slowly.
        ClientClosed: it did not come to its end.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType("the body must come with Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("the body must not be compressed")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) <= LENGTH_DIGITS and int(announced) > max_bytes:
        raise _too_large(max_bytes, int(announced))
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_at_most(request, max_bytes)
    except TimeoutError:
        raise DeadlineExceeded("read") from None
    except ClientDisconnect:
        raise ClientClosed("the client closed the connection") from None


async def _read_at_most(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes, len(body))
    return bytes(body)


def _too_large(limit: int, actual: int) -> BodyTooLarge:
    return BodyTooLarge("the body has too many bytes; send fewer texts in one request", limit=limit, actual=actual)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up.

    Raises:
        ClientClosed: the client has hung up.
    """
    here = asyncio.current_task()
    hung_up = False

    async def watch() -> None:
        nonlocal hung_up
        while (await request.receive())["type"] != "http.disconnect":
            pass
        hung_up = True
        if here is not None:
            here.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if hung_up and here is not None and here.uncancel() == 0:
            raise ClientClosed("the client closed the connection") from None
        raise  # the server itself gives the request up
    finally:
        watching.cancel()
