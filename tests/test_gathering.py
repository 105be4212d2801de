"""Replies in one piece."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from lengnuan.service.gathering import MOST_BYTES, Gathering


class Sent(asyncio.Transport):
    """Notes what it is to send."""

    def __init__(self) -> None:
        super().__init__({"peername": "somebody"})
        self.parts: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.parts.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def run(work: Callable[[Gathering, Sent], Awaitable[None]]) -> None:
    async def begin() -> None:
        sent = Sent()
        await work(Gathering(sent, asyncio.get_running_loop()), sent)

    asyncio.run(begin())


def test_what_is_written_in_one_step_goes_out_together_at_its_end() -> None:
    async def work(gathering: Gathering, sent: Sent) -> None:
        gathering.write(b"head ")
        gathering.write(bytearray(b"body"))
        gathering.write(b"")
        assert sent.parts == []
        await asyncio.sleep(0)
        assert sent.parts == [b"head body"]
        gathering.write(b"next")
        await asyncio.sleep(0)
        assert sent.parts == [b"head body", b"next"]

    run(work)


def test_closing_sends_what_is_left_once() -> None:
    async def work(gathering: Gathering, sent: Sent) -> None:
        gathering.write(b"last")
        gathering.close()
        assert sent.parts == [b"last"]
        assert gathering.is_closing()
        await asyncio.sleep(0)
        assert sent.parts == [b"last"]

    run(work)


def test_much_is_sent_at_once() -> None:
    async def work(gathering: Gathering, sent: Sent) -> None:
        gathering.write(b"x")
        gathering.write(b"y" * MOST_BYTES)
        assert list(map(len, sent.parts)) == [MOST_BYTES + 1]
        gathering.write(b"z")
        await asyncio.sleep(0)
        assert sent.parts[1:] == [b"z"]

    run(work)


def test_the_connection_is_known_as_before() -> None:
    async def work(gathering: Gathering, sent: Sent) -> None:
        assert gathering.get_extra_info("peername") == "somebody"
        assert gathering.get_extra_info("sslcontext", "none") == "none"

    run(work)


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_slow_reader_gets_every_byte_and_the_writer_is_told_to_wait(size: int) -> None:
    """Over a real socket: pausing goes by the transport below."""
    paused: list[bool] = []

    class Writer(asyncio.Protocol):
        def pause_writing(self) -> None:
            paused.append(True)

        def resume_writing(self) -> None:
            paused.append(False)

    async def work() -> bytes:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        theirs.setblocking(False)
        transport, _ = await loop.create_connection(Writer, sock=ours)
        gathering = Gathering(transport, loop)
        for number in range(4):
            gathering.write(bytes([number]) * size)
        await asyncio.sleep(0.05)
        got = b""
        while len(got) < 4 * size:
            got += await loop.sock_recv(theirs, 1 << 16)
        gathering.close()
        assert await loop.sock_recv(theirs, 1) == b""
        theirs.close()
        return got

    assert asyncio.run(work()) == b"".join(bytes([number]) * size for number in range(4))
    assert paused == ([True, False] if size > MOST_BYTES else [])
