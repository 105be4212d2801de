"""The processes that answer HTTP, as the one with the models sees them."""

import asyncio
import dataclasses
import itertools
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from lengnuan.service.errors import InternalError, NotReady, ServiceError
from lengnuan.service.lifecycle import Lifecycle
from lengnuan.service.metrics import Metrics
from lengnuan.service.processes.link import Head, Link
from lengnuan.service.processes.merged import Family, lasting, merge, render, snapshot
from lengnuan.service.processes.remote import TELL_EVERY_S, Condition, read_rows, write_model, write_scores
from lengnuan.service.served import ServedModel
from lengnuan.service.slots import ModelSlot

log = logging.getLogger(__name__)

# A scrape waits so long for a process; then it takes what that one had last time.
SCRAPE_S = 2.0


class Fronts:
    """Gives every process the models as they change, and answers what they ask.

    Args:
        lifecycle: of the models.
        metrics: of this process.
    """

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.lifecycle = lifecycle
        self._metrics = metrics
        self._numbers = itertools.count()
        self._fronts: list[Front] = []
        self._gone: list[Family] = []  # what processes that have ended had counted
        self._announcing: set[asyncio.Task[None]] = set()
        self._in_turn = asyncio.Lock()  # or a small vocabulary would overtake a large one, and the older model stay
        for slot in lifecycle.slots.values():
            slot.on_change = self._announce

    async def connect(self, connection: socket.socket) -> "Front":
        """Begin to answer a process, and give it the models that there are."""
        front = Front(self)
        front.link = await Link.over(connection, front.handle)
        self._fronts.append(front)
        for slot in self.lifecycle.slots.values():
            self._announce(slot, [front])
        return front

    def forget(self, front: "Front") -> None:
        """A process has ended."""
        self._fronts.remove(front)
        front.release_all()
        self._gone = merge([self._gone, lasting(front.snapshot)])

    async def reload(self, name: str | None) -> Head:
        """Reload models as `Lifecycle.reload` does; returns when every process serves what came of it."""
        done = await self.lifecycle.reload(name)
        if self._announcing:
            await asyncio.wait(set(self._announcing))
        return {"reloaded": [dataclasses.asdict(entry) for entry in done]}

    async def render(self) -> bytes:
        """The metrics of all processes together; those that are still starting have counted nothing."""
        await asyncio.gather(*(front.look() for front in self._fronts if front.ready.is_set()))
        found = [snapshot(self._metrics.registry), *(front.snapshot for front in self._fronts), self._gone]
        return await asyncio.to_thread(lambda: render(merge(found)))

    def _announce(self, slot: ModelSlot, fronts: Sequence["Front"] | None = None) -> None:
        """Give a model to some processes, or to all."""
        fronts = tuple(self._fronts if fronts is None else fronts)
        if slot.served is not None and fronts:
            given = [(front, front.hold(next(self._numbers), slot.served)) for front in fronts]
            task = asyncio.create_task(self._give(slot, slot.served, given))
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)

    async def _give(self, slot: ModelSlot, served: ServedModel, given: Sequence[tuple["Front", int]]) -> None:
        try:
            async with self._in_turn:
                fields, body = await asyncio.to_thread(write_model, served)
        except Exception as error:
            log.exception("a model can't be given to other processes: %s", error)
            for front, _ in given:
                front.link.close()  # which ends it
            return
        await asyncio.gather(*(front.serve(slot.name, number, fields, body) for front, number in given))


class Front:
    """One process that answers HTTP.

    Attributes:
        link: to it.
        ready: set once it serves all models.
        snapshot: of its metrics, at the last scrape.
    """

    link: Link

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._held: dict[int, ServedModel] = {}
        self._served: set[str] = set()
        self.ready = asyncio.Event()
        self.snapshot: list[Family] = []

    def hold(self, number: int, served: ServedModel) -> int:
        """Keep a model for it until it says that it needs it no more, or ends."""
        self._held[number] = served
        served.holders.enter()
        return number

    async def serve(self, slot: str, number: int, fields: Mapping[str, Any], body: bytes) -> None:
        """Have it serve a model that is held for it."""
        try:
            await self.link.call("serve", body, slot=slot, served=number, **fields)
        except ServiceError as error:
            if not self.link.closed.is_set():
                log.critical("a process could not take the model %s: %s", slot, error)
                self.link.close()  # which ends it
            return
        self._served.add(slot)
        if len(self._served) == len(self._fronts.lifecycle.slots):
            self.ready.set()

    async def attend(self, patience_s: float) -> None:
        """Tell it, now and then, how the models are that it holds.

        Returns when it is gone, or has not heard for so long: it is stuck then.
        """
        while not self.link.closed.is_set():
            held = self._held.items()
            told = {str(number): dataclasses.asdict(Condition.of(served.batcher)) for number, served in held}
            try:
                async with asyncio.timeout(patience_s):
                    await self.link.call("conditions", told=told)
            except TimeoutError:
                log.critical("a process that answers HTTP has not answered for %g s", patience_s)
                return
            except NotReady:
                return
            await asyncio.sleep(TELL_EVERY_S)

    async def look(self) -> None:
        """Ask for its metrics."""
        try:
            async with asyncio.timeout(SCRAPE_S):
                head, _ = await self.link.call("snapshot")
                self.snapshot = head["families"]
        except (TimeoutError, ServiceError):
            log.warning("a process gave no metrics; the scrape has what it gave before")

    def release_all(self) -> None:
        """It holds nothing any more."""
        for number in list(self._held):
            self._release(number)

    async def handle(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        """Answer its calls."""
        match head["call"]:
            case "score":
                return await self._score(head, body)
            case "release":
                self._release(head["served"])
                return {}, b""
            case "reload":
                return await self._fronts.reload(head["model"]), b""
            case "metrics":
                return {}, await self._fronts.render()
        raise InternalError(f"no such call: {head['call']}")

    async def _score(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        served = self._held.get(head["served"])
        if served is None:
            raise NotReady("the model is not running")
        batcher = served.batcher
        return write_scores(await batcher.score(read_rows(head, body), head["deadline"], head["priority"]))

    def _release(self, number: int) -> None:
        served = self._held.pop(number, None)
        if served is not None:
            served.holders.leave()
