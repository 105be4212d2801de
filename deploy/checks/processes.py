"""Programs that a check starts, and the waiting until they answer."""

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from checks.tools import ROOT, ToolMissing

PATIENCE_S = 180


@contextmanager
def running(
    command: list[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program while the block runs, at the root of the repository; what it says goes into `log`."""
    if shutil.which(command[0]) is None:
        raise ToolMissing(f"{command[0]} is not installed: run `make deploy-check`, which says how")
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=ROOT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def get(url: str) -> str:
    """The page at an address. Raises `OSError`, also for an error status."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def wait(ask: Callable[[], object], message: str) -> None:
    """Ask until it raises neither `OSError` nor `ValueError`; raises `ToolMissing` if that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            ask()
        except (OSError, ValueError):
            if time.monotonic() > end:
                raise ToolMissing(message) from None
            time.sleep(0.5)
        else:
            return


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
