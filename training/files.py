"""Writing a file so that a reader, or a run that is started again, sees all of it or nothing.

Also after a power cut: what is written aside reaches the disk before it gets its name, and the name before anything
that it replaces is gone.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text aside and put it in place of `path`."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(text, encoding="utf-8")
    _put(aside, path)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content aside and put it in place of `target`."""
    aside = target.with_name(f".{target.name}.writing")
    shutil.copyfile(source, aside)
    _put(aside, target)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors aside, readable for every user, and put the file in place of `path`."""
    aside = path.with_name(f".{path.name}.writing")
    # A tensor that shares memory with another is written as one of its own.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(own, aside, dict(metadata) if metadata else None)
    aside.chmod(0o644)  # safetensors makes it private, but who trains is often not who serves
    _put(aside, path)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put(aside: Path, path: Path) -> None:
    flush(aside)
    os.replace(aside, path)
    flush(path.parent)
