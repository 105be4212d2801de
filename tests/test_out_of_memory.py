"""An engine that has too little memory for a batch."""

import numpy as np
import pytest
from batcher_fixtures import LIMITS, soon, started
from service_fixtures import FakeEngine, async_test, logits_of, value

from lengnuan.model.errors import is_out_of_memory
from lengnuan.service.batching import Scored
from lengnuan.service.budget import EASED_S, Budget
from lengnuan.service.errors import EngineFailed

SAID = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Status "
    "Message: bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 285081600",
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc",
    "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0",
    "[ONNXRuntimeError] : 1 : FAIL : CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
    "Exception from src/plugins/intel_cpu/src/cpu_memory.cpp:248:\nFailed to allocate 14495514624 bytes of memory",
    "could not allocate memory for a scratchpad",
    "bad allocation",
)


class SmallEngine(FakeEngine):
    """Has memory for so many padded tokens."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if token_ids.size > self.room:
            self.shapes.append(token_ids.shape)
            raise RuntimeError(SAID[0])
        return super().run(token_ids, mask)


@pytest.mark.parametrize("error", [*map(RuntimeError, SAID), MemoryError(), np.linalg.LinAlgError("out of memory")])
def test_it_is_recognised_by_what_the_runtimes_say(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("said", ["INVALID_ARGUMENT : Got invalid dimensions for input: mask", "poisoned", ""])
def test_other_failures_are_not(said: str) -> None:
    assert not is_out_of_memory(RuntimeError(said))


@async_test
async def test_the_batch_is_halved_and_everything_is_answered() -> None:
    rows = [[n] * 8 for n in range(3, 7)]
    engine = SmallEngine(room=16)
    async with started(engine) as (batcher, metrics):
        scored = await batcher.score(rows, soon())
        assert [answer.logits.tolist() for answer in scored] == [pytest.approx(logits_of(row)) for row in rows]
        assert engine.shapes == [(4, 8), (2, 8), (2, 8)]
        assert value(metrics.registry, "backend_errors_total", kind="oom") == 1
        assert value(metrics.registry, "backend_errors_total", kind="runtime") == 0
        engine.shapes.clear()
        await batcher.score([[n] * 8 for n in range(10, 18)], soon())
    assert engine.shapes == [(2, 8)] * 4, "the next batches are small ones"


@async_test
async def test_a_row_that_is_too_large_by_itself_fails_alone() -> None:
    async with started(SmallEngine(room=9)) as (batcher, metrics):
        fits, too_large, after = await batcher.score([[5] * 4, [6] * 10, [7]], soon())
        assert [type(answer) for answer in (fits, too_large, after)] == [Scored, EngineFailed, Scored]
        assert "memory" in too_large.message
        assert value(metrics.registry, "backend_errors_total", kind="oom") > 0


def test_less_is_run_at_once_for_a_while_and_then_again_more() -> None:
    budget = Budget(LIMITS, workers=1)
    assert budget.tokens("interactive", 0.0) == LIMITS.max_tokens == 32
    budget.ran_out_of_memory(padded=28, now=100.0)
    assert budget.tokens("interactive", 100.0 + EASED_S - 1) == 14
    assert budget.tokens("interactive", 100.0 + EASED_S) == 28
    assert budget.tokens("interactive", 100.0 + 2 * EASED_S) == 32
    assert budget.tokens("interactive", 100.0 + 9 * EASED_S) == 32


def test_the_budget_never_falls_to_nothing() -> None:
    budget = Budget(LIMITS, workers=1)
    budget.ran_out_of_memory(padded=1, now=0.0)
    assert budget.tokens("bulk", 0.0) == 1
