"""From a place on disk to a model that is ready for its first request: everything that may fail, in one call."""

import ctypes
import functools
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine, replay_golden
from lengnuan.model.opening import open_engine
from lengnuan.model.store import load_bundle
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.service.settings import Settings


@dataclass(frozen=True)
class Loaded:
    """A checked bundle, what runs it, and the seconds that reading and warming up took."""

    bundle: Bundle
    engine: Engine
    load_s: float
    warmup_s: float


def load_model(where: Path, settings: Settings, engine: Engine | None, known: str | None) -> Loaded | None:
    """Read and check a bundle, open its graph, replay its golden answers, warm up. Blocks until all of that is done.

    Args:
        where: a folder, or `ROOT@ALIAS` of a store.
        settings: device and limits.
        engine: runs the bundle's graph; None opens the bundle's own.
        known: the version that is served already.

    Returns:
        None if the bundle is whole and of the known version: there is nothing to open.

    Raises:
        ModelError: the bundle or the device can't be used.
        SettingsRefused: a limit does not fit the model.
    """
    started = time.monotonic()
    bundle = load_bundle(where)
    if bundle.version == known:
        return None
    settings.check_against(bundle.manifest)
    opened = _open(bundle, settings, engine)
    loaded = time.monotonic()
    _warm_up(opened, settings, bundle.manifest.max_tokens)
    return Loaded(bundle, opened, loaded - started, time.monotonic() - loaded)


def _open(bundle: Bundle, wanted: Settings, engine: Engine | None) -> Engine:
    """What runs the bundle, once it has given the golden answers."""
    if engine is None:
        return open_engine(bundle, wanted.device, wanted.engine, wanted.precision, wanted.threads, wanted.workers)
    replay_golden(bundle, engine)
    return engine


def _warm_up(engine: Engine, settings: Settings, max_tokens: int) -> None:
    """Run the smallest and the largest batch, so that no caller pays for first-time allocations."""
    rows = max(1, min(settings.max_batch_rows, settings.max_batch_tokens // max_tokens))
    for shape in ((1, 1), (rows, max_tokens)):
        engine.run(np.full(shape, PAD_ID, dtype=np.int64), np.ones(shape, dtype=np.bool_))


def return_memory() -> None:
    """Give the pages of a model that is gone back to the system; glibc would keep them for what may come."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, or None where it is another (musl, macOS, Windows)."""
    try:
        library = ctypes.CDLL(None)
        _ = library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return library
