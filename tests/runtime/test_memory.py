"""What a worker keeps in memory for itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratelimit_service import compiled
from tests.servers.process import wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess

DEMO = Path(__file__).parents[2] / "rules"

MOST_KIB = 25 * 1_024


def own_kib(pid: int) -> int:
    """A process's memory with its share of what it has in common with others (PSS)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (kib,) = re.findall(r"^Pss:\s+(\d+) kB$", rollup, re.MULTILINE)
    return int(kib)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not on this system")
@pytest.mark.skipif(compiled(), reason="the bound is that of plain Python")
def test_a_worker_is_small(tmp_path: Path, redis_server: RedisServer) -> None:
    """With the demo rules each worker takes at most 25 MiB."""
    flags = ["--rules", str(DEMO), "--store", redis_server.url, "--workers", "2"]
    service = ServiceProcess(tmp_path, *flags)
    service.start()

    def told() -> list[dict[str, object]]:
        workers: list[dict[str, object]] = json.loads(service.get("/processes").text)["workers"]
        return workers

    wait_until(lambda: [each["state"] for each in told()] == ["serving"] * 2, "both workers")
    sizes = [own_kib(int(str(each["pid"]))) for each in told()]

    service.kill()
    assert max(sizes) <= MOST_KIB


def test_a_worker_imports_what_it_uses() -> None:
    """What only the supervisor, another transport or Sentinel needs is not in a worker.

    Nor is what describes protobuf's messages, compares rules, or translates an environment.
    """
    code = "import ratelimit_service.runtime.worker, sys; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    imported = set(done.stdout.split())
    assert "ratelimit_service.stores.redis.shard" in imported
    assert not imported & {
        "grpc",
        "redis",
        "yaml",
        "aiohttp",
        "prometheus_client",
        "click",
        "watchfiles",
        "google.protobuf.descriptor_pb2",
        "ratelimit_service.rules.matchers.regex_values",
        "ratelimit_service.settings.environment",
        "ratelimit_service.settings.reference",
    }


def test_a_worker_imports_nothing_while_it_serves() -> None:
    """What it needs to tell of callers, and to answer questions, is there from the start."""
    code = """if True:
        import ratelimit_service.runtime.worker, sys
        before = set(sys.modules)
        from ratelimit_service.service.questions import registry
        from ratelimit_service.service.caller_history import limit_text
        from ratelimit_service.rules.explain import explain
        print(*set(sys.modules) - before)
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
