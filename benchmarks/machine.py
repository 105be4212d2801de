"""What a benchmark ran on; every table starts with it."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from lengnuan.model.threads import usable_cpus

PACKAGES = ("onnxruntime", "openvino", "numpy", "fastapi", "uvicorn", "pydantic")


def describe() -> str:
    """Processor, usable cores, versions and commit, in two lines."""
    names = [line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return (
        f"{processor}, {usable_cpus()} usable of {os.cpu_count()} cores, {platform.system()}\n"
        f"Python {platform.python_version()}, {versions}, commit {_commit()}"
    )


def has_bfloat16() -> bool:
    """AVX512-BF16 or AMX (x86), or the bf16 extension (Arm)."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_read("/proc/cpuinfo").split())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # openvino is not for every platform
        return "missing"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _commit() -> str:
    folder = Path(__file__).parent
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, check=False)
    return found.stdout.decode().strip() or "unknown"


if __name__ == "__main__":
    print(describe())
