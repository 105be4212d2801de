"""Closed-loop clients over raw sockets: each sends its next request when the last one is answered.

Little work a request, because the clients share the machine with what they measure; `against_peers.py` measures what
they can do at most.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

PATIENCE_S = 90.0  # what takes longer is an error

NextRequest = Callable[[int], tuple[Sequence[str], bytes]]  # number of texts -> the texts, and the request's bytes


@dataclass(frozen=True)
class Load:
    """What the clients do.

    Args:
        clients: connections, each with one request at a time.
        size: texts a request; one goes as a string, more as a list.
        warm_s: time before any request counts.
        seconds: time after that in which further requests are sent; each counts, however late it ends.
    """

    clients: int
    size: int
    warm_s: float
    seconds: float


@dataclass
class Outcome:
    """What came of a load.

    Args:
        requests_s: requests answered 200 a second: each client's own number over its own time, added up. So it does not
            matter that a server which answers in batches may have just answered one, or be about to.
        latencies_s: of the requests that count and were answered 200.
        errors: requests that count and were not answered 200, or not at all.
        answers: texts and reply body of each request that was answered 200, to be checked afterwards.
    """

    requests_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0
    answers: list[tuple[Sequence[str], bytes]] = field(default_factory=list)

    def quantile_ms(self, share: float) -> float:
        """A quantile of the latencies; NaN without any."""
        return 1e3 * float(np.quantile(self.latencies_s, share)) if self.latencies_s else float("nan")


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection; `ask` sends a request and waits for the whole reply."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._reply: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0 or self._reply is None or self._reply.done():
            return
        head = bytes(self._received[:head_end]).lower()
        place = head.find(b"\r\ncontent-length:")
        if place < 0:
            self._reply.set_exception(ConnectionError("a reply without Content-Length"))
            return
        length = int(head[place + 17 :].split(b"\r\n", 1)[0])
        body = self._received[head_end + 4 :]
        if len(body) >= length:
            self._received.clear()
            self._reply.set_result((int(head.split(b" ", 2)[1]), bytes(body)))

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Also in the middle of a reply."""
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises `ConnectionError`."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("the server closed the connection")
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._reply


async def put(port: int, load: Load, next_request: NextRequest) -> Outcome:
    """Run a load against a server on this machine.

    Args:
        port: of the server.
        load: what to do.
        next_request: makes the next request of so many texts.
    """
    outcome = Outcome()
    begin = time.perf_counter() + load.warm_s
    clients = [_client(port, load, next_request, outcome, begin) for _ in range(load.clients)]
    await asyncio.gather(*clients)
    return outcome


async def hold(port: int, load: Load, next_request: NextRequest, spent_s: Callable[[], float]) -> tuple[Outcome, float]:
    """Run a load whose clients all go on to its end, so that as much waits at the server all the time.

    What is answered counts, whenever it was sent, for `load.seconds` from when every client has had an answer: until
    then the queue fills, and who comes early waits less. So there is no other time to warm up.

    Args:
        port: of the server.
        load: what to do.
        next_request: makes the next request of so many texts.
        spent_s: seconds that something has taken up to now.

    Returns:
        What came of it, without the answers; and the seconds that `spent_s` grew by for one of them.

    Raises:
        ExceptionGroup: a connection was lost.
    """
    loop = asyncio.get_running_loop()
    answers: list[_Answered] = []
    firsts: list[asyncio.Future[None]] = [loop.create_future() for _ in range(load.clients)]
    async with asyncio.TaskGroup() as clients:
        staying = [clients.create_task(_stay(port, load.size, next_request, answers, first)) for first in firsts]
        await asyncio.gather(*firsts)
        begin, spent_before, answered_before = time.perf_counter(), spent_s(), len(answers)
        await asyncio.sleep(load.seconds)
        spent, counted = spent_s() - spent_before, answers[answered_before:]
        for client in staying:
            client.cancel()
    good = [answer for answer in counted if answer.status == 200]
    outcome = Outcome(latencies_s=[answer.at - answer.sent for answer in good], errors=len(counted) - len(good))
    if good:  # up to the last answer, since they come in batches
        outcome.requests_s = len(good) / (good[-1].at - begin)
    return outcome, spent / max(1, len(counted))


@dataclass(frozen=True)
class _Answered:
    """A request: when it was sent, when answered, and with which status."""

    sent: float
    at: float
    status: int


async def _stay(
    port: int, size: int, next_request: NextRequest, answers: list[_Answered], first: "asyncio.Future[None]"
) -> None:
    """Send until cancelled; `first` is done with the first answer."""
    _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
    try:
        while True:
            _, request = next_request(size)
            sent = time.perf_counter()
            async with asyncio.timeout(PATIENCE_S):  # wait_for would now and then forget that it was cancelled
                status, _ = await connection.ask(request)
            answers.append(_Answered(sent, time.perf_counter(), status))
            if not first.done():
                first.set_result(None)
    finally:
        connection.close()


async def _client(port: int, load: Load, next_request: NextRequest, outcome: Outcome, begin: float) -> None:
    """Send until the time is up, and at least one request that counts."""
    connection: _Connection | None = None
    first: float | None = None  # when the first request that counts was sent
    answered = 0
    while (sent := time.perf_counter()) < begin + load.seconds or first is None:
        texts, request = next_request(load.size)
        try:
            if connection is None:
                _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
            status, body = await asyncio.wait_for(connection.ask(request), PATIENCE_S)
        except OSError:  # of which timeouts and lost connections are kinds
            if connection is not None:
                connection.close()
            status, body, connection = 0, b"", None
            await asyncio.sleep(0.01)  # a server that refuses connections is not to be asked in a tight loop
        if status == 200:
            outcome.answers.append((texts, body))
        if sent >= begin:
            first = first or sent
            if status == 200:
                answered += 1
                outcome.latencies_s.append(time.perf_counter() - sent)
            else:
                outcome.errors += 1
    outcome.requests_s += answered / (time.perf_counter() - first)
    if connection is not None:
        connection.close()
