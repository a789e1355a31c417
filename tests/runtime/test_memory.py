"""What a worker keeps in memory for itself."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.rules.records import packed
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level
from tests.servers.process import wait_until
from tests.servers.redis import SharedRedis
from tests.servers.service import ServiceProcess

DEMO = Path(__file__).parents[2] / "rules"

MOST_KIB = 40 * 1_024


def own_kib(pid: int) -> int:
    """A process's memory with its share of what it has in common with others (PSS)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (kib,) = re.findall(r"^Pss:\s+(\d+) kB$", rollup, re.MULTILINE)
    return int(kib)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not on this system")
@pytest.mark.skipif(compiled(), reason="the bound is that of plain Python")
def test_a_worker_is_small(tmp_path: Path, redis_server: SharedRedis) -> None:
    """With the demo rules each worker takes at most 40 MiB."""
    flags = ["--rules", str(DEMO), "--store", redis_server.url, "--workers", "2"]
    service = ServiceProcess(tmp_path, *flags)
    service.start()

    def lines() -> list[dict[str, object]]:
        workers: list[dict[str, object]] = json.loads(service.get("/processes").text)["workers"]
        return workers

    wait_until(lambda: [each["state"] for each in lines()] == ["serving"] * 2, "both workers")
    sizes = [own_kib(int(str(each["pid"]))) for each in lines()]

    service.kill()
    assert max(sizes) <= MOST_KIB


def test_a_worker_imports_what_it_uses() -> None:
    """What only the supervisor, another transport or Sentinel needs is not in a worker.

    Nor is what describes protobuf's messages, or translates an environment.
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
        from ratelimit_service.rules.matchers import registry
        print(*set(sys.modules) - before)
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


MATCHING = """
domain: edge
descriptors:
  - {key: a, value: /a/*, RATE}
  - {key: a, one_of: [free, trial], RATE}
  - {key: a, cidr: [10.0.0.0/8, "2001:db8::/32"], group: {ipv4: 32, ipv6: 64}, RATE}
  - {key: a, regex: "/v[0-9]+/.*", RATE}
""".replace("RATE", "rate_limit: {unit: minute, requests_per_unit: 2}")
SHIPPED = {"Pattern", "OneOf", "Networks", "Regex"}
VALUES = ["/a/b", "trial", "10.1.2.3", "2001:db8::1", "/v1/b", "other"]
"""One for each matcher, and in the end one for none."""


def test_a_worker_imports_nothing_for_rules(tmp_path: Path) -> None:
    """Rules with every matcher import nothing, and requests for them: both come while it serves.

    Only google-re2 is loaded, with the first rules that need it, and not by a request.
    """
    rules = parse("f", MATCHING.encode())
    tree = Domain("edge", Level.of(rules.nodes))
    used = {type(node.matcher).__name__ for node in rules.nodes}
    records = tmp_path / "records"
    records.write_bytes(pickle.dumps(list(packed([tree]))))
    code = f"""if True:
        import ratelimit_service.runtime.worker, pickle, sys
        from pathlib import Path
        from ratelimit_service.observability.stats import Tallies
        from ratelimit_service.rules.match import match
        from ratelimit_service.rules.records import Assembly
        parts = pickle.loads(Path({str(records)!r}).read_bytes())
        assembly = Assembly(Tallies)
        before = set(sys.modules)
        for part in parts:
            assembly.add(part)
        print(*set(sys.modules) - before, sep=",")
        before = set(sys.modules)
        met = [match(assembly.domains["edge"], [("a", value)]).node for value in {VALUES}]
        print(*set(sys.modules) - before, sep=",")
        print(sum(each is not None for each in met))
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (rules.problems, used) == ((), SHIPPED)
    with_rules, with_requests, matched = done.stdout.splitlines()
    assert set(with_rules.split(",")) == {"re2", "re2._re2"}
    assert (with_requests, matched) == ("", str(len(VALUES) - 1))
