"""How many threads this process may really use: the container's CPU quota, not the host's cores."""

import math
import os
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Whole CPUs this process may keep busy: its affinity mask, cut by a cgroup v2 or v1 quota (rounded up).

    Args:
        root: where `proc` and `sys` are mounted; tests point it at a folder of their own.

    Returns:
        At least 1.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(root)
    return max(1, min(affinity, math.ceil(quota))) if quota else max(1, affinity)


def _cgroup_quota(root: Path) -> float | None:
    """CPUs granted by the tightest quota on the way from this process's cgroup up to the root; None: no quota."""
    quotas = []
    for hierarchy, group in _cgroups(root):
        folder = root / "sys/fs/cgroup" / hierarchy
        inside = folder / group.lstrip("/")
        for place in (inside, *inside.parents):
            if not place.is_relative_to(folder):
                break
            quotas += [quota for quota in (_quota_v2(place), _quota_v1(place)) if quota]
    return min(quotas, default=None)


def _cgroups(root: Path) -> list[tuple[str, str]]:
    """(folder below /sys/fs/cgroup, this process's group in it) for v2 and for v1's cpu controller."""
    found = [("", "/")]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(("", group))
        elif "cpu" in controllers.split(","):
            found += [(controllers, group), ("cpu", group), (controllers, "/"), ("cpu", "/")]
    return found


def _quota_v2(place: Path) -> float | None:
    quota, _, period = _read(place / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None


def _quota_v1(place: Path) -> float | None:
    quota, period = _read(place / "cpu.cfs_quota_us").strip(), _read(place / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and int(quota) > 0 and period.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
