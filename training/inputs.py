"""Labelled files and texts that lie in S3: copied to this machine once, when a command begins, for as long as it runs.

So a command sees one state of each object, however often it reads it, and the next one sees what is there by then: a
run that goes on finds changed rows as it would find them in a folder.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lengnuan.training.config import TrainConfig
from lengnuan.training.s3 import SCHEME, copy_of, download, is_remote


@dataclass(frozen=True)
class Remote:
    """A file in S3, as an option names it."""

    url: str


def data_file(text: str) -> Path | Remote:
    """The type of an option that names a file, or s3://bucket/key; inside `local_files` the option holds a path."""
    return Remote(text) if is_remote(text) else Path(text)


def data_root(text: str) -> Path | str:
    """The type of an option that names a folder, or s3://bucket/folder, of files that a config names: `local_data`."""
    return text if is_remote(text) else Path(text)


@contextmanager
def local_files(arguments: argparse.Namespace) -> Iterator[None]:
    """Inside, the files that the options name are on this machine.

    Args:
        arguments: also gets the folder for copies, as `copies`; see `local_data`.

    Raises:
        UsageError: see `download`.
        StoreBusy: likewise.
    """
    with TemporaryDirectory(prefix="lengnuan-") as folder:
        for name, value in vars(arguments).items():
            setattr(arguments, name, _local(value, Path(folder)))
        arguments.copies = Path(folder)
        yield


def _local(value: Any, folder: Path) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_local(part, folder) for part in value)
    return download(value.url, folder) if isinstance(value, Remote) else value


def local_data(config: TrainConfig, folder: Path) -> TrainConfig:
    """The config, with what it reads from a `data.root` in S3 copied into `folder`.

    Raises:
        UsageError: see `download`.
        StoreBusy: likewise.
    """
    data, url = config.data, str(config.data.root)
    if not is_remote(url):
        return config
    rows = (*data.train.values(), *data.dev.values(), *data.test.values())
    for path in (*rows, *config.pretrain.corpus, *config.distill.texts):
        if not path.is_absolute():
            download(f"{SCHEME}{url.removeprefix(SCHEME).rstrip('/')}/{path}", folder)
    return config.model_copy(update={"data": data.model_copy(update={"root": copy_of(url, folder)})})
