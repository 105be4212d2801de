"""Two ends of a link in one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from service_fixtures import async_test, eventually

from lengnuan.service.admin_errors import ReloadRunning
from lengnuan.service.errors import (
    DeadlineExceeded,
    EngineFailed,
    InternalError,
    NotReady,
    Overloaded,
    ServiceError,
)
from lengnuan.service.processes.link import Handler, Head, Link, error_of, fields_of


async def echo(head: Head, body: bytes) -> tuple[Head, bytes]:
    return {"given": head["given"]}, body[::-1]


@asynccontextmanager
async def linked(handle: Handler) -> AsyncIterator[tuple[Link, Link]]:
    """An end that asks and one that answers with `handle`."""
    ours, theirs = socket.socketpair()
    asking, answering = await Link.over(ours, echo), await Link.over(theirs, handle)
    try:
        yield asking, answering
    finally:
        asking.close()
        answering.close()
        await asking.closed.wait()
        await answering.closed.wait()


@async_test
async def test_calls_in_both_directions_get_their_own_answers() -> None:
    async with linked(echo) as (one, other):
        calls = [end.call("any", str(n).encode() * n, given=n) for n in range(200) for end in (one, other)]
        answers = await asyncio.gather(*calls)
    assert [(head["given"], body) for head, body in answers[::2]] == [
        (n, (str(n).encode() * n)[::-1]) for n in range(200)
    ]


@async_test
async def test_a_body_of_many_packets_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with linked(echo) as (link, _):
        _, answer = await link.call("any", body, given="冷暖")
    assert answer == body[::-1]


@async_test
async def test_a_frame_may_come_in_pieces_of_any_size() -> None:
    seen: list[tuple[str, bytes]] = []

    async def keep(head: Head, body: bytes) -> tuple[Head, bytes]:
        seen.append((head["given"], body))
        return {}, b""

    ours, theirs = socket.socketpair()
    link = await Link.over(ours, echo)
    with theirs:
        link.tell("any", given="冷")
        link.tell("any", given="暖")
        await asyncio.sleep(0)
        sent = theirs.recv(1 << 16)
    link.close()
    for size in (1, 2, 7, len(sent)):
        seen.clear()
        receiving = Link(keep)
        for start in range(0, len(sent), size):
            receiving.data_received(sent[start : start + size])
        await eventually(lambda: len(seen) == 2)
        assert seen == [("冷", b""), ("暖", b"")]


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("too many texts are waiting", retry_after_s=3, limit=4, actual=5),
        DeadlineExceeded("queue"),
        EngineFailed("the model failed on this text", index=2),
        NotReady("the model has stopped"),
        ReloadRunning("another reload is in progress"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_on_the_other_side(error: ServiceError) -> None:
    @async_test
    async def run() -> None:
        async def refuse(head: Head, body: bytes) -> tuple[Head, bytes]:
            raise error

        async with linked(refuse) as (link, _):
            with pytest.raises(type(error)) as raised:
                await link.call("any")
        assert raised.value.detail("r") == error.detail("r")
        assert raised.value.headers == error.headers
        assert str(raised.value) == str(error)
        assert error_of(fields_of(error)).outcome == error.outcome

    run()


@async_test
async def test_a_mistake_of_the_other_side_is_told_as_such_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def stumble(head: Head, body: bytes) -> tuple[Head, bytes]:
        return {"given": 1 // head["given"]}, b""

    async with linked(stumble) as (link, _):
        with pytest.raises(InternalError):
            await link.call("any", given=0)
        assert (await link.call("any", given=1))[0]["given"] == 1
    assert "a call of another process failed" in caplog.text


class Work:
    """Answers no call, and says when one began and ended."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        self.began.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.ended.set()
        return {}, b""


@async_test
async def test_cancelling_a_call_cancels_its_work() -> None:
    work = Work()
    async with linked(work) as (link, _):
        call = asyncio.create_task(link.call("any"))
        await work.began.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await asyncio.wait_for(work.ended.wait(), 30)


@async_test
async def test_when_the_other_side_goes_calls_end_and_later_ones_are_refused() -> None:
    work = Work()
    async with linked(work) as (link, other):
        call = asyncio.create_task(link.call("any"))
        await work.began.wait()
        other.close()
        with pytest.raises(NotReady):
            await call
        with pytest.raises(NotReady):
            await link.call("any")
        await asyncio.wait_for(work.ended.wait(), 30)
