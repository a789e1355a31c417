"""How many CPUs this process may use: by affinity, and by the quota of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["CPUs", "usable_cpus"]

_ROOT = Path("/")


class CPUs(NamedTuple):
    """A number of CPUs, and why it is that many."""

    number: int
    why: str


def usable_cpus(root: Path = _ROOT) -> CPUs:
    """As many as the scheduler lets this process run on, or its quota of time if that is less.

    A quota of one and a half is two: with one process half a CPU would be left over. `root` is
    where the file system of the system begins.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = allowed or 1
    why = f"it may run on {count} {'CPU' if count == 1 else 'CPUs'}"
    quota = _quota(root)
    if quota is None or math.ceil(quota) >= count:
        return CPUs(count, why)
    return CPUs(
        max(1, math.ceil(quota)), f"{why}, but its control group has a quota of {quota:g} CPUs"
    )


def _quota(root: Path) -> float | None:
    """The least quota of the process's control group and those above it; None without any."""
    quotas = [quota for group in _groups(root) if (quota := _quota_of(group)) is not None]
    return min(quotas, default=None)


def _quota_of(group: Path) -> float | None:
    """The quota in a group's own files, of either version of control groups."""
    try:
        if (group / "cpu.max").exists():  # version 2
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        cpus = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # there is no such file, or it says `max`
        return None
    return cpus if cpus > 0 else None


def _groups(root: Path) -> Iterator[Path]:
    """The directories of the process's groups that can have a quota, and of those above them."""
    paths = dict(_paths(root))
    for mount, within, kind, options in _mounts(root):
        path = paths.get("") if kind == "cgroup2" else paths.get("cpu")
        if path is None or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        # In a container only its own group may be mounted, by a path that is seen from outside.
        below = path.removeprefix(within) if path.startswith(within) else ""
        top = root / mount.lstrip("/")
        group = top / below.strip("/")
        while True:
            yield group
            if group == top:
                break
            group = group.parent


def _paths(root: Path) -> Iterator[tuple[str, str]]:
    """The path of this process's group by controller; "" stands for version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Where groups are mounted, what of them, as which version, and with which controllers."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 4 and kinds and kinds[0] in {"cgroup", "cgroup2"}:
            yield fields[4], fields[3], kinds[0], kinds[-1]
