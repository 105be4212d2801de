"""Lengnuan and the servers it is measured against: how each is installed, started, asked and stopped."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = ROOT / "runs" / "peers"
READY_WITHIN_S = 180.0

FIRST_TEXT = "这部电影虽然前半段节奏很慢，但结尾非常精彩"


@dataclass(frozen=True)
class Server:
    """One server with one model.

    Args:
        name: in the tables and files.
        environment: a virtual environment, made from `peers/ENVIRONMENT.txt`; empty: the one that runs this.
        command: arguments of its Python.
        precision: of its arithmetic.
        packages: whose releases are told.
        product: a server as one gets it, not an assembly of the best parts of several.
        route: what is asked.
        body: texts to the object that is sent.
        read: a reply's object to float64 [N, K].
    """

    name: str
    environment: str
    command: tuple[str, ...]
    precision: str
    packages: tuple[str, ...]
    product: bool = True
    route: str = "/classify"
    body: Callable[[Sequence[str]], dict[str, Any]] = lambda texts: {"input": texts[0] if len(texts) == 1 else texts}
    read: Callable[[Any], npt.NDArray[np.float64]] = lambda reply: np.array([item["probs"] for item in reply["data"]])

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    def request(self, texts: Sequence[str]) -> bytes:
        """The bytes of a request."""
        body = json.dumps(self.body(texts), ensure_ascii=False).encode()
        head = f"POST {self.route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def installed(self) -> bool:
        """True when its environment is there and holds the releases that its list asks for."""
        return not self.environment or (_marker(self.environment).exists() and not _outdated(self.environment))

    def versions(self) -> str:
        """The releases of `packages`, as its own environment has them."""
        code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
        run = subprocess.run([self.python, "-c", code, *self.packages], capture_output=True, text=True, check=True)
        return run.stdout.strip()


def install(environment: str) -> None:
    """Make a peer's virtual environment with the releases in `peers/ENVIRONMENT.txt`, unless it is there.

    Raises:
        CalledProcessError: pip can't; it has said why.
    """
    if _marker(environment).exists() and not _outdated(environment):
        return
    folder = ENVIRONMENTS / environment
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    listed = SCRIPTS / f"{environment}.txt"
    print(f"installing {listed.relative_to(ROOT)} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", listed], check=True)
    shutil.copy(listed, _marker(environment))  # last: without it the environment does not count


def _marker(environment: str) -> Path:
    return ENVIRONMENTS / environment / "installed.txt"


def _outdated(environment: str) -> bool:
    return _marker(environment).read_bytes() != (SCRIPTS / f"{environment}.txt").read_bytes()


class Running:
    """A server that has answered a first request; its processes are a session of their own.

    Attributes:
        start_s: seconds from its start to that answer.
    """

    def __init__(self, server: Server, port: int, process: "subprocess.Popen[bytes]", start_s: float) -> None:
        self.server = server
        self.port = port
        self.start_s = start_s
        self._process = process

    def pause(self) -> None:
        """Stop all of its processes, so that they don't disturb another server's turn."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def event_loop_s(self) -> float:
        """Processor time of the main thread up to now, in which a service of ours has its event loop."""
        pid = self._process.pid
        return _schedule_s(Path(f"/proc/{pid}/task/{pid}"))

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def processor_s(self) -> dict[int, float]:
        """Processor time of each of its processes up to now."""
        return {pid: sum(map(_schedule_s, Path(f"/proc/{pid}/task").iterdir())) for pid in _session(self._process.pid)}

    def resident_mb(self) -> float:
        """Memory of all its processes, in MB; a page that several share counts once."""
        return sum(map(_proportional_kb, _session(self._process.pid))) / 1024


@contextlib.contextmanager
def running(server: Server, bundle: Path, *cores: int) -> Iterator[Running]:
    """Start a server on some cores, wait for its first answer; stop it in the end.

    Raises:
        SystemExit: it ended, or gave no answer within `READY_WITHIN_S`; names the file with what it wrote.
    """
    port = _free_port()
    log = ENVIRONMENTS / f"{server.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    values = {"port": str(port), "bundle": str(bundle.resolve())}
    command = [
        "taskset",
        "-c",
        ",".join(map(str, cores)),
        str(server.python),
        *(part.format(**values) for part in server.command),
    ]
    begin = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(), cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_for_answer(server, port, process, log)
        yield Running(server, port, process, time.perf_counter() - begin)
    finally:
        _stop(process)


def _environment() -> dict[str, str]:
    """One thread, the project's packages, and nobody told that a benchmark runs."""
    quiet = {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LENGNUAN_")}
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept | quiet | one_thread | {"PYTHONPATH": str(ROOT / ".types")}


def _wait_for_answer(server: Server, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.perf_counter() + READY_WITHIN_S
    while time.perf_counter() < end:
        if process.poll() is not None:
            raise SystemExit(f"{server.name} ended with {process.returncode}: {log} has what it wrote")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(server.request([FIRST_TEXT]))
            if connection.recv(12) == b"HTTP/1.1 200":
                return
        time.sleep(0.02)
    raise SystemExit(f"{server.name} gave no answer within {READY_WITHIN_S:g} s: {log} has what it wrote")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    for kind in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        if kind == signal.SIGCONT:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _schedule_s(task: Path) -> float:
    return int((task / "schedstat").read_text(encoding="utf-8").split()[0]) / 1e9


def _session(leader: int) -> Iterator[int]:
    """The processes of a session, by number."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(after_name[3]) == leader:
                yield int(folder.name)


def _proportional_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
