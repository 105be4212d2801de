"""The life of a service: loading, ready, draining; or failed. Probes read it and never enqueue work."""

import asyncio
import functools
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from lengnuan.model.engine import Engine
from lengnuan.model.errors import ModelError
from lengnuan.service.admin_errors import ReloadRunning
from lengnuan.service.batching import PRIORITIES
from lengnuan.service.errors import NotReady, UnknownModel
from lengnuan.service.metrics import Metrics
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import DEFAULT_NAME, Settings, SettingsRefused
from lengnuan.service.shadow import Shadow
from lengnuan.service.slots import ModelSlot, Reloaded
from lengnuan.service.threads import EngineThreads
from lengnuan.service.watching import watch

log = logging.getLogger(__name__)

T = TypeVar("T")


class Lifecycle:
    """Loads the models, changes them while requests go on, says how the service is, and stops it.

    Args:
        settings: which bundles, which device, how much patience.
        metrics: of the process; told about models and limits.
        engine: runs every bundle's graph; None opens each bundle's own.

    Attributes:
        settled: set once the models are loaded, or one can't be.
        failure: why a model can't be served.
        draining: the service is on its way out, and still answers.
        metrics: as given.
        slots: the models by the names of the settings; that of a request without a name is first.
        threads: where engines are run; may still be busy after `stop`.
    """

    def __init__(self, settings: Settings, metrics: Metrics, engine: Engine | None = None) -> None:
        self._settings = settings
        self.metrics = metrics
        self._engine = engine
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reloading = asyncio.Lock()
        self._due = False  # a reload is due that nobody waits for
        self.settled = asyncio.Event()
        self.failure: Exception | None = None
        self.draining = False
        self.threads = EngineThreads()
        self._loader = EngineThreads("load")
        places = {DEFAULT_NAME: settings.bundle, **settings.named_models()}
        self.slots = {
            name: ModelSlot(name, where, settings, metrics, self.threads, self._loader)
            for name, where in places.items()
        }
        self.default = self.slots[DEFAULT_NAME]

    @property
    def served(self) -> ServedModel | None:
        """The model of a request without a name, if it is loaded."""
        return self.default.served

    @property
    def busy(self) -> bool:
        """An engine is running or a bundle being loaded, even if nobody waits for it any more."""
        return self.threads.busy or self._loader.busy

    async def start(self) -> None:
        """Begin to load; returns at once, so that probes are answered meanwhile."""
        for slot in self.slots.values():
            for priority in PRIORITIES:
                slot.metrics.queue_limit_items.labels(priority).set(self._settings.queue_items)
                slot.metrics.queue_limit_tokens.labels(priority).set(self._settings.queue_tokens)
                slot.metrics.queue_limit_seconds.labels(priority).set(self._settings.queue_wait_s)
            slot.metrics.model_ready.set_function(functools.partial(self._is_ready, slot))
        self._run(self._live())

    def _run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """End loading or serving; whoever still waits gets `NotReady`. Doesn't wait for the engine itself."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for slot in self.slots.values():
            await slot.stop()
        self.threads.stop()
        self._loader.stop()

    def drain(self) -> None:
        """Tell the load balancer to look elsewhere; what still arrives is answered, on connections that then close."""
        self.draining = True

    def model(self, name: str | None = None) -> ServedModel:
        """The model that goes by a name; without one, the default.

        Raises:
            NotReady: it is not loaded yet, or won't be.
            UnknownModel: there is none.
        """
        self.check_started()
        served = self.slot(name).served
        if served is None:
            raise NotReady("the model could not be loaded")
        return served

    def slot(self, name: str | None) -> ModelSlot:
        """Where the model of that name is.

        Args:
            name: that of the settings or of `/v1/models`, or an alias that only one of the models has; None for the
                default.

        Raises:
            UnknownModel: there is none.
        """
        if name is None:
            return self.default
        slots = self.slots.values()
        found = [slot for slot in slots if name in (slot.name, slot.shown)] or [s for s in slots if name == s.alias]
        if len(found) == 1:
            return found[0]
        shown, several = ", ".join(slot.shown for slot in slots), len(slots) > 1
        raise UnknownModel(f"the model{'s' * several} served here {'are' if several else 'is'} {shown}", param="model")

    def check_started(self) -> None:
        """Raise `NotReady` while the model is loading."""
        if not self.settled.is_set():
            raise NotReady("the model is loading")

    def check_ready(self, slot: ModelSlot | None = None) -> None:
        """Raise `NotReady` when new requests, or those for one model, had better go elsewhere.

        A full queue is no reason.
        """
        trouble = self._trouble(self.slots.values() if slot is None else [slot])
        if trouble is not None:
            raise NotReady(trouble)

    def check_alive(self) -> None:
        """Raise `NotReady` when only a restart can help."""
        for slot in self.slots.values():
            trouble = self._engine_trouble(slot.served, self._settings.dead_after_s)
            if trouble is not None:
                raise NotReady(trouble)

    def _is_ready(self, slot: ModelSlot) -> bool:
        return self._trouble([slot]) is None

    def _trouble(self, slots: Iterable[ModelSlot]) -> str | None:
        if self.draining:
            return "the service is shutting down"
        if self.failure is not None:
            return "the model could not be loaded"
        if not self.settled.is_set():
            return "the model is loading"
        troubles = (self._engine_trouble(slot.served, self._settings.stalled_after_s) for slot in slots)
        return next(filter(None, troubles), None)

    def _engine_trouble(self, served: ServedModel | None, patience_s: float) -> str | None:
        if served is None:
            return None
        batcher = served.batcher
        if not batcher.alive:
            return "the batch loop has stopped"
        if batcher.running_since is not None and time.monotonic() - batcher.running_since > patience_s:
            return f"the model has been running one batch for more than {patience_s:g} s"
        if batcher.failed_batches >= self._settings.max_failed_batches:
            return f"the last {batcher.failed_batches} batches failed"
        return None

    async def _live(self) -> None:
        """Load everything; then do what goes on beside the requests."""
        try:
            for slot in self.slots.values():
                await slot.load(self._engine)
        except (ModelError, SettingsRefused) as error:
            self.failure = error
        except Exception as error:  # kept for whoever waits for `settled`, and logged here with its place
            log.exception("loading failed: %s", error)
            self.failure = error
        finally:
            self.settled.set()
        if self.failure is None:
            self._start_beside()

    def _start_beside(self) -> None:
        self._start_shadow()
        if self._settings.watch_s:
            slots = list(self.slots.values())
            self._run(watch(slots, self._settings.watch_s, self._loader, self._reload_in_turn))

    def _start_shadow(self) -> None:
        share = self._settings.shadow_share()
        if share is not None:
            shadow = Shadow(self.default, self.slots[share[0]], share[1], self._settings.request_timeout_s)
            self._run(shadow.run())

    async def render_metrics(self) -> bytes:
        """All metrics in the text format that Prometheus reads."""
        return self.metrics.render()

    def reload_later(self) -> None:
        """Reload every model, after a reload that is in progress; nobody waits for it."""
        if self.draining or not self.settled.is_set():
            log.warning("not reloaded: the service is loading or shutting down")
        elif not self._due:
            self._due = True
            self._run(self._reload_in_turn(list(self.slots.values())))

    async def reload(self, name: str | None = None) -> list[Reloaded]:
        """Load what is at the places of one model or of all, and serve it; what can't be loaded changes nothing.

        Goes on to its end if the caller is cancelled.

        Raises:
            UnknownModel: there is none of that name.
            NotReady: the service is loading or shutting down.
            ReloadRunning: another reload is in progress.
        """
        slots = list(self.slots.values()) if name is None else [self.slot(name)]
        if self.draining or not self.settled.is_set():
            raise NotReady("the service is loading or shutting down")
        if self._reloading.locked():
            raise ReloadRunning("another reload is in progress; ask again when it has ended")
        return await asyncio.shield(self._run(self._reload_in_turn(slots)))

    async def _reload_in_turn(self, slots: Sequence[ModelSlot]) -> list[Reloaded]:
        async with self._reloading:
            self._due = False
            return [await slot.reload(self._engine) for slot in slots]
