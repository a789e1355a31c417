"""What is seen of a service with workers from outside: its processes, connections and counts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ratelimit_service.runtime.worker_pool import WorkerPool
from ratelimit_service.runtime.worker_process import WorkerProcess
from tests.servers.service import ServiceProcess

REDIS = "redis://localhost:6379/0"


def processes(service: ServiceProcess) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(service.get("/processes").text)
    return shown


def pids(service: ServiceProcess) -> list[int]:
    return [worker["pid"] for worker in processes(service)["workers"]]


def metric(service: ServiceProcess, name: str) -> float:
    page = service.get("/metrics").text
    (value,) = re.findall(rf"^{re.escape(name)} (.*)$", page, re.MULTILINE)
    return float(value)


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended, even if nobody has asked for it yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended before we opened, or while we read
        return False


def restarts(service: ServiceProcess) -> int:
    """How many there were; 0 while nobody answers."""
    try:
        return int(processes(service)["restarts"])
    except OSError:
        return 0


def stand_in(workers: WorkerPool, *these: WorkerProcess) -> None:
    """Puts workers without a process in the place of those that `start` would spawn."""
    workers.processes = [
        *these
    ]  # what is spawned instead would take seconds, and choose its moments
