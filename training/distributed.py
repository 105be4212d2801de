"""Several processes that train one network together, as torchrun starts them. One process on its own is the usual case.

Every process has the plan of the whole run, takes its part of each step, and adds its gradient to those of the others:
so all have the same weights and come to the same decisions. The first process alone reads and writes files; the
others get rows, weights and verdicts from it. In a single process each function here passes on what it is given.
"""

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lengnuan.training.errors import ProcessLost, TrainingError

SECONDS_TO_ANSWER = 600  # within a step or an evaluation; a process that takes longer counts as lost
SECONDS_TO_WAIT = 7 * 86400  # for what the first process does alone: reading, learning the sub-words, teachers, export
SECONDS_BETWEEN_LOOKS = 0.02

_LOST = "another process of this training has ended or does not answer: see what it said. The same command goes on"

T = TypeVar("T")


@dataclass
class _State:
    """Process groups belong to the process, so what goes with them does too."""

    waiting: dist.ProcessGroup | None = None  # the same processes, for what may take long
    alone: bool = False  # while the first process does what the others wait for


_state = _State()


@contextmanager
def joined() -> Iterator[None]:
    """Inside, this process is one of those that torchrun started together; without torchrun nothing changes.

    Raises:
        ProcessLost: the others can't be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda and local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())
    with _reaching_others():
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=SECONDS_TO_ANSWER))
        _state.waiting = dist.new_group(backend="gloo", timeout=timedelta(seconds=SECONDS_TO_WAIT))
    if not is_first():
        logging.getLogger("lengnuan").setLevel(logging.WARNING)
    yield
    dist.destroy_process_group()  # after an error the process ends anyway, and the others may not answer any more


def world() -> int:
    """How many processes work together: 1 also in what the first one does alone."""
    return dist.get_world_size() if dist.is_initialized() and not _state.alone else 1


def rank() -> int:
    """Which of them this is; 0 is the first."""
    return dist.get_rank() if world() > 1 else 0


def is_first() -> bool:
    """Whether this process reads and writes files."""
    return rank() == 0


def local_rank() -> int:
    """Which of the processes on this machine this is: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world() -> int:
    """How many processes share this machine's cores."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, which alone calls it; all wait for that.

    `make` works as in a single process. What it returns is pickled, and so each process gets a copy of its own.

    Raises:
        TrainingError: `make` raised it; in every process.
        ProcessLost: `make` raised something else, in the other processes; or the first process is gone.
    """
    if world() == 1:
        return make()
    if not is_first():
        result, error = pickle.loads(_broadcast(b""))  # noqa: S301 - from a process of this same training
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]
    try:
        with _on_its_own():
            result = make()
    except Exception as problem:
        own = isinstance(problem, TrainingError)
        _broadcast(pickle.dumps((None, problem if own else ProcessLost(_LOST))))
        raise
    _broadcast(pickle.dumps((result, None), protocol=pickle.HIGHEST_PROTOCOL))
    return result


def anywhere(here: bool) -> bool:
    """Whether it is so in any process."""
    return here if world() == 1 else bool(all_sum(torch.tensor([float(here)])).item())


def all_sum(tensor: Tensor) -> Tensor:
    """The sum over the processes, in place; the same bits in each."""
    if world() > 1:
        with _reaching_others():
            dist.all_reduce(tensor)
    return tensor


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter], loss: float) -> float:
    """Give each parameter the sum of its gradients over the processes; returns the sum of the losses.

    A parameter without a gradient in any process stays without one, as the optimiser leaves such a one alone.
    """
    if world() == 1:
        return loss
    has = [float(p.grad is not None) for p in parameters]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([part.flatten() for part in parts] + [torch.tensor([*has, loss], device=parts[0].device)])
    *sums, rest = torch.split(all_sum(flat), [p.numel() for p in parameters] + [len(has) + 1])
    *anyone_has, total = rest.tolist()
    for p, there, gradient in zip(parameters, anyone_has, sums, strict=True):
        p.grad = gradient.view_as(p) if there else None
    return float(total)


def own_part(step: Sequence[npt.NDArray[np.int64]], *, whole: bool) -> list[npt.NDArray[np.int64]]:
    """This process's part of a step, which may be empty: every n-th of its batches, or every n-th row of each.

    Args:
        step: int64 [B] row numbers of each batch.
        whole: no batch is cut.
    """
    if whole:
        return list(step[rank() :: world()])
    parts = (rows[rank() :: world()] for rows in step)
    return [rows for rows in parts if len(rows)]


def rounds(items: Sequence[T]) -> list[T | None]:
    """`items` dealt out: this process's one of each round, None where the last round has none left for it."""
    own: list[T | None] = list(items[rank() :: world()])
    return own + [None] * (-(-len(items) // world()) - len(own))


@contextmanager
def _on_its_own() -> Iterator[None]:
    _state.alone = True
    try:
        yield
    finally:
        _state.alone = False


@contextmanager
def _reaching_others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # all errors of torch.distributed are such
        raise ProcessLost(f"{_LOST} ({error})") from error


def _broadcast(content: bytes) -> Any:
    """The first process's bytes, in every process. Signals are answered while it waits for them."""
    size = torch.tensor([len(content)])
    with _reaching_others():
        work = dist.broadcast(size, 0, group=_state.waiting, async_op=True)
        while not work.is_completed():  # a blocking call would keep Python from seeing a signal
            time.sleep(SECONDS_BETWEEN_LOOKS)
        work.wait()
        buffer = bytearray(content) if is_first() else bytearray(int(size.item()))
        dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), 0, group=_state.waiting)
    return buffer
