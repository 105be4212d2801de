import os
from pathlib import Path

import pytest

from lengnuan.model.threads import usable_cpus

V2 = "0::/pod/app\n"
V1 = "12:cpu,cpuacct:/pod/app\n3:memory:/pod/app\n"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A fake `/` with `proc/self/cgroup` and files below `sys/fs/cgroup`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param(V2, {"pod/app/cpu.max": "150000 100000\n"}, 2, id="v2, 1.5 CPUs"),
        pytest.param(V2, {"pod/app/cpu.max": "50000 100000\n"}, 1, id="v2, half a CPU"),
        pytest.param(V2, {"pod/app/cpu.max": "max 100000\n"}, 8, id="v2, no quota"),
        pytest.param(V2, {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}, 3, id="v2, parent"),
        pytest.param(V2, {"pod/app/cpu.max": "400000 100000\n", "cpu.max": "200000 100000\n"}, 2, id="v2, tightest"),
        pytest.param("0::/\n", {"cpu.max": "200000 100000\n"}, 2, id="v2, inside a cgroup namespace"),
        pytest.param(V2, {"pod/app/cpu.max": "3200000 100000\n"}, 8, id="v2, more than there are cores"),
        pytest.param(
            V1,
            {"cpu,cpuacct/pod/app/cpu.cfs_quota_us": "150000", "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000"},
            2,
            id="v1, 1.5 CPUs",
        ),
        pytest.param(
            V1,
            {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            3,
            id="v1, the container's group mounted at the root",
        ),
        pytest.param(
            V1,
            {"cpu,cpuacct/pod/app/cpu.cfs_quota_us": "-1", "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000"},
            8,
            id="v1, no quota",
        ),
        pytest.param(
            V1,
            {"cpu,cpuacct/pod/cpu.cfs_quota_us": "100000", "cpu,cpuacct/pod/cpu.cfs_period_us": "50000"},
            2,
            id="v1, parent",
        ),
        pytest.param(V1 + V2, {"pod/app/cpu.max": "100000 100000"}, 1, id="both hierarchies"),
        pytest.param(
            "0::/a/b/c/d\n",
            {"a/b/c/d/cpu.max": "max 100000", "a/b/c/cpu.max": "600000 100000", "a/cpu.max": "250000 100000"},
            3,
            id="v2, the tightest of four nested groups",
        ),
        pytest.param(
            V1,
            {
                **{"cpu,cpuacct/pod/app/cpu.cfs_quota_us": "400000", "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000"},
                **{"cpu,cpuacct/pod/cpu.cfs_quota_us": "150000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"},
            },
            2,
            id="v1, the tightest of two nested groups",
        ),
        pytest.param(
            "4:cpuacct,cpu:/pod\n",
            {"cpuacct,cpu/pod/cpu.cfs_quota_us": "300000", "cpuacct,cpu/pod/cpu.cfs_period_us": "100000"},
            3,
            id="v1, the controllers in another order",
        ),
        pytest.param(
            "4:cpu,cpuacct:/pod\n0::/pod\n",
            {
                **{"cpu,cpuacct/pod/cpu.cfs_quota_us": "300000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"},
                "unified/pod/cgroup.procs": "1",
            },
            3,
            id="hybrid, the quota in v1",
        ),
        pytest.param(
            "5:cpuset:/pod\n",
            {"cpuset/pod/cpu.cfs_quota_us": "100000", "cpuset/pod/cpu.cfs_period_us": "100000"},
            8,
            id="v1, another controller",
        ),
        pytest.param("0::/../other\n", {"cpu.max": "200000 100000"}, 2, id="v2, a group outside the namespace"),
        pytest.param(V2, {"pod/app/cpu.max": ""}, 8, id="an empty file"),
        pytest.param("", {}, 8, id="no cgroups"),
    ],
)
def test_quota(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert usable_cpus(machine(tmp_path, cgroup, files)) == expected


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 8


def test_affinity_cuts_a_wider_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert usable_cpus(machine(tmp_path, V2, {"pod/app/cpu.max": "400000 100000"})) == 1


def test_this_machine() -> None:
    assert 1 <= usable_cpus() <= 8
