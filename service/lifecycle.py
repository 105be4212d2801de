"""The life of a service: loading, ready, draining; or failed. Probes read it and never enqueue work."""

import asyncio
import logging
import time

import numpy as np

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine, replay_golden
from lengnuan.model.errors import ModelError
from lengnuan.model.opening import open_engine
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.service.batching import PRIORITIES
from lengnuan.service.errors import NotReady
from lengnuan.service.metrics import Metrics
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings, SettingsRefused
from lengnuan.service.threads import EngineThreads

log = logging.getLogger(__name__)


class Lifecycle:
    """Loads the model, says how the service is, and stops it.

    Args:
        settings: which bundle, which device, how much patience.
        metrics: told about model and limits.
        engine: runs the bundle's graph; None opens the bundle's own.

    Attributes:
        settled: set once the model is loaded, or can't be.
        failure: why the model can't be served.
        draining: the service is on its way out, and still answers.
        served: the loaded model.
        threads: where the engine is opened and run; may still be busy after `stop`.
    """

    def __init__(self, settings: Settings, metrics: Metrics, engine: Engine | None = None) -> None:
        self._settings = settings
        self._metrics = metrics
        self._engine = engine
        self._loading: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        self.failure: Exception | None = None
        self.draining = False
        self.served: ServedModel | None = None
        self.threads = EngineThreads()

    def start(self) -> None:
        """Begin to load; returns at once, so that probes are answered meanwhile."""
        for priority in PRIORITIES:
            self._metrics.queue_limit_items.labels(priority).set(self._settings.queue_items)
            self._metrics.queue_limit_tokens.labels(priority).set(self._settings.queue_tokens)
            self._metrics.queue_limit_seconds.labels(priority).set(self._settings.queue_wait_s)
        self._metrics.model_ready.set_function(lambda: self._trouble() is None)
        self._loading = asyncio.create_task(self._load())

    async def stop(self) -> None:
        """End loading or serving; whoever still waits gets `NotReady`. Doesn't wait for the engine itself."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        if self.served is not None:
            await self.served.stop()
        self.threads.stop()

    def drain(self) -> None:
        """Tell the load balancer to look elsewhere; what still arrives is answered, on connections that then close."""
        self.draining = True

    def model(self) -> ServedModel:
        """The loaded model.

        Raises:
            NotReady: there is none yet, or there won't be.
        """
        self.check_started()
        if self.served is None:
            raise NotReady("the model could not be loaded")
        return self.served

    def check_started(self) -> None:
        """Raise `NotReady` while the model is loading."""
        if not self.settled.is_set():
            raise NotReady("the model is loading")

    def check_ready(self) -> None:
        """Raise `NotReady` when new requests had better go elsewhere. A full queue is no reason."""
        trouble = self._trouble()
        if trouble is not None:
            raise NotReady(trouble)

    def check_alive(self) -> None:
        """Raise `NotReady` when only a restart can help."""
        trouble = self._engine_trouble(self._settings.dead_after_s)
        if trouble is not None:
            raise NotReady(trouble)

    def _trouble(self) -> str | None:
        if self.draining:
            return "the service is shutting down"
        if self.failure is not None:
            return "the model could not be loaded"
        if self.served is None:
            return "the model is loading"
        return self._engine_trouble(self._settings.stalled_after_s)

    def _engine_trouble(self, patience_s: float) -> str | None:
        if self.served is None:
            return None
        batcher = self.served.batcher
        if not batcher.alive:
            return "the batch loop has stopped"
        if batcher.running_since is not None and time.monotonic() - batcher.running_since > patience_s:
            return f"the model has been running one batch for more than {patience_s:g} s"
        if batcher.failed_batches >= self._settings.max_failed_batches:
            return f"the last {batcher.failed_batches} batches failed"
        return None

    async def _load(self) -> None:
        try:
            bundle, engine = await self.threads.run(self._open)
            self.threads.set_workers(engine.workers)
            self.served = ServedModel(bundle, engine, self._settings, self._metrics, self.threads)
            self.served.start()
        except (ModelError, SettingsRefused) as error:
            self.failure = error
        except Exception as error:  # kept for whoever waits for `settled`, and logged here with its place
            log.exception("loading failed: %s", error)
            self.failure = error
        finally:
            self.settled.set()

    def _open(self) -> tuple[Bundle, Engine]:
        """In a thread of the engine: everything that must succeed before the first request."""
        started = time.monotonic()
        bundle = Bundle.load(self._settings.bundle)
        manifest = bundle.manifest
        self._settings.check_against(manifest)
        engine = self._open_engine(bundle)
        loaded = time.monotonic()
        self._warm_up(engine, manifest.max_tokens)
        warm = time.monotonic()
        self._metrics.model_load_seconds.set(loaded - started)
        self._metrics.warmup_seconds.set(warm - loaded)
        self._metrics.model_info.labels(
            model=manifest.name,
            version=bundle.version,
            sha=manifest.files["model.onnx"].sha256[:12],
            backend=engine.runtime,
            precision=engine.precision,
            provider=engine.provider,
            tolerance=f"{manifest.precision.bound(engine.precision):g}",
        ).set(1)
        return bundle, engine

    def _open_engine(self, bundle: Bundle) -> Engine:
        """What runs the bundle, once it has given the golden answers."""
        wanted = self._settings
        if self._engine is None:
            return open_engine(bundle, wanted.device, wanted.engine, wanted.precision, wanted.threads, wanted.workers)
        replay_golden(bundle, self._engine)
        return self._engine

    def _warm_up(self, engine: Engine, max_tokens: int) -> None:
        """Run the smallest and the largest batch, so that no caller pays for first-time allocations."""
        rows = max(1, min(self._settings.max_batch_rows, self._settings.max_batch_tokens // max_tokens))
        for shape in ((1, 1), (rows, max_tokens)):
            engine.run(np.full(shape, PAD_ID, dtype=np.int64), np.ones(shape, dtype=np.bool_))
