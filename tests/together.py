"""Two processes that train together, for tests: a command of lengnuan-train, maybe with a signal to the last process.

together.py SIGNAL STEP COMMAND...  what torchrun starts; the last process gets the signal in that step

`two_processes` does the same without torchrun: what takes long is imported once, and every process is a fork of that.
"""

import multiprocessing
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from lengnuan.training import __main__ as command
from lengnuan.training.distributed import rank, world
from lengnuan.training.optimise import Optimiser

PRELOADED = ("together", "lengnuan.training.seeds", "lengnuan.training.folds", "torch._dynamo")
SECONDS = 120


@dataclass(frozen=True)
class Ended:
    """How two processes have ended, the first one first, and what they said."""

    codes: list[int | None]
    said: str


def two_processes(folder: Path, *argv: Path | str, kill: signal.Signals | None = None, step: int = 0) -> Ended:
    """Run a command in two processes; `folder` gets what they say."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = [folder / f"said-{number}.txt" for number in (0, 1)]
    words = [str(word) for word in argv]
    processes = [
        context.Process(target=_one, args=(number, port, said[number], kill, step, words), daemon=True)
        for number in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        process.kill()  # if it still lives
        process.join()
    return Ended([p.exitcode for p in processes], "".join(file.read_text(encoding="utf-8") for file in said))


def _one(number: int, port: int, said: Path, kill: signal.Signals | None, step: int, argv: list[str]) -> None:
    """Be one of them, with what torchrun would set."""
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    tqdm.set_lock(threading.RLock())  # its own is shared by processes, and a killed one would leave it behind
    sys.exit(signalled(kill, step, argv) if kill else command.main(argv))


def signalled(number: signal.Signals, step: int, argv: list[str]) -> int:
    """Run a command; its last process gets the signal in that step."""
    update = Optimiser.update

    def watched(optimiser: Optimiser) -> tuple[float, float]:
        if optimiser.step + 1 == step and rank() == world() - 1:
            os.kill(os.getpid(), number)
        return update(optimiser)

    Optimiser.update = watched  # type: ignore[method-assign]
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(signalled(signal.Signals[sys.argv[1]], int(sys.argv[2]), sys.argv[3:]))
