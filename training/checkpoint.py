"""Checkpoints: for resuming a run, nothing else (what training ships is a bundle).

A checkpoint is a folder `step-N` with `tensors.safetensors` and `state.json`, which holds the checksum of the other.
It is written aside, flushed to disk and renamed, and only then are older ones removed: whenever the process is
killed, at least one loadable checkpoint is left once the first has been written. Nothing is ever unpickled. There is no
random state in it: what is drawn depends on the seed, the step and the rows alone (`lengnuan.training.batches`).
"""

import hashlib
import json
import logging
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor

from lengnuan.training.distributed import from_first, is_first
from lengnuan.training.errors import Interrupted, UsageError
from lengnuan.training.files import flush
from lengnuan.training.optimise import Optimiser
from lengnuan.training.stopping import stopping_waits

log = logging.getLogger(__name__)

# A checkpoint between evaluations is due after a minute, but later if saving would take over a hundredth of the time.
SECONDS_BETWEEN = 60.0
MAX_SHARE_OF_TIME = 0.01


class Resumable(Protocol):
    """What else than the weights has a state between two steps. The state must be JSON."""

    def state(self) -> dict[str, Any]:
        """All that `restore` needs."""

    def restore(self, state: dict[str, Any]) -> None:
        """Be as when `state` returned that."""


class Checkpoints:
    """The checkpoints of one stage: of its optimiser, and of other parts by name.

    Inside `with`, a signal to stop waits for the next `stop_point`, and is answered with a checkpoint.

    Args:
        folder: of this stage alone.
        identity: of the rows that are trained on.
        optimiser: the weights, their moments and the step.
        parts: what else has a state.
    """

    def __init__(self, folder: Path, identity: str, optimiser: Optimiser, **parts: Resumable) -> None:
        self._folder = folder
        self._identity = identity
        self._optimiser = optimiser
        self._parts = parts
        self._saved_at = time.monotonic()
        self._saving_took = 0.0
        self._signals = ExitStack()

    def __enter__(self) -> "Checkpoints":
        self._signals.enter_context(stopping_waits())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Interrupted):
            from_first(self.save)  # the others stay until it is written: torchrun stops all when one has ended
        self._signals.__exit__(kind, error, trace)

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one.

        Raises:
            UsageError: it is of other rows, or of another release.
        """
        found = from_first(lambda: load_checkpoint(self._folder))
        if found is None:
            return
        tensors, state = found
        if state.get("identity") != self._identity or not state.keys() >= self._parts.keys():
            raise UsageError(
                f"{self._folder} are of other rows or of another release: choose another --output, or remove them"
            )
        self._optimiser.restore(tensors, state["optimiser"])
        for name, part in self._parts.items():
            part.restore(state[name])
        log.info("resumed at step %d of %d", self._optimiser.step, self._optimiser.steps)

    def save(self) -> None:
        """Write one now; of processes that train together the first does."""
        if not is_first():
            return
        start = time.monotonic()
        state: dict[str, Any] = {name: part.state() for name, part in self._parts.items()}
        state |= {"identity": self._identity, "optimiser": self._optimiser.state()}
        save_checkpoint(self._folder, self._optimiser.step, self._optimiser.tensors(), state)
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - start

    def save_if_due(self) -> None:
        """Write one if the last was long ago. It changes no result, so it may go by the clock."""
        if time.monotonic() - self._saved_at > max(SECONDS_BETWEEN, self._saving_took / MAX_SHARE_OF_TIME):
            self.save()


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write `step-N` under `folder` and drop the older ones. `state` must be JSON."""
    # One that was saved at this step before stays until there is another, so that has a name of its own.
    before = [again for other, again in map(_age, folder.glob("step-*")) if other == step]
    target = folder / f"step-{step}{'+' * (max(before, default=-1) + 1)}"
    aside = folder / ".writing"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, aside / "tensors.safetensors")
    checked = {"step": step, "sha256": _sha256(aside / "tensors.safetensors"), **state}
    (aside / "state.json").write_text(json.dumps(checked, ensure_ascii=False), encoding="utf-8")
    for file in (aside / "tensors.safetensors", aside / "state.json", aside):
        flush(file)
    aside.rename(target)
    flush(folder)
    for old in folder.glob("step-*"):
        if old != target:
            shutil.rmtree(old)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """(tensors, state) of the newest checkpoint that is whole, or None."""
    for path in sorted(folder.glob("step-*"), key=_age, reverse=True):
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if _sha256(path / "tensors.safetensors") != state["sha256"]:
                raise ValueError("wrong checksum")
        except (OSError, ValueError, KeyError) as error:
            log.warning("checkpoint %s is not whole (%s): trying an older one", path, error)
            continue
        return load_file(path / "tensors.safetensors"), state
    return None


def _age(path: Path) -> tuple[int, int]:
    """Newest is largest: by the step, then by how often it was saved there."""
    step = path.name.removeprefix("step-").rstrip("+")
    return int(step), path.name.count("+")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
