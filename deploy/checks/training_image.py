"""The image `train`, built and run: a small retraining as a pod would do it, stopped on its way, to a bundle."""

import os
import random
import shutil
from pathlib import Path

from checks.images import (
    CONTAINER,
    build,
    ended,
    inspected,
    log,
    looks,
    said,
    start_again,
    started,
    stopped,
    within,
    workshop,
)
from checks.tools import PYTHON, ROOT, must, run

INTERRUPTED = 75
STARTS_WITHIN_S = 120
DONE_WITHIN_S = 180
USER = 10001
RUNS_ON = "3.11"  # the Python of the base
WORDS = (("太差", "失望", "难吃", "糟糕", "后悔", "破损"), ("很好", "喜欢", "满意", "精彩", "推荐", "新鲜"))
THINGS = ("房间", "味道", "服务", "电影", "手机", "快递", "早餐", "屏幕", "老板", "质量", "外卖")
ROWS = 400
CONFIG = """
name = "check"
threads = 1
[labels]
negative = ["0"]
positive = ["1"]
[data]
train = { made = "train.tsv" }
[tokenizer]
pieces = 60
min_count = 2
[model]
max_tokens = 32
width = 32
layers = 1
heads = 2
feed_forward_width = 64
[fit]
epochs = 40
batch_tokens = 512
patience = 99
[fit.optimiser]
learning_rate = 3e-3
"""


def problems(folder: Path) -> list[str]:
    """Build it, look at it, let it train, stop it, let it go on.

    Raises:
        ToolMissing: no base image can be had, or the build failed; says why.
    """
    with workshop(folder) as base:
        image = build("train", base, _wheels(folder / "wheels"))
        return looks(inspected(image), "lengnuan-train") + retrained(image, folder / "work")


def _wheels(folder: Path) -> dict[Path, str]:
    """Of torch what pip chooses on this machine, for the build, which has no configuration of pip: a CPU's is enough.

    The release is that of constraints.txt; from PyPI alone it is the one with CUDA, and the build takes far longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fits = ["--python-version", RUNS_ON, "--only-binary=:all:", "--no-deps", "-c", ROOT / "constraints.txt"]
    must(PYTHON, "-m", "pip", "download", "--quiet", *fits, "--dest", folder, "torch")
    (folder / "pip.conf").write_text("[global]\nfind-links = /wheels\n", encoding="utf-8")
    return {folder: "/wheels", folder / "pip.conf": "/etc/pip.conf"}


def retrained(image: str, work: Path) -> list[str]:
    """A training, as the pod of deploy/ starts one: SIGTERM on its way, and the same command again."""
    _prepare(work)
    mounts = [f"-v={work / name}:/{name}:ro" for name in ("config", "data")] + [f"-v={work / 'runs'}:/runs"]
    command = ["run", "--config", "/config/retrain.toml", "--data", "/data", "--output", "/runs/check"]
    with started(image, "--cpus=1", "--memory=2g", "--env=HOME=/tmp", *mounts, command=command):
        if not within(STARTS_WITHIN_S, lambda: "dev accuracy" in said()):
            return [f"no training within {STARTS_WITHIN_S} s: {log()}"]
        code = stopped()
        if code != INTERRUPTED:
            return [f"after SIGTERM it ended with {code}, not {INTERRUPTED}: {log()}"]
        start_again()
        helped = run("podman", "exec", CONTAINER, "lengnuan-train", "--help")
        code = ended(DONE_WITHIN_S)
        if code:
            return [f"the same command again ended with {code}: {log()}"]
        found = [] if "resumed at step" in said() else ["the same command again did not go on, but began anew"]
    if helped.returncode or "promote" not in helped.stdout:
        found.append(f"--help: {helped.stdout}{helped.stderr}")
    return found + _looks_at(work / "runs" / "check" / "bundle")


def _prepare(work: Path) -> None:
    """Rows whose words decide their label, the config, and a folder for runs that only the image's user may write."""
    shutil.rmtree(work, ignore_errors=True)
    for name in ("config", "data", "runs"):
        (work / name).mkdir(parents=True)
    draw = random.Random(0)  # the same rows each time
    lines = ["label\ttext"]
    for number in range(ROWS):
        said = [draw.choice(THINGS) + draw.choice(WORDS[number % 2]) for _ in range(draw.randint(1, 6))]
        lines.append(f"{number % 2}\t{'，'.join(said)}。")
    (work / "data" / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (work / "config" / "retrain.toml").write_text(CONFIG, encoding="utf-8")
    os.chown(work / "runs", USER, USER)
    (work / "runs").chmod(0o700)


def _looks_at(bundle: Path) -> list[str]:
    """Whether a service would load it, and whose it is."""
    from lengnuan.model.bundle import Bundle

    try:
        version = Bundle.load(bundle).version
    except Exception as error:
        return [f"no bundle: {error}"]
    owner = (bundle / "manifest.json").stat().st_uid
    return [] if owner == USER else [f"bundle {version} belongs to {owner}, not {USER}"]
