"""The serving images, built and run: serve-cpu with half a CPU and 512 MB, serve-gpu on a machine without a GPU."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.images import CONTAINER, build, inspected, log, looks, started, stopped, within, workshop
from checks.tools import run

LARGEST_MB = 450
READY_WITHIN_S = 60
SMALL = ("--cpus=0.5", "--memory=512m")
NO_DEVICE = 4  # the service's exit code for a device that is not there
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


def cpu_problems(folder: Path) -> list[str]:
    """Build serve-cpu, look at it, run it, stop it.

    Raises:
        ToolMissing: no base image can be had, or the build failed; says why.
    """
    with workshop(folder) as base:
        image = build("serve-cpu", base)
        found = looks_like_service(inspected(image))
        with started(image, *SMALL):
            return found + _answers(("fastapi", "lengnuan", "openvino")) + _drains()


def gpu_problems(folder: Path) -> list[str]:
    """Build serve-gpu on a base without CUDA: it says that there is no GPU, and answers on the CPU when told to.

    Raises:
        ToolMissing: no base image can be had, or the build failed; says why.
    """
    with workshop(folder) as base:
        image = build("serve-gpu", base)
        found = looks_like_service(inspected(image), largest_mb=None)
        with started(image, "--env=LENGNUAN_DEVICE=cpu"):
            return found + _answers(("fastapi", "lengnuan", "onnxruntime-gpu")) + _refuses() + _drains()


def _refuses() -> list[str]:
    """What the service does with the setting of the image, and no GPU."""
    variables = ["--env", "LENGNUAN_DEVICE=cuda", "--env", "LENGNUAN_PORT=8001"]
    done = run("podman", "exec", *variables, CONTAINER, "lengnuan-serve")
    if done.returncode == NO_DEVICE and "cuda" in done.stdout + done.stderr:
        return []
    return [f"without a GPU it ended with {done.returncode}, not {NO_DEVICE}: {(done.stdout + done.stderr)[-300:]}"]


def looks_like_service(image: dict[str, Any], largest_mb: float | None = LARGEST_MB) -> list[str]:
    """What its size and settings say."""
    found = looks(image, "lengnuan-serve")
    size = image["Size"] / 1e6
    if largest_mb is not None and size > largest_mb:
        found.append(f"the image has {size:.0f} MB, more than {largest_mb}")
    if "/readyz" not in json.dumps(image.get("Healthcheck") or image["Config"].get("Healthcheck") or {}):
        found.append("no health check that asks /readyz")
    return found


def _answers(wanted_parts: Sequence[str]) -> list[str]:
    """Of the running container: ready, answers, writes nowhere but /tmp, lists its parts."""
    if not within(READY_WITHIN_S, lambda: not run("podman", "healthcheck", "run", CONTAINER).returncode):
        return [f"not ready within {READY_WITHIN_S} s: {log()}"]
    asked = run("podman", "exec", CONTAINER, "python3", "-c", ASK)
    if asked.returncode:
        return [f"no answer: {asked.stderr.strip()[-300:]}"]
    answer = json.loads(asked.stdout)
    expected = {"label": "positive", "uid": 10001, "interfaces": ["lo"], "root": False, "tmp": True}
    found = [f"{name} is {answer[name]}, not {wanted}" for name, wanted in expected.items() if answer[name] != wanted]
    parts = {re.sub(r"[-_.]+", "-", name).lower() for name in answer["parts"]}
    found += [f"{name} is not in the list of parts" for name in wanted_parts if name not in parts]
    found += [f"{name} is in the serving image" for name in ("torch", "onnx", "scikit-learn") if name in parts]
    return found


def _drains() -> list[str]:
    """Of the running container: SIGTERM ends it well."""
    code = stopped()
    return [f"after SIGTERM it ended with {code}: {log()}"] if code else []
