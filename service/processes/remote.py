"""What a process that answers HTTP has in place of a batcher and a bundle: the other process's, from afar."""

import asyncio
import json
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lengnuan.model.bundle import Bundle, ComputeType, Manifest
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.service.batching import PRIORITIES, Priority, Scored, Scorer
from lengnuan.service.errors import DeadlineExceeded, NotReady, ServiceError
from lengnuan.service.processes.link import Head, Link, error_of, fields_of
from lengnuan.service.served import ServedModel

# The process with the models tells how they are this often; after so long without a word it counts as stuck.
TELL_EVERY_S = 0.25
SILENT_S = 2.0


@dataclass(frozen=True)
class Condition:
    """How a batcher is, as `Scorer` has it; and what it would refuse one more row with, by priority."""

    alive: bool = True
    running_since: float | None = None
    failed_batches: int = 0
    idle: bool = True
    refusals: dict[Priority, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, batcher: Scorer) -> "Condition":
        """That of a batcher now."""
        refusals: dict[Priority, dict[str, Any]] = {}
        for priority in PRIORITIES:
            try:
                batcher.check_room(1, 1, priority)
            except ServiceError as error:
                refusals[priority] = fields_of(error)
        return cls(batcher.alive, batcher.running_since, batcher.failed_batches, batcher.idle, refusals)


@dataclass
class Facts:
    """Of an engine in another process; an `EngineFacts`."""

    runtime: str
    provider: str
    precision: ComputeType


class RemoteBatcher:
    """A batcher in another process. The clock of `time.monotonic()` is the same there.

    Args:
        link: to that process.
        number: by which it knows the model.
        forget: called when the model is no longer needed here.
    """

    def __init__(self, link: Link, number: int, forget: Callable[[], object]) -> None:
        self._link = link
        self._number = number
        self._forget = forget
        self._stopped = False
        self._condition = Condition()
        self._heard_at = time.monotonic()

    def hear(self, condition: Condition) -> None:
        """Take what the other process tells."""
        self._condition, self._heard_at = condition, time.monotonic()

    @property
    def alive(self) -> bool:
        """False when the other process is gone, or its batcher is."""
        return self._condition.alive and not self._stopped and not self._link.closed.is_set()

    @property
    def running_since(self) -> float | None:
        """Since when the engine has had its oldest batch; since the last word of a process that says none."""
        silent = time.monotonic() - self._heard_at > SILENT_S
        return self._heard_at if silent else self._condition.running_since

    @property
    def failed_batches(self) -> int:
        """Batches without a single answer, in a row, up to now."""
        return self._condition.failed_batches

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs, as far as is known."""
        return self._condition.idle

    def start(self) -> None:
        """Nothing: it runs."""

    async def stop(self) -> None:
        """Tell the other process that nobody here needs the model any more. What it runs is answered."""
        self._stopped = True
        self._forget()
        self._link.tell("release", served=self._number)

    def check_room(self, rows: int, tokens: int, priority: Priority) -> None:
        """Refuse what would have been refused a moment ago; the other process does for good, when the rows come.

        Raises:
            Overloaded: with when to come again.
        """
        refusal = self._condition.refusals.get(priority)
        if refusal is not None:
            raise error_of(refusal)

    async def score(
        self, rows: Sequence[Sequence[int]], deadline: float, priority: Priority = "interactive"
    ) -> list[Scored | ServiceError]:
        """See `Batcher.score`. Ends at `deadline` whatever the other process does.

        Raises:
            Overloaded: the queue has no room for all of the rows; none was queued.
            NotReady: stopped, or the other process is gone, or its batcher is.
        """
        if self._stopped:
            raise NotReady("the model is not running")
        ids = array("i")
        for row in rows:
            ids.extend(row)
        lengths = [len(row) for row in rows]
        fields = {"served": self._number, "lengths": lengths, "deadline": deadline, "priority": priority}
        try:
            # What comes too late is told by the batcher, with the stage it was in; this is for one that can't.
            async with asyncio.timeout(deadline - time.monotonic() + TELL_EVERY_S):
                head, body = await self._link.call("score", ids.tobytes(), **fields)
        except TimeoutError:
            return [DeadlineExceeded("queue") for _ in rows]
        return read_scores(head, body)


def read_rows(head: Head, body: bytes) -> Sequence[Sequence[int]]:
    """The rows of a call of `score`."""
    ids = array("i")
    ids.frombytes(body)
    rows, start = [], 0
    for length in head["lengths"]:
        rows.append(ids[start : start + length])
        start += length
    return rows


def write_scores(scores: Sequence[Scored | ServiceError]) -> tuple[Head, bytes]:
    """An answer to a call of `score`: logits as float32, one row after the other, and what is no logits as JSON."""
    found = [score.logits for score in scores if isinstance(score, Scored)]
    told = [[score.queue_s, score.infer_s] if isinstance(score, Scored) else fields_of(score) for score in scores]
    return {"told": told}, b"".join(logits.astype(np.float32, copy=False).tobytes() for logits in found)


def read_scores(head: Head, body: bytes) -> list[Scored | ServiceError]:
    """What `write_scores` wrote."""
    told: list[Any] = head["told"]
    count = sum(isinstance(entry, list) for entry in told)
    logits = iter(np.frombuffer(body, dtype=np.float32).reshape(count, -1) if count else ())
    return [Scored(next(logits), *entry) if isinstance(entry, list) else error_of(entry) for entry in told]


def write_model(served: ServedModel) -> tuple[dict[str, Any], bytes]:
    """All that a process without the graph needs of a model: facts, and manifest and vocabulary as JSON.

    Not a place on disk: by the time that it is read another bundle may lie there.
    """
    bundle, engine = served.bundle, served.engine
    facts = asdict(Facts(engine.runtime, engine.provider, engine.precision))
    content = {"manifest": bundle.manifest.model_dump(mode="json"), "tokenizer": bundle.tokenizer.content()}
    fields = {"name": served.name, "path": str(bundle.path), "version": bundle.version, "facts": facts}
    return fields, json.dumps(content, ensure_ascii=False).encode()


def read_bundle(head: Head, body: bytes) -> Bundle:
    """The bundle of `write_model`, without golden answers. Takes about as long as opening the tokenizer from disk."""
    content = json.loads(body)
    tokenizer = Tokenizer.from_content(content["tokenizer"])
    return Bundle(Path(head["path"]), Manifest.model_validate(content["manifest"]), tokenizer, (), head["version"])
