"""A socket between two processes of one service, over which both call each other.

A frame is the lengths of its two parts (two unsigned 32-bit numbers), a head of JSON, and a body of bytes. A head has
`call` and `number`; `answer`, which is that number again, and maybe `error`; `cancel`, likewise a number; or `call`
alone, when nobody waits for an answer. What multiprocessing has for this speaks pickle and waits in threads.
"""

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

from pydantic_core import from_json, to_json

from lengnuan.service import admin_errors, errors
from lengnuan.service.errors import InternalError, NotReady, ServiceError
from lengnuan.service.gathering import Gathering

log = logging.getLogger(__name__)

Head = dict[str, Any]
# What answers a call of the other side: its head and body in, those of the answer out.
Handler = Callable[[Head, bytes], Awaitable[tuple[Head, bytes]]]

LENGTHS = struct.Struct("<II")
# Errors that one process hands to the other, by the names of their classes.
KINDS = {
    kind.__name__: kind
    for module in (errors, admin_errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, ServiceError)
}


class Link(asyncio.Protocol):
    """One end. Belongs to the event loop.

    Args:
        handle: answers the other side's calls; a `ServiceError` that it raises is raised over there.

    Attributes:
        closed: set when the other side is gone, whatever the reason.
    """

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[tuple[Head, bytes]]] = {}
        self._answering: dict[int | asyncio.Task[None], asyncio.Task[None]] = {}
        self.closed = asyncio.Event()

    @classmethod
    async def over(cls, connection: socket.socket, handle: Handler) -> "Link":
        """The end of a connected socket, which from now on is the link's."""
        _, link = await asyncio.get_running_loop().create_connection(lambda: cls(handle), sock=connection)
        return link

    async def call(self, name: str, body: bytes = b"", /, **fields: Any) -> tuple[Head, bytes]:
        """Ask the other side; cancelling the call cancels what it does over there.

        Raises:
            NotReady: the other side is gone.
            ServiceError: what it raised.
        """
        if self.closed.is_set():
            raise NotReady("the other process has ended")
        number = next(self._numbers)
        future: asyncio.Future[tuple[Head, bytes]] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        self._send({"call": name, "number": number, **fields}, body)
        try:
            return await future
        finally:
            if self._calls.pop(number, None) is not None:
                self._send({"cancel": number})

    def tell(self, name: str, /, **fields: Any) -> None:
        """As `call`, but waits for nothing."""
        self._send({"call": name, **fields})

    def close(self) -> None:
        """Let go of the other side."""
        if self._transport is not None:
            self._transport.close()

    def _send(self, head: Head, body: bytes = b"") -> None:
        written = to_json(head)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join((LENGTHS.pack(len(written), len(body)), written, body)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the link can be used."""
        self._transport = Gathering(cast(asyncio.Transport, transport), asyncio.get_running_loop())

    def data_received(self, data: bytes) -> None:
        """asyncio's: a part of a frame, or several of them."""
        self._received += data
        start = 0
        while len(self._received) - start >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._received, start)
            middle = start + LENGTHS.size + head
            if len(self._received) < middle + body:
                break
            frame = bytes(self._received[start + LENGTHS.size : middle + body])
            self._take(from_json(frame[:head]), frame[head:])
            start = middle + body
        del self._received[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the other side has closed the socket, or ended."""
        self.closed.set()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(NotReady("the other process has ended"))
        self._calls.clear()
        for task in self._answering.values():
            task.cancel()

    def _take(self, head: Head, body: bytes) -> None:
        if "call" in head:
            number = head.get("number")
            task = asyncio.create_task(self._answer(head, body))
            key = task if number is None else number
            self._answering[key] = task
            task.add_done_callback(lambda _: self._answering.pop(key, None))
        elif "cancel" in head:
            task_of = self._answering.get(head["cancel"])
            if task_of is not None:
                task_of.cancel()
        elif (future := self._calls.pop(head["answer"], None)) is not None and not future.done():
            if "error" in head:
                future.set_exception(error_of(head["error"]))
            else:
                future.set_result((head, body))

    async def _answer(self, head: Head, body: bytes) -> None:
        number = head.get("number")
        try:
            answer, answer_body = await self._handle(head, body)
            if number is not None:
                self._send({"answer": number, **answer}, answer_body)
            return
        except ServiceError as error:
            refusal = error
        except Exception as error:
            log.exception("a call of another process failed: %s", error)
            refusal = InternalError("another process made a mistake")
        if number is not None:
            self._send({"answer": number, "error": fields_of(refusal)})


def fields_of(error: ServiceError) -> dict[str, Any]:
    """An error as JSON has it."""
    return {"kind": type(error).__name__, **vars(error)}


def error_of(fields: dict[str, Any]) -> ServiceError:
    """The error that `fields_of` was given."""
    kind = KINDS[fields["kind"]]
    error = kind.__new__(kind)
    Exception.__init__(error, fields["message"])
    vars(error).update({name: value for name, value in fields.items() if name != "kind"})
    return error
