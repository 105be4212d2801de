"""The soak finds what it is there to find."""

import asyncio
import json
import random

import pytest
from service_fixtures import async_test
from soak.client import Connection, Message, ProtocolBroken, Reply
from soak.mix import SHARES, Exchange, classify, expected
from soak.watch import Watch, growth

MESSAGE = Message("/v1/classify", [b"{}"], "application/json")
PAGE = """\
lengnuan_items_received_total 5.0
lengnuan_items_total{outcome="ok"} 3.0
lengnuan_items_total{outcome="failed"} 1.0
lengnuan_items_in_flight %d
"""


def whole(request_id: str, body: str = "{}") -> str:
    return f"HTTP/1.1 200 OK\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n{body}"


async def ask(answer: str) -> Reply:
    """What the client makes of an answer to the request `a`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with Connection("127.0.0.1", server.sockets[0].getsockname()[1]) as connection:
            return await connection.ask(MESSAGE, "a")


@async_test
async def test_one_whole_reply_is_taken() -> None:
    assert (await ask(whole("a"))).body == b"{}"


@pytest.mark.parametrize("answer", ["", whole("b"), whole("a") * 2, whole("a")[:-1], whole("a") + "x"])
def test_any_other_reply_is_not(answer: str) -> None:
    @async_test
    async def run() -> None:
        with pytest.raises(ProtocolBroken):
            await ask(answer)

    run()


@pytest.mark.parametrize(("under_way", "faults"), [(1, 0), (0, 1), (2, 1)])
def test_texts_that_are_not_accounted_for_are_found(under_way: int, faults: int) -> None:
    watch = Watch()

    class Page(Connection):
        async def ask(self, message: Message, request_id: str) -> Reply:
            return Reply(200, {}, (PAGE % under_way).encode())

    asyncio.run(watch.scrape(Page("", 0)))
    assert len(watch.faults) == faults


def test_memory_that_grows_is_found_and_noise_is_not() -> None:
    chance = random.Random(0)
    steady = [(n * 1000, 1e8 + chance.uniform(-1e6, 1e6)) for n in range(200)]
    leaking = [(done, resident + 200 * done) for done, resident in steady]
    assert abs(growth(steady).growth) < growth(steady).bound / 4
    assert growth(leaking).growth > growth(leaking).bound


def reply_to(texts: list[str], answers: list[str]) -> Reply:
    data = [{"index": index, "probs": expected(text)} for index, text in enumerate(answers)]
    return Reply(200, {}, json.dumps({"data": data}).encode())


def test_the_answer_to_another_text_is_found() -> None:
    exchange = classify("list", ["好", "差"])
    assert exchange.fault(reply_to(["好", "差"], ["好", "差"])) == ""
    assert "another text" in exchange.fault(reply_to(["好", "差"], ["差", "好"]))
    assert "other texts" in exchange.fault(reply_to(["好", "差"], ["好"]))


@pytest.mark.parametrize("maker", SHARES, ids=lambda maker: maker.__name__)
def test_a_server_error_is_a_fault_whatever_was_asked(maker: "type[Exchange]") -> None:
    exchange = maker(random.Random(1))
    assert exchange.fault(Reply(503, {}, b'{"error": {"code": "not_ready", "index": null}}'))
