"""One HTTP/1.1 connection, read by h11, which notices a byte too many or too few."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import h11

PATIENCE_S = 90.0


class ProtocolBroken(Exception):
    """The other side said something that is not one whole reply to one request."""


@dataclass(frozen=True)
class Message:
    """A request to send. More than one part goes as a chunked body."""

    path: str
    parts: Sequence[bytes]
    content_type: str


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """Asks and reads, one request after the other, and opens itself anew where the other side closed in good order."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._http = h11.Connection(h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    async def ask(self, message: Message, request_id: str) -> Reply:
        """The reply to a request.

        Raises:
            ProtocolBroken: it is not one whole reply, or one to another request, or something follows it; or none came.
            OSError: the connection broke, or no reply came in time.
        """
        async with asyncio.timeout(PATIENCE_S):
            await self.send(message, request_id)
            reply = await self._read()
        if reply.headers.get("x-request-id") != request_id:
            raise ProtocolBroken("the reply is to another request")
        self._end_cycle()
        return reply

    async def send(self, message: Message, request_id: str, share: float = 1.0) -> None:
        """Put a request on the wire, or only that share of its bytes."""
        if self._writer is None:
            self._http = h11.Connection(h11.CLIENT)
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        framing = (
            ("Content-Length", str(len(message.parts[0])))
            if len(message.parts) == 1
            else ("Transfer-Encoding", "chunked")
        )
        headers = [("Host", "soak"), ("Content-Type", message.content_type), ("X-Request-Id", request_id), framing]
        method = "POST" if message.content_type else "GET"
        if method == "GET":
            headers = [("Host", "soak"), ("X-Request-Id", request_id)]
        events: list[h11.Event] = [h11.Request(method=method, target=message.path, headers=headers)]
        if method == "POST":
            events += [h11.Data(data=part) for part in message.parts]
        events.append(h11.EndOfMessage())
        wire = b"".join(self._http.send(event) or b"" for event in events)
        self._writer.write(wire[: max(1, int(share * len(wire)))])
        await self._writer.drain()

    async def _read(self) -> Reply:
        head: h11.Response | None = None
        body = bytearray()
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(1 << 16))
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
        except h11.RemoteProtocolError as error:
            raise ProtocolBroken(str(error)) from error
        headers = {name.decode().lower(): value.decode() for name, value in head.headers}
        return Reply(head.status_code, headers, bytes(body))

    def _end_cycle(self) -> None:
        if self._http.trailing_data[0]:
            raise ProtocolBroken("something follows the reply")
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self.hang_up()
        else:
            self._http.start_next_cycle()

    async def silent(self) -> bool:
        """Whether nothing comes while nothing was asked."""
        if self._reader is None:
            return True
        try:
            async with asyncio.timeout(0.2):
                return not await self._reader.read(1)
        except TimeoutError:
            return True

    def hang_up(self) -> None:
        """Close at once, also in the middle of a message."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
