"""One name of the service, the model behind it, and how another takes its place while requests go on."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lengnuan.model.engine import Engine
from lengnuan.model.errors import ModelError
from lengnuan.model.store import store_alias
from lengnuan.service.batcher import Batcher
from lengnuan.service.batching import Limits
from lengnuan.service.cache import LogitsCache
from lengnuan.service.loading import load_model, return_memory
from lengnuan.service.metrics import Metrics, ReloadResult
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import DEFAULT_NAME, Settings, SettingsRefused
from lengnuan.service.threads import EngineThreads

log = logging.getLogger(__name__)

# 128 tokens take a core several times as long as a batch costs over its tokens' price (docs/decisions.md).
ENOUGH_TOKENS = 128


@dataclass(frozen=True)
class Reloaded:
    """What came of a reload: the version served from now on, the one before if it is another, what was wrong."""

    model: str
    result: ReloadResult
    version: str | None
    previous: str | None = None
    error: str | None = None


class ModelSlot:
    """Holds the model that is served under one name.

    Args:
        name: by which requests select it, and its label in metrics.
        where: the bundle's folder, or `ROOT@ALIAS` of a store.
        settings: limits and device.
        metrics: of the app.
        threads: where engines run.
        loader: where bundles are loaded, so that those threads go on serving.

    Attributes:
        served: the model; None until one is loaded.
        alias: the store's, if `where` names one; selects the model too.
        on_change: told when another model is served.
    """

    def __init__(
        self,
        name: str,
        where: Path,
        settings: Settings,
        metrics: Metrics,
        threads: EngineThreads,
        loader: EngineThreads,
    ) -> None:
        self.name = name
        self.where = where
        self.metrics = metrics.of(name)
        self.served: ServedModel | None = None
        store = store_alias(where)
        self.alias = store[1] if store else None
        self._settings = settings
        self._threads = threads
        self._loader = loader
        self._retiring: dict[asyncio.Task[None], ServedModel] = {}
        self._stopped = False
        self.on_change: Callable[[ModelSlot], None] | None = None

    @property
    def shown(self) -> str:
        """The name that replies have."""
        return self.served.name if self.served else self.name

    @property
    def aliases(self) -> list[str]:
        """What selects the model besides that name."""
        return [name for name in (self.name, self.alias) if name not in (None, self.shown)]

    async def load(self, engine: Engine | None = None) -> None:
        """Load what is there now, and unless it is served already, put it in the place of what is, in one step.

        Requests that are on the old model end on it; then it is given up.

        Args:
            engine: runs the bundle's graph; None opens the bundle's own.

        Raises:
            ModelError: the bundle or the device can't be used. Whatever was served is served on.
            SettingsRefused: a limit does not fit the model.
        """
        known = self.served.bundle.version if self.served else None
        loaded = await self._loader.run(load_model, self.where, self._settings, engine, known)
        if loaded is None:
            return
        name = self._name_of(loaded.bundle.manifest.name)
        self._threads.set_workers(max(self._threads.workers, loaded.engine.workers))
        self.put(
            ServedModel(loaded.bundle, loaded.engine, self._batcher(loaded.engine), self._settings, self.metrics, name)
        )
        self.metrics.describe(loaded.bundle, loaded.engine)
        self.metrics.model_load_seconds.set(loaded.load_s)
        self.metrics.warmup_seconds.set(loaded.warmup_s)

    def put(self, served: ServedModel) -> None:
        """Start a model and serve it from now on; requests that are on the one before end on it."""
        served.start()
        before, self.served = self.served, served
        if before is not None:
            served.on_answers = before.on_answers
            self._retire(before)
        if self.on_change is not None:
            self.on_change(self)

    async def reload(self, engine: Engine | None = None) -> Reloaded:
        """As `load`, but says what came of it, in the log and the metrics as well; raises for nothing in the bundle."""
        before = self.served.bundle.version if self.served else None
        problem = await self._try_to_load(engine)
        now = self.served.bundle.version if self.served else None
        if problem is not None:
            reloaded = Reloaded(self.name, "refused", now, error=problem)
            await self._loader.run(return_memory)
        else:
            same = now == before
            reloaded = Reloaded(self.name, "unchanged" if same else "reloaded", now, None if same else before)
        self.metrics.reloads[reloaded.result].inc()
        fields = {"model": self.name, "version": now, "previous": before}
        if problem is not None:
            log.error("reload refused, the model is served on as it was: %s", problem, extra={"fields": fields})
        else:
            log.info("model %s", reloaded.result, extra={"fields": fields})
        return reloaded

    async def _try_to_load(self, engine: Engine | None) -> str | None:
        """What kept the model from being loaded, in words."""
        try:
            await self.load(engine)
        except (ModelError, SettingsRefused) as error:
            return str(error)
        except Exception as error:  # a runtime may raise anything, and what is served is not to suffer from it
            log.exception("loading failed: %s", error)
            return f"a mistake, {type(error).__name__}; the log has it"
        return None

    async def stop(self) -> None:
        """Stop the model and those before it; whoever still waits gets `NotReady`."""
        self._stopped = True
        for served in [*self._retiring.values(), *([self.served] if self.served else [])]:
            await served.stop()
        for task in self._retiring:
            task.cancel()

    def _batcher(self, engine: Engine) -> Batcher:
        """With a cache as long-lived as the model: another bundle starts with none of its answers."""
        cache = LogitsCache(self._settings.cache_size)
        return Batcher(engine, limits_of(self._settings, engine), self.metrics, self._threads, cache)

    def _name_of(self, bundle_name: str) -> str:
        """The name that requests and replies show: the default model goes by its bundle's."""
        if self.name != DEFAULT_NAME:
            return self.name
        if bundle_name in self._settings.named_models():
            raise SettingsRefused(
                f"{self.where}: the bundle is called {bundle_name}, as is a model of LENGNUAN_MODELS: rename that"
            )
        return bundle_name

    def _retire(self, served: ServedModel) -> None:
        task = asyncio.create_task(_end(served))
        self._retiring[task] = served
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        """Let go of a model that has ended, and of its memory."""
        del self._retiring[task]
        if not self._stopped:
            self._loader.run(return_memory)


def limits_of(settings: Settings, engine: Engine) -> Limits:
    """What may run together and wait, as the settings say."""
    return Limits(
        max_rows=settings.max_batch_rows,
        max_tokens=settings.max_batch_tokens,
        max_padding_share=settings.max_padding_share,
        # A GPU wants all it can get, until somebody measures.
        enough_tokens=ENOUGH_TOKENS if engine.provider == "cpu" else settings.max_batch_tokens,
        queue_items=settings.queue_items,
        queue_tokens=settings.queue_tokens,
        queue_wait_s=settings.queue_wait_s,
        bulk_run_s=settings.bulk_run_s,
        bulk_wait_s=settings.bulk_wait_s,
    )


async def _end(served: ServedModel) -> None:
    """Stop a model after its last request."""
    await served.holders.wait_for_nobody()
    await served.stop()
