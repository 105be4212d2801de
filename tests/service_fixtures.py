"""What the service's tests share: an engine that does as it is told, a bundle around it, an app with a client."""

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from tiny_bundle import LABELS, tiny_manifest, tiny_tokenizer

from lengnuan.model.bundle import GOLDEN, MODEL, TOKENIZER, Bundle
from lengnuan.model.tokenizer import FIRST_BYTE_ID
from lengnuan.service.app import create_app
from lengnuan.service.settings import Settings

# A character that is no piece, so it becomes its bytes; the first of them is in no other text.
STRANGE, STRANGE_ID = "悲", FIRST_BYTE_ID + 0xE6
GOLDEN_TEXTS = ("好", "很好看", "差")


class FakeEngine:
    """Logits from the real ids of a row alone. Stops at `gate`, raises on `poison`, gives NaN on `nan`."""

    runtime, provider, precision, threads, workers = "fake", "cpu", "float32", 1, 1

    def __init__(self, poison: int | None = None, nan: int | None = None) -> None:
        self.poison, self.nan = poison, nan
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.shapes: list[tuple[int, int]] = []
        self.rows: list[list[int]] = []

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self.entered.set()
        assert self.gate.wait(30), "the test forgot to open the gate"
        self.shapes.append(token_ids.shape)
        rows = [ids[real].tolist() for ids, real in zip(token_ids, mask, strict=True)]
        self.rows += rows
        if any(self.poison in row for row in rows):
            raise RuntimeError("poisoned")
        return np.array([logits_of(row) if self.nan not in row else [np.nan] * 2 for row in rows], dtype=np.float32)

    async def wait_entered(self) -> None:
        await asyncio.to_thread(self.entered.wait, 30)


def logits_of(ids: list[int]) -> list[float]:
    """Different for different rows, and within ±2."""
    score = sum((place + 1) * token_id for place, token_id in enumerate(ids))
    return [(score % 97) / 50, (score % 89) / 50]


def write_fake_bundle(
    path: Path, engine_logits: Callable[[list[int]], list[float]] = logits_of, name: str = "tiny"
) -> Path:
    """A sealed bundle whose golden answers are `FakeEngine`'s; its graph is never opened."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.to_file(path / TOKENIZER)
    (path / MODEL).write_bytes(b"not a graph")
    ids = [tokenizer.encode(text) for text in GOLDEN_TEXTS]
    rows = [{"text": t, "ids": i, "logits": engine_logits(i)} for t, i in zip(GOLDEN_TEXTS, ids, strict=True)]
    (path / GOLDEN).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    Bundle.write(path, tiny_manifest(tokenizer).model_copy(update={"name": name}))
    return path


def expected_logits(text: str) -> list[float]:
    ids = tiny_tokenizer().encode(text)
    assert len(LABELS) == 2
    return logits_of(ids)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """The app between start and stop, its model loaded, and a client that talks to it in memory."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
    ):
        await app.state.lifecycle.settled.wait()
        yield client


@asynccontextmanager
async def serving(
    folder: Path, engine: FakeEngine | None = None, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """A ready service over a `FakeEngine`, on the other side of its gate once it is loaded."""
    engine = engine or FakeEngine()
    given = {"cache_size": 0, **settings}  # with a cache, whether the engine is asked would depend on earlier requests
    app = create_app(Settings(bundle=write_fake_bundle(folder / "bundle"), **given), engine)
    try:
        async with running(app) as client:
            assert app.state.lifecycle.failure is None
            engine.shapes.clear()
            engine.rows.clear()
            engine.entered.clear()
            yield client, app
    finally:
        engine.gate.set()


def async_test(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test in a loop of its own."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(function(*args, **kwargs))

    return run


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop go on until `condition` holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
            await asyncio.sleep(0.001)


def value(registry: CollectorRegistry, name: str, /, **labels: str) -> float:
    """The sum of a scrape's samples that have these labels, of all models if `model` is not among them."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return sum(s.value for s in samples if s.name == f"lengnuan_{name}" and labels.items() <= s.labels.items())
