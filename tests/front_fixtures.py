"""Processes that answer HTTP and the one with the models, all in one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from service_fixtures import FakeEngine, running, write_fake_bundle

from lengnuan.service.app import create_app
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics
from lengnuan.service.processes.front import FrontLifecycle
from lengnuan.service.processes.fronts import Front, Fronts
from lengnuan.service.settings import Settings


@dataclass(frozen=True)
class Fronted:
    """The models' lifecycle; for each process its application, a client and how the models' process sees it."""

    lifecycle: Lifecycle
    apps: list[FastAPI]
    clients: list[httpx.AsyncClient]
    fronts: list[Front]

    async def classify(self, *texts: str, front: int = 0, **fields: Any) -> httpx.Response:
        return await self.clients[front].post("/v1/classify", json={"input": list(texts), **fields})

    async def labels(self, *texts: str, front: int = 0) -> list[str]:
        reply = await self.classify(*texts, front=front)
        assert reply.status_code == 200, reply.text
        return [row["label"] for row in reply.json()["data"]]


@asynccontextmanager
async def fronted(
    folder: Path,
    engine: FakeEngine | None = None,
    count: int = 1,
    ready: Callable[[Lifecycle], object] = lambda lifecycle: None,
    **settings: Any,
) -> AsyncIterator[Fronted]:
    """`count` processes over a `FakeEngine`, or with None over what `open_engine` gives, all of them ready."""
    given = {"cache_size": 0, "bundle": folder / "bundle", "http_processes": count, **settings}
    if not (folder / "bundle").exists():
        write_fake_bundle(folder / "bundle")
    wanted = Settings(**given)
    lifecycle = Lifecycle(wanted, Metrics(), engine)
    models = Fronts(lifecycle, lifecycle.metrics)
    ready(lifecycle)
    await lifecycle.start()
    attending: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        found = Fronted(lifecycle, [], [], [])
        for _ in range(count):
            ours, theirs = socket.socketpair()
            found.fronts.append(await models.connect(ours))
            found.apps.append(create_app(wanted, lifecycle=FrontLifecycle(wanted, Metrics(), theirs)))
            found.clients.append(await stack.enter_async_context(running(found.apps[-1])))
            await found.fronts[-1].ready.wait()
            attending.append(asyncio.create_task(found.fronts[-1].attend(60.0)))
        if engine is not None:
            engine.shapes.clear()
            engine.rows.clear()
            engine.entered.clear()
        try:
            yield found
        finally:
            if engine is not None:
                engine.gate.set()
            for task in attending:
                task.cancel()
            for front in found.fronts:
                front.link.close()
            await lifecycle.stop()
