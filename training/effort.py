"""What a run cost: time by stage, and energy where the machine measures it.

Each process adds a row to `effort.jsonl` in the run folder when a stage ends, also when it is stopped; one that is
killed outright leaves none, so the sums are lower bounds. Energy is what Intel's RAPL counters say of the whole
processor packages, other programs included; where this user may read no counters there is none, and none is made up.

Of processes that train together the first one writes the row: its time, the processor seconds of all (of itself alone
when the stage fails or is stopped), and no energy when they are on several machines.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lengnuan.training.distributed import all_sum, is_first, local_world, world

EFFORT = "effort.jsonl"
POWERCAP = Path("/sys/class/powercap")


@contextmanager
def measured(run_folder: Path, stage: str) -> Iterator[None]:
    """Record what happens inside as `stage` of the run."""
    counters = _energy_counters(POWERCAP)
    wall, before = time.monotonic(), _processor_seconds()
    used = None
    try:
        yield
        used = all_sum(torch.tensor(_processor_seconds() - before, dtype=torch.float64)).item()
    finally:
        if is_first():
            row = {
                "stage": stage,
                "seconds": round(time.monotonic() - wall, 3),
                "processor_seconds": round(_processor_seconds() - before if used is None else used, 3),
                "joules": _joules(counters) if world() <= local_world() else None,
                "hardware": hardware_name(),
            }
            with (run_folder / EFFORT).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _processor_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _energy_counters(folder: Path) -> dict[Path, int]:
    """Microjoules so far by processor package; empty where there are none to read."""
    found = {}
    for file in sorted(folder.glob("intel-rapl:[0-9]*/energy_uj")):
        if file.parent.name.count(":") == 1:  # packages; their parts are counted in them
            try:
                found[file] = int(file.read_text(encoding="ascii"))
            except (OSError, ValueError):
                return {}
    return found


def _joules(before: dict[Path, int]) -> float | None:
    """Since then, None where it can't be known."""
    total = 0
    for file, start in before.items():
        try:
            used = int(file.read_text(encoding="ascii")) - start
            if used < 0:  # the counter began again
                used += int((file.parent / "max_energy_range_uj").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        total += used
    return round(total / 1e6, 1) if before else None


def hardware_name() -> str:
    """The processor, how many of its cores this process may use, and the GPU if torch sees one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{_processor_name()}, {cores} cores{gpu}"


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def effort_of(run_folder: Path) -> dict[str, Any]:
    """Sums over the rows, those of seeds and folds in sub-folders too.

    Seconds by stage, processor seconds, joules (None unless every row has them), hardware, number of rows.
    """
    files = sorted(run_folder.rglob(EFFORT))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    stages: dict[str, float] = {}
    for row in rows:
        stages[row["stage"]] = round(stages.get(row["stage"], 0.0) + row["seconds"], 3)
    joules = [row["joules"] for row in rows]
    return {
        "seconds": stages,
        "processor_seconds": round(sum(row["processor_seconds"] for row in rows), 3),
        "joules": round(sum(joules), 1) if rows and None not in joules else None,
        "hardware": sorted({row["hardware"] for row in rows}),
        "processes": len(rows),
    }
