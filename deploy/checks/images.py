"""The serving image, built and run: without a network, read-only, with half a CPU and 512 MB.

`LENGNUAN_IMAGE_BASE` names a base image that this machine has or may pull. Without it a stand-in is made from Debian's
own packages and called as the Dockerfile wants: what is shown then is that the steps work, not that they work on the
official image.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checks.tools import ROOT, ToolMissing, must, run

IMAGE = "localhost/lengnuan:check"
CONTAINER = "lengnuan-check"
LARGEST_MB = 450
READY_WITHIN_S = 60
SUITE = "bookworm"  # Debian's release with the Python that the Dockerfile's own base has
PATHS = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
ASK = """
import json, os, urllib.request as r
body = json.dumps({"input": "房间很干净"}).encode()
request = r.Request("http://127.0.0.1:8000/v1/classify", body, {"Content-Type": "application/json"})
found = {"label": json.load(r.urlopen(request, timeout=10))["data"][0]["label"], "uid": os.getuid()}
found["interfaces"] = os.listdir("/sys/class/net")
for name, path in (("root", "/opt/lengnuan/written"), ("tmp", "/tmp/written")):
    try:
        found[name] = bool(open(path, "w"))
    except OSError:
        found[name] = False
found["parts"] = [part["name"] for part in json.load(open("/opt/lengnuan/sbom.json"))["components"]]
print(json.dumps(found))
"""


def problems(folder: Path) -> list[str]:
    """Build it, look at it, run it, stop it.

    Raises:
        ToolMissing: no base image can be had, or a build failed; says why.
    """
    if os.geteuid():
        raise ToolMissing("images are built by root here: run `sudo .venv/bin/python deploy/check.py image`")
    folder.mkdir(parents=True, exist_ok=True)
    with _storage(folder):
        base = os.environ.get("LENGNUAN_IMAGE_BASE") or _stand_in(folder)
        certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"
        build = ["buildah", "bud", "--format", "docker", "--isolation", "chroot", "-v", certificates]
        must(*build, "--build-arg", f"BASE={base}", "--target", "serve-cpu", "-t", IMAGE, ROOT)
        found = looks(json.loads(must("podman", "image", "inspect", IMAGE))[0])
        with _running():
            found += _answers()
        return found


def looks(image: dict[str, Any]) -> list[str]:
    """What its size and settings say."""
    found = []
    size = image["Size"] / 1e6
    if size > LARGEST_MB:
        found.append(f"the image has {size:.0f} MB, more than {LARGEST_MB}")
    config = image["Config"]
    for name, wanted in (("User", "10001:10001"), ("Entrypoint", ["lengnuan-serve"]), ("StopSignal", "SIGTERM")):
        if config.get(name) != wanted:
            found.append(f"{name} is {config.get(name)}, not {wanted}")
    if "/readyz" not in json.dumps(image.get("Healthcheck") or config.get("Healthcheck") or {}):
        found.append("no health check that asks /readyz")
    if "org.opencontainers.image.revision" not in config.get("Labels", {}):
        found.append("no OCI labels")
    return found


def _answers() -> list[str]:
    """Of the running container: ready, answers, writes nowhere but /tmp, lists its parts, drains."""
    if not _within(READY_WITHIN_S, lambda: not run("podman", "healthcheck", "run", CONTAINER).returncode):
        return [f"not ready within {READY_WITHIN_S} s: {_log()}"]
    asked = run("podman", "exec", CONTAINER, "python3", "-c", ASK)
    if asked.returncode:
        return [f"no answer: {asked.stderr.strip()[-300:]}"]
    answer = json.loads(asked.stdout)
    expected = {"label": "positive", "uid": 10001, "interfaces": ["lo"], "root": False, "tmp": True}
    found = [f"{name} is {answer[name]}, not {wanted}" for name, wanted in expected.items() if answer[name] != wanted]
    parts = {re.sub(r"[-_.]+", "-", name).lower() for name in answer["parts"]}
    found += [
        f"{name} is not in the list of parts" for name in ("fastapi", "lengnuan", "openvino") if name not in parts
    ]
    found += [f"{name} is in the serving image" for name in ("torch", "onnx", "scikit-learn") if name in parts]
    must("podman", "stop", "-t", "60", CONTAINER)
    state = json.loads(must("podman", "inspect", CONTAINER))[0]["State"]
    if state["ExitCode"] or state.get("OOMKilled"):
        found.append(f"after SIGTERM it ended with {state['ExitCode']}: {_log()}")
    return found


@contextlib.contextmanager
def _running() -> Iterator[None]:
    runtime = shutil.which("runc") or "/usr/sbin/runc"
    limits = ["--cpus=0.5", "--memory=512m", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
    closed = ["--network=none", "--read-only", "--tmpfs", "/tmp", "--cap-drop=ALL"]  # noqa: S108
    closed.append("--security-opt=no-new-privileges")
    command = ["podman", "--runtime", runtime, "run", "-d", "--name", CONTAINER, "--health-interval=disable"]
    run("podman", "rm", "-f", CONTAINER)
    must(*command, *limits, *closed, IMAGE)
    try:
        yield
    finally:
        run("podman", "rm", "-f", CONTAINER)


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


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _log() -> str:
    done = subprocess.run(["podman", "logs", CONTAINER], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()[-600:]
