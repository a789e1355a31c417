"""Rolling restarts and killed workers under real clients: which calls fail, and which are late.

    .venv/bin/python -m benchmarks.restarts [COUNT]

For each client (grpcio, Node.js, Envoy) 2,000 calls a second to two workers over Redis, while
nothing happens, then COUNT (20) rolling restarts, then COUNT kills. Fails if a restart loses a
call, or a kill one that went out after it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.by_policy import told_by_service, too_many
from benchmarks.caller import WARM_SECONDS
from benchmarks.run import HERE, RATELIMIT, told
from tests.servers.envoy import Envoy, ratelimit_filter, shipped_config
from tests.servers.process import free_port, listens, wait_until
from tests.servers.redis import RedisServer

RATE = 2_000
ROUND = 3
"""Restarts or kills that one client sees."""

CONTROL_SECONDS = 2.2
"""What a restart is compared with takes as long: nothing happens."""

PAUSE_SECONDS = 0.5
UNWIND_SECONDS = 0.05
"""Between a kill and the moment when a busy client has heard of it: the system frees the dead
process's memory before it closes its connections."""

NODE = HERE.parent / ".tools" / "node"
HEAP = [
    "--min-semi-space-size=1024",
    "--max-semi-space-size=1024",
    "--initial-old-space-size=8000",
    "--max-old-space-size=8000",
]
"""So much that Node.js need not collect in a round: its pauses, of up to 15 ms once a second, would
be counted as the service's. The Python clients' collector is off too."""

RULES = "domain: demo\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]\n"


class Result(NamedTuple):
    """What a client has seen. `after` are failures of calls that went out after a kill was over."""

    calls: int
    failed: int
    after: int
    late: int
    by_policy: int
    """How many descriptors were decided by failure policy."""
    seconds: float
    """Of each restart or kill, until all is as before."""


class Service:
    """Two workers over Redis."""

    def __init__(self, redis_url: str, rules: Path) -> None:
        self.port, self._http_port = free_port(), free_port()
        command = [RATELIMIT, "serve", "--rules", str(rules), "--store", redis_url]
        command += ["--grpc", f"127.0.0.1:{self.port}", "--http", f"127.0.0.1:{self._http_port}"]
        command += ["--workers", "2", "--log-level", "fatal", "--store-timeout", "1s"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), "the service")

    def workers(self) -> list[int]:
        """The pids of those that serve."""
        url = f"http://127.0.0.1:{self._http_port}/processes"
        with urllib.request.urlopen(url) as answer:
            shown: dict[str, Any] = json.load(answer)
        return [each["pid"] for each in shown["workers"] if each["state"] == "serving"]

    def restart(self) -> None:
        address = f"127.0.0.1:{self._http_port}"
        subprocess.run(
            [RATELIMIT, "restart", "--http", address], check=True, stdout=subprocess.DEVNULL
        )

    def kill_one(self) -> float:
        """Kills a worker, waits for its successor; returns the moment of the kill."""
        victim = random.choice(self.workers())
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(set(self.workers()) - {victim}) == 2, "another worker")
        return killed_at

    def by_policy(self) -> int:
        """How many descriptors it has decided by policy; a killed worker takes some along."""
        return told_by_service(self._http_port)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@contextmanager
def calling(client: str, service: Service, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client that calls; its record is on its standard output once its input is closed."""
    with ExitStack() as stack:
        if client == "Node.js":
            node = shutil.which("node") or "node"
            command = [node, *HEAP, str(HERE / "caller.js"), str(NODE)]
            command += [str(service.port), str(RATE)]
        elif client == "grpcio":
            command = [sys.executable, "-m", "benchmarks.caller", "grpcio", str(service.port)]
            command.append(str(RATE))
        else:
            config = shipped_config()
            limited = ratelimit_filter(config)
            limited.update(failure_mode_deny=True, timeout="1s")
            envoy = Envoy(config, directory, {"ratelimit": service.port})
            envoy.start()
            stack.callback(envoy.kill)
            command = [sys.executable, "-m", "benchmarks.caller", "http", str(envoy.port)]
            command.append(str(RATE))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=HERE.parent, **pipes)  # type: ignore[call-overload]
        time.sleep(WARM_SECONDS + 0.5)
        yield process


def seen(process: subprocess.Popen[bytes], kills: list[float]) -> Counter[str]:
    """What a client has seen until now, as in `Result`."""
    out, _ = process.communicate(timeout=30)
    record = json.loads(out)
    after = 0
    for started, why in record["failed"]:
        if not any(0 <= killed_at + UNWIND_SECONDS - started < 5 for killed_at in kills):
            told(f"failed: {started:.4f} {why}")
            after += 1
    failed = len(record["failed"])
    return Counter(calls=record["calls"], failed=failed, after=after, late=record["late"])


def measured(client: str, what: str, count: int, directory: Path, redis_url: str) -> Result:
    """Clients, while the service has its peace, is restarted, or loses workers."""
    rules = directory / "rules.yaml"
    rules.write_text(RULES)
    service = Service(redis_url, rules)
    found: Counter[str] = Counter()
    took = 0.0
    try:
        for first in range(0, count, ROUND):
            kills: list[float] = []
            with calling(client, service, directory) as process:
                for _ in range(first, min(first + ROUND, count)):
                    begun = time.monotonic()
                    if what == "nothing":
                        time.sleep(CONTROL_SECONDS - PAUSE_SECONDS)
                    elif what == "restarts":
                        service.restart()
                    else:
                        kills.append(service.kill_one())
                    took += time.monotonic() - begun
                    time.sleep(PAUSE_SECONDS)
                found += seen(process, kills)
        found["by policy"] = service.by_policy()
    finally:
        service.stop()
    seconds = took / count
    calls, failed, after, late = (found[each] for each in ("calls", "failed", "after", "late"))
    return Result(calls, failed, after, late, found["by policy"], seconds)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    results: dict[str, dict[str, Result]] = {}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        server = RedisServer(directory)
        server.start()
        for client in ("grpcio", "Node.js", "Envoy"):
            for what in ("nothing", "restarts", "kills"):
                found = measured(client, what, count, directory, server.url)
                told(f"{client}, {what}: {found}")
                results.setdefault(client, {})[what] = found
        server.kill()
    print(f"\n{RATE:,} calls a second, two workers, {count} restarts, {count} kills\n")
    print("| client | meanwhile | calls | failed | of these after the kill | late | each takes |")
    print("|---|---|---|---|---|---|---|")
    broken = []
    for client, runs in results.items():
        for what, (calls, failed, after, late, by_policy, seconds) in runs.items():
            print(
                f"| {client} | {what} | {calls:,} | {failed} | {after} | {late} | {seconds:.2f} s |"
            )
            if failed if what != "kills" else after:
                broken.append(f"{client}, {what}: calls failed that should not")
            if wrong := too_many(calls, by_policy):
                broken.append(f"{client}, {what}: {wrong}")
    if broken:
        raise SystemExit("\n".join(["", *broken]))


if __name__ == "__main__":
    main()
