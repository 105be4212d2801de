"""A batch in a thread of the engine: padded, run, and taken apart when it fails."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengnuan.model.engine import Engine, Logits
from lengnuan.model.errors import is_out_of_memory
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.service.batching import Pending
from lengnuan.service.errors import EngineFailed, ServiceError
from lengnuan.service.metrics import ModelMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ran:
    """What came of a batch.

    Args:
        answers: one for each row that was run; those that nobody waited for any more were not.
        began: when (`time.monotonic()`).
        seconds: how long it took.
        too_large: padded tokens of each try that ran out of memory.
    """

    answers: dict[Pending, Logits | ServiceError]
    began: float
    seconds: float
    too_large: Sequence[int]


class Runner:
    """Calls the engine. Keeps nothing, so it may be used from several threads at once.

    Args:
        engine: what runs a batch.
        metrics: where failures are counted.
    """

    def __init__(self, engine: Engine, metrics: ModelMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def run(self, rows: Sequence[Pending]) -> Ran:
        """Blocks until every row that somebody still waits for has an answer. Raises nothing that an engine raises."""
        began = time.monotonic()
        # A batch may have stood behind another; its callers did not have to stay.
        awaited = [row for row in rows if not row.future.done() and row.deadline > began]
        too_large: list[int] = []
        answers = dict(zip(awaited, self._answers(awaited, too_large), strict=True))
        return Ran(answers, began, time.monotonic() - began, too_large)

    def _answers(self, rows: Sequence[Pending], too_large: list[int]) -> list[Logits | ServiceError]:
        """An answer a row. A batch that raises is halved until the guilty row is alone, or memory suffices."""
        if not rows:
            return []
        try:
            logits = self._engine.run(*pad([row.ids for row in rows], PAD_ID))
            if len(logits) != len(rows):
                raise ValueError(f"{len(logits)} rows of logits for {len(rows)} rows of ids")
        except Exception as error:  # whatever a runtime raises must not end the loop
            if is_out_of_memory(error):
                longest = max(len(row.ids) for row in rows)
                too_large.append(len(rows) * longest)
                self._metrics.engine_errors["oom"].inc()
                log.warning("the engine ran out of memory on %d x %d tokens", len(rows), longest)
            if len(rows) > 1:
                half = len(rows) // 2
                return self._answers(rows[:half], too_large) + self._answers(rows[half:], too_large)
            return [self._failed(error)]
        return [self._checked(row) for row in logits]

    def _failed(self, error: Exception) -> EngineFailed:
        log.error("the engine failed on a row: %s", type(error).__name__, exc_info=True)
        if is_out_of_memory(error):
            return EngineFailed("the model ran out of memory on this text")
        self._metrics.engine_errors["runtime"].inc()
        return EngineFailed("the model failed on this text")

    def _checked(self, logits: Logits) -> Logits | ServiceError:
        if np.isfinite(logits).all():
            return logits
        log.error("the engine gave logits that are not finite")
        self._metrics.engine_errors["not_finite"].inc()
        return EngineFailed("the model gave an answer that is not a number for this text")
