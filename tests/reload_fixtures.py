"""A service whose models can be changed while it runs, each with a `FakeEngine` of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from service_fixtures import FakeEngine, running, value, write_fake_bundle

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import replay_golden
from lengnuan.service import loading
from lengnuan.service.app import create_app
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.settings import Settings

TOKEN = "0123456789abcdef"  # noqa: S105


@dataclass(frozen=True)
class Reloadable:
    """The service, its client, the place of its default bundle, and the engines in the order of their opening."""

    app: FastAPI
    client: httpx.AsyncClient
    bundle: Path
    engines: list[FakeEngine]

    @property
    def lifecycle(self) -> Lifecycle:
        lifecycle: Lifecycle = self.app.state.lifecycle
        return lifecycle

    def value(self, name: str, /, **labels: str) -> float:
        return value(self.app.state.metrics.registry, name, **labels)

    async def classify(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/classify", json={"input": "好", **fields})

    async def version(self, **fields: Any) -> str:
        reply = await self.classify(**fields)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["model_version"])

    async def reload(self, token: str = TOKEN, **query: str) -> httpx.Response:
        return await self.client.post("/admin/reload", params=query, headers={"X-Admin-Token": token})


@asynccontextmanager
async def reloadable(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Reloadable]:
    engines: list[FakeEngine] = []

    def opened(bundle: Bundle, *_: object) -> FakeEngine:
        engine = FakeEngine()
        replay_golden(bundle, engine)
        engines.append(engine)
        return engine

    monkeypatch.setattr(loading, "open_engine", opened)
    (folder / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    bundle = settings.pop("bundle", None) or write_fake_bundle(folder / "bundle")
    app = create_app(Settings(bundle=bundle, **{"cache_size": 0, "admin_token_file": folder / "token", **settings}))
    try:
        async with running(app) as client:
            assert app.state.lifecycle.failure is None, app.state.lifecycle.failure
            yield Reloadable(app, client, bundle, engines)
    finally:
        for engine in engines:
            engine.gate.set()
