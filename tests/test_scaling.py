"""The benchmark of growing work: the load that holds a queue, and what is made of it. No speed is asserted here."""

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # its scripts are no package
growth, load, scaling = map(importlib.import_module, ("growth", "load", "scaling"))

REQUEST = b"POST / HTTP/1.1\r\n\r\n"


def hold(statuses: Callable[[int], str | None], clients: int = 3) -> Any:
    """Against a server whose connections answer their n-th request with `statuses(n)`; with None they close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = 0
        while await reader.read(len(REQUEST)) and (status := statuses(turn)):
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            turn += 1
        writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(handler(handle), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        clock = iter((5.0, 7.0))  # asked at the beginning and at the end of what counts
        try:
            return await load.hold(port, load.Load(clients, 1, 0.0, 0.2), lambda _: ([], REQUEST), lambda: next(clock))
        finally:
            server.close()
            await asyncio.sleep(0)

    return asyncio.run(run())


def handler(handle: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Without the errors of a client that leaves in the middle of a request."""

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except ConnectionError:
            writer.close()

    return quiet


def test_a_held_load_counts_from_when_every_client_has_had_an_answer() -> None:
    outcome, spent_s = hold(lambda turn: "200" if turn else "503")
    assert outcome.errors == 0
    assert outcome.requests_s > 0
    assert spent_s == pytest.approx(2.0 / len(outcome.latencies_s))


def test_refusals_of_a_held_load_are_errors() -> None:
    outcome, spent_s = hold(lambda turn: "429" if turn else "200")
    assert (outcome.requests_s, outcome.latencies_s) == (0.0, [])
    assert spent_s == pytest.approx(2.0 / outcome.errors)


def test_a_lost_connection_ends_a_held_load() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        hold(lambda turn: None if turn else "200")
    assert caught.group_contains(ConnectionError)


def test_a_queue_is_held_beyond_what_the_engine_has() -> None:
    held = [case for case in scaling.cases(1) if case.panel == growth.DEPTHS]
    assert [case.clients * case.size - scaling.RUNNING_TEXTS for case in held] == [case.place for case in held]


def point(place: int, requests_s: float) -> Any:
    figures = {"requests_s": requests_s, "p50_ms": 1.0, "p99_ms": 2.0, "errors": 0.0, "loop_us": 100.0}
    return growth.Point(growth.DEPTHS, place, 16, figures)


def test_a_cliff_is_the_lowest_throughput_after_the_highest() -> None:
    assert growth.drop([point(0, 10.0), point(16, 20.0), point(64, 15.0), point(256, 30.0)]) == 0.75


def test_the_picture_has_every_panel_also_with_a_place_at_zero(tmp_path: Path) -> None:
    points = [
        growth.Point(panel, place, 1, point(0, 10.0).figures) for panel in growth.PANELS for place in (0, 1, 1024)
    ]
    growth.plot(points, tmp_path / "growth.svg")
    drawn = (tmp_path / "growth.svg").read_text(encoding="utf-8")
    assert all(f">{panel}<" in drawn for panel in growth.PANELS)
    assert drawn.count(">1,024<") == len(growth.PANELS)
