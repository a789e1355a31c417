"""How many CPUs a process may use, in file systems that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratelimit_service.runtime.cpus import usable_cpus

SIX = set(range(6))


@pytest.fixture(autouse=True)
def six_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: SIX)


def system(root: Path, cgroup: str, mountinfo: str, **files: str) -> Path:
    """A file system with these files; names have `__` for a slash and `_dot_` for a dot."""
    contents = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo}
    contents |= {
        name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()
    }
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {within} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {within} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
)


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max", 6), ("50000", 1), ("100000", 1), ("150000", 2), ("200000", 2), ("900000", 6)],
)
def test_quota_of_version_2(tmp_path: Path, quota: str, count: int) -> None:
    """A container's quota is rounded up; without one, or with a large one, affinity counts."""
    root = system(tmp_path, "0::/", V2, sys__fs__cgroup__cpu_dot_max=f"{quota} 100000")

    assert usable_cpus(root).number == count


def test_least_quota_of_all_groups_above(tmp_path: Path) -> None:
    """A group has no more time than any of those that it is in."""
    root = system(
        tmp_path,
        "0::/pod/container",
        V2,
        sys__fs__cgroup__pod__cpu_dot_max="300000 100000",
        sys__fs__cgroup__pod__container__cpu_dot_max="max 100000",
    )

    result = usable_cpus(root)

    assert result.number == 3
    assert result.why == "it may run on 6 CPUs, but its control group has a quota of 3 CPUs"


@pytest.mark.parametrize(("quota", "count"), [("-1", 6), ("250000", 3), ("10000", 1)])
def test_quota_of_version_1(tmp_path: Path, quota: str, count: int) -> None:
    """Version 1 says it in two files, of the controller `cpu` only."""
    root = system(
        tmp_path,
        "4:memory:/m\n3:cpu,cpuacct:/c\n0::/",
        V1.format(within="/"),
        **{
            "sys__fs__cgroup__cpu,cpuacct__c__cpu_dot_cfs_quota_us": quota,
            "sys__fs__cgroup__cpu,cpuacct__c__cpu_dot_cfs_period_us": "100000",
        },
    )

    assert usable_cpus(root).number == count


def test_group_that_is_mounted_alone(tmp_path: Path) -> None:
    """In a container of version 1 its own group is the top, whatever its path is outside."""
    root = system(
        tmp_path,
        "3:cpu,cpuacct:/docker/0123",
        V1.format(within="/docker/0123"),
        **{
            "sys__fs__cgroup__cpu,cpuacct__cpu_dot_cfs_quota_us": "200000",
            "sys__fs__cgroup__cpu,cpuacct__cpu_dot_cfs_period_us": "100000",
        },
    )

    assert usable_cpus(root).number == 2


def test_system_without_control_groups(tmp_path: Path) -> None:
    """Where nothing is said of quotas, affinity counts."""
    assert usable_cpus(tmp_path) == (6, "it may run on 6 CPUs")
