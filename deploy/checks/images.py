"""Images of the Dockerfile: built on a base of this machine, looked at, run as closed as a pod runs them.

`LENGNUAN_IMAGE_BASE` names a base image that this machine has or may pull. Without it a stand-in is made from Debian's
own packages and called as the Dockerfile wants: what is shown then is that the steps work, not that they work on the
official image.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.tools import ROOT, ToolMissing, must, run

CONTAINER = "lengnuan-check"
SUITE = "bookworm"  # Debian's release with the Python that the Dockerfile's own base has
PATHS = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/etc/ssl/certs"


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[str]:
    """Inside, images and containers are those of the checks alone; gives the name of the base image.

    Raises:
        ToolMissing: this is not root, or no base image can be had.
    """
    if os.geteuid():
        raise ToolMissing("images are built by root here: run `sudo .venv/bin/python deploy/check.py image`")
    folder.mkdir(parents=True, exist_ok=True)
    with _storage(folder):
        yield os.environ.get("LENGNUAN_IMAGE_BASE") or _stand_in(folder)


def build(target: str, base: str, mounts: Mapping[Path, str] | None = None) -> str:
    """Build a target of the Dockerfile; `mounts` are there, read-only, while it is built. Returns the image's name.

    Raises:
        ToolMissing: it failed; says why.
    """
    name = f"localhost/lengnuan-{target}:check"
    places = {Path(CERTIFICATES): CERTIFICATES, **(mounts or {})}
    given = [part for source, place in places.items() for part in ("-v", f"{source}:{place}:ro")]
    bases = ["--build-arg", f"BASE={base}", "--build-arg", f"GPU_BASE={base}"]
    must(
        "buildah",
        "bud",
        "--format",
        "docker",
        "--isolation",
        "chroot",
        *given,
        *bases,
        "--target",
        target,
        "-t",
        name,
        ROOT,
    )
    return name


def inspected(image: str) -> dict[str, Any]:
    """What podman says of an image."""
    found: dict[str, Any] = json.loads(must("podman", "image", "inspect", image))[0]
    return found


def looks(image: Mapping[str, Any], entry: str) -> list[str]:
    """What is wrong with its settings; `entry`: the command that it is to start."""
    found = []
    config = image["Config"]
    for name, wanted in (("User", "10001:10001"), ("Entrypoint", [entry]), ("StopSignal", "SIGTERM")):
        if config.get(name) != wanted:
            found.append(f"{name} is {config.get(name)}, not {wanted}")
    if "org.opencontainers.image.revision" not in config.get("Labels", {}):
        found.append("no OCI labels")
    return found


@contextlib.contextmanager
def started(image: str, *options: str, command: Sequence[str] = ()) -> Iterator[None]:
    """A container while the block runs: no network, a read-only root, no capabilities, as a user of no rights."""
    runtime = shutil.which("runc") or "/usr/sbin/runc"
    closed = ["--network=none", "--read-only", "--tmpfs", "/tmp", "--cap-drop=ALL"]  # noqa: S108
    closed += ["--security-opt=no-new-privileges", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
    start = ["podman", "--runtime", runtime, "run", "-d", "--name", CONTAINER, "--health-interval=disable"]
    run("podman", "rm", "-f", CONTAINER)
    must(*start, *closed, *options, image, *command)
    try:
        yield
    finally:
        run("podman", "rm", "-f", CONTAINER)


def start_again() -> None:
    """Give the container's command once more, after it has ended."""
    must("podman", "start", CONTAINER)


def ended(seconds: float) -> int | None:
    """The exit code of the container, once it has ended by itself; None if it goes on after that time."""
    return int(must("podman", "wait", CONTAINER)) if within(seconds, lambda: not _state()["Running"]) else None


def stopped() -> int:
    """The exit code of the container after SIGTERM, or 137 if it took over a minute or all of its memory."""
    must("podman", "stop", "-t", "60", CONTAINER)
    state = _state()
    return 137 if state.get("OOMKilled") else int(state["ExitCode"])


def within(seconds: float, done: Callable[[], bool]) -> bool:
    """Whether that became true within the time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def said() -> str:
    """What the container has said."""
    done = run("podman", "logs", CONTAINER)
    return done.stdout + done.stderr


def log() -> str:
    """The last of it, for a message."""
    return said().strip()[-600:]


def _state() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(must("podman", "inspect", CONTAINER))[0]["State"]
    return state


@contextlib.contextmanager
def _storage(folder: Path) -> Iterator[None]:
    """Images and containers of the checks alone, in plain folders: a container may not be able to mount an overlay."""
    content = f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/images"\n'
    (folder / "storage.conf").write_text(content, encoding="utf-8")
    before = os.environ.get("CONTAINERS_STORAGE_CONF")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(folder / "storage.conf")
    try:
        yield
    finally:
        if before is None:
            del os.environ["CONTAINERS_STORAGE_CONF"]
        else:
            os.environ["CONTAINERS_STORAGE_CONF"] = before


def _stand_in(folder: Path) -> str:
    """A base image with Debian's Python, made once."""
    name = "localhost/lengnuan-base:stand-in"
    if not run("podman", "image", "exists", name).returncode:
        return name
    root, archive = folder / "root", folder / "base.tar"
    shutil.rmtree(root, ignore_errors=True)
    packages = "--include=python3,python3-venv,ca-certificates"
    must("debootstrap", "--variant=minbase", packages, SUITE, root)
    (root / "usr/local/bin/python3").symlink_to("/usr/bin/python3")
    for heavy in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / heavy, ignore_errors=True)
    must("tar", "-C", root, "-cf", archive, ".")
    must("podman", "import", "-c", f"ENV PATH={PATHS}", "-c", 'CMD ["python3"]', archive, name)
    archive.unlink()
    shutil.rmtree(root)
    return name
