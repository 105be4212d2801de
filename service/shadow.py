"""A share of the default model's texts for another model as well, to see how often the two agree."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence

from lengnuan.service.answers import Answer, LongRule
from lengnuan.service.errors import Overloaded, ServiceError
from lengnuan.service.metrics import ShadowResult
from lengnuan.service.slots import ModelSlot

log = logging.getLogger(__name__)

# Texts that may wait, how often to look whether the default model is idle, and for how long in all.
WAITING = 256
SECONDS_BETWEEN_LOOKS = 0.005
LOOKS = 200

_Text = tuple[str, str, LongRule]  # with the label that the default gave it


class Shadow:
    """Lets the other model answer, and counts how often it agrees.

    It is asked only while the default has nothing to do, and one text at a time, so that a caller waits for the run of
    one text at most. What finds no such moment is dropped, and counted.

    Args:
        default: whose texts.
        other: who is to answer them too.
        share: of the texts, chosen by chance.
        timeout_s: longest wait for the other's answer.
    """

    def __init__(self, default: ModelSlot, other: ModelSlot, share: float, timeout_s: float) -> None:
        self._default = default
        self._other = other
        self._share = share
        self._timeout_s = timeout_s
        self._waiting: deque[_Text] = deque()
        self._news = asyncio.Event()
        self._random = random.Random()

    async def run(self) -> None:
        """Take texts from now on, and compare; runs until it is cancelled."""
        if self._default.served is not None:
            self._default.served.on_answers = self._offer
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                self._count(await self._compare(*self._waiting.popleft()))

    def _offer(self, texts: Sequence[str], items: Sequence[Answer | ServiceError], on_long: LongRule) -> None:
        for text, item in zip(texts, items, strict=True):
            if not isinstance(item, Answer) or self._random.random() >= self._share:
                continue
            if len(self._waiting) < WAITING:
                self._waiting.append((text, item.prediction.label, on_long))
                self._news.set()
            else:
                self._count("dropped")

    async def _compare(self, text: str, label: str, on_long: LongRule) -> ShadowResult:
        idle = await self._idle()
        served = self._other.served
        if not idle or served is None:
            return "dropped"
        served.holders.enter()
        try:
            # The default could read all of it, or it would not have an answer; the other may read less.
            rule = "truncate" if on_long == "error" else on_long
            deadline = time.monotonic() + self._timeout_s
            answers = await served.classify([text], rule, True, deadline, priority="bulk")
        except Overloaded:
            return "dropped"
        except ServiceError:
            return "failed"
        except Exception:
            log.exception("the comparison with another model failed")
            return "failed"
        finally:
            served.holders.leave()
        [item] = answers.items
        if isinstance(item, ServiceError):
            return "failed"
        return "same" if item.prediction.label == label else "different"

    async def _idle(self) -> bool:
        """Whether the default model has, within a second, a moment with nothing to do."""
        for _ in range(LOOKS):
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            batcher = self._default.served.batcher if self._default.served else None
            if batcher is not None and batcher.idle:
                return True
        return False

    def _count(self, result: ShadowResult) -> None:
        self._other.metrics.shadowed[result].inc()
