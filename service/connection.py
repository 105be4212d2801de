"""The client's end of a request: its body as it arrives, and its hanging up."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request

from lengnuan.service.errors import BodyTooLarge, ClientClosed, DeadlineExceeded, UnsupportedMediaType

T = TypeVar("T")

# As many as the largest 64-bit number has: what is longer is no length, and not to be repeated in an error.
LENGTH_DIGITS = 19


async def read_body(
    request: Request, max_bytes: int, timeout_s: float, kinds: Sequence[str] = ("application/json",)
) -> bytes:
    """The body of a request. Counts bytes as they come, so a missing or false Content-Length changes nothing.

    Waits at most `timeout_s` for the whole of it.

    Raises:
        UnsupportedMediaType: see `check_kind`.
        BodyTooLarge: stops reading at once.
        DeadlineExceeded: the body came too slowly.
        ClientClosed: it did not come to its end.
    """
    check_kind(request, kinds)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) <= LENGTH_DIGITS and int(announced) > max_bytes:
        raise _too_large(max_bytes, int(announced))
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_at_most(request, max_bytes)
    except TimeoutError:
        raise DeadlineExceeded("read") from None


def check_kind(request: Request, kinds: Sequence[str]) -> None:
    """Raise `UnsupportedMediaType` for a body that is not announced as one of `kinds`, or is compressed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise UnsupportedMediaType(f"the body must come with Content-Type: {kinds[0]}")
    if any(encoding.lower() != "identity" for encoding in request.headers.getlist("content-encoding")):
        raise UnsupportedMediaType("the body must not be compressed")


async def _read_at_most(request: Request, max_bytes: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientClosed("the client closed the connection")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes, len(body))
        more = message.get("more_body", False)
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
        await until_gone(request)
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


async def until_gone(request: Request) -> None:
    """Wait until the client hangs up; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
