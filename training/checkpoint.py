"""Checkpoints: for resuming a run, nothing else (what training ships is a bundle).

A checkpoint is a folder `step-N` with `tensors.safetensors` and `state.json`, which holds the checksum of the other.
It is written aside, flushed to disk and renamed, and only then are older ones removed: whenever the process is
killed, at least one loadable checkpoint is left once the first has been written. Nothing is ever unpickled.
"""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

log = logging.getLogger(__name__)


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write `step-N` under `folder` and drop the older ones. `state` must be JSON; random state is added."""
    target = folder / f"step-{step}"
    aside = folder / f".writing-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, aside / "tensors.safetensors")
    checked = {"step": step, "sha256": _sha256(aside / "tensors.safetensors"), **state}
    (aside / "state.json").write_text(json.dumps(checked, ensure_ascii=False), encoding="utf-8")
    for file in (aside / "tensors.safetensors", aside / "state.json", aside):
        _flush(file)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    _flush(folder)
    for old in folder.glob("step-*"):
        if old != target:
            shutil.rmtree(old)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """(tensors, state) of the newest checkpoint that is whole, or None; the random state is put back as it was."""
    found = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")), reverse=True)
    for path in found:
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if _sha256(path / "tensors.safetensors") != state["sha256"]:
                raise ValueError("wrong checksum")
        except (OSError, ValueError, KeyError) as error:
            log.warning("checkpoint %s is not whole (%s): trying an older one", path, error)
            continue
        tensors = load_file(path / "tensors.safetensors")
        torch.set_rng_state(tensors.pop("random.cpu"))
        cuda = tensors.pop("random.cuda", None)
        if cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(cuda)
        return tensors, state
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
