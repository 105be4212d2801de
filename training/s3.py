"""S3-compatible storage, where a bundle store or labelled files may lie instead of in a folder.

Where it is and who asks is in the variables that all its clients read: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.core import url_to_fs

from lengnuan.training.errors import StoreBusy, TrainingError, UsageError

log = logging.getLogger(__name__)

SCHEME = "s3://"

# What botocore calls a mistake in what it was given, which no second try would mend.
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")
_MISTAKES = ("ParamValidationError", "ValueError")


def is_remote(where: str | Path) -> bool:
    """Whether it is an address in S3, and not a path."""
    return str(where).startswith(SCHEME)


def connect(url: str) -> tuple[Any, str]:
    """A file system of fsspec, and the path there of an address in S3 or of a folder.

    Raises:
        UsageError: s3fs is not installed.
    """
    fresh = {"use_listings_cache": False, "skip_instance_cache": True} if is_remote(url) else {}
    try:
        files, path = url_to_fs(url, **fresh)
    except ImportError as error:
        raise UsageError(f'{url} needs s3fs: pip install "lengnuan[s3]"') from error
    return files, path


@contextmanager
def reached(url: str) -> Iterator[None]:
    """What the client raises inside, as errors of ours; a missing object stays `FileNotFoundError`.

    Raises:
        UsageError: no key, no permission, or an address that can't be one.
        StoreBusy: no answer; the same command may have more luck.
    """
    try:
        yield
    except (TrainingError, FileNotFoundError):
        raise
    except PermissionError as error:
        raise UsageError(f"{url}: {error}: what does the key in AWS_ACCESS_KEY_ID allow there?") from error
    except Exception as error:
        kind = type(error).__name__
        if kind in _NO_CREDENTIALS:
            raise UsageError(f"{url}: {error}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
        raise (UsageError if kind in _MISTAKES else StoreBusy)(f"{url}: {error}") from error


def copy_of(url: str, folder: Path) -> Path:
    """Where in `folder` the copy of an object lies, or of several with that prefix.

    Raises:
        UsageError: the address would lead out of it.
    """
    place = PurePosixPath(url.removeprefix(SCHEME))
    if ".." in place.parts or place.is_absolute():
        raise UsageError(f"{url}: no address in S3: write s3://bucket/key, without ..")
    return folder / place


def download(url: str, folder: Path) -> Path:
    """Copy an object into `folder`, unless that has been done; returns `copy_of` it.

    Raises:
        UsageError: no such object or bucket; see also `copy_of`, `connect` and `reached`.
        StoreBusy: no answer.
    """
    target = copy_of(url, folder)
    if folder in (target.parent, target):
        raise UsageError(f"{url}: no object: write s3://bucket/key")
    if target.exists():
        return target
    files, path = connect(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # In one request: parts of one object, should it be replaced meanwhile, are not parts of the other.
        with reached(url):
            files.get_file(path, str(target), max_concurrency=1)
    except FileNotFoundError as error:
        raise UsageError(f"{url}: {error}: is the address right, and has the object been put there?") from error
    log.info("%s: %s bytes copied", url, f"{target.stat().st_size:,}")
    return target
