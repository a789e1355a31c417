"""Rules of a management server that change under load: how soon each change is in effect.

    .venv/bin/python -m benchmarks.xds [--cores 0,1] [--no-bounds]

The server is tests/management, on the library with which Envoy Gateway serves its rules. It has
10,000 descriptors in one resource. It changes the limit of one of them, then the limits of all, and
so on in turns; a caller asks for a limit that changes until it is the new one. Meanwhile a load on
schedule goes on. Fails if a change takes more than a second, a call fails, or a callback of the
service's loop takes more than 5 ms of CPU. XDS_CHANGES (20) in the environment says how many
changes; docs/benchmarks.md shows what came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.by_policy import too_many
from benchmarks.run import HERE, LOAD_CORE, SERVER_CORE, free_port, told, wait_for
from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire.discovery import RateLimitConfig
from tests.servers.control_plane import MANAGEMENT, Management
from tests.servers.management import config

CHANGES = int(os.environ.get("XDS_CHANGES", "20"))
DESCRIPTORS = 10_000
RATE = 2_000
"""Calls a second beside the changes."""

REST_SECONDS = 1.0
"""Between two changes, counted from when the last was in effect."""

ASK_SECONDS = 0.005
GIVE_UP_SECONDS = 60.0
TIMEOUT_US = 5_000_000
MOST_SECONDS = 1.0
MOST_CPU_MS = 5.0

KEYS = [f"key{number}" for number in range(DESCRIPTORS)]
ASKED = Request("large", (Descriptor((Entry(KEYS[-1], "x"),)),))


def resources(requests: int, last: int) -> list[bytes]:
    """What is asked under load, and 10,000 limits of so many requests, but for the last one."""
    user = {"key": "user", "rate_limit": {"unit": "HOUR", "requests_per_unit": 200_000_000}}
    bench = config("bench", "route", value="checkout", descriptors=[user])
    large = RateLimitConfig.FromString(config("large", *KEYS, requests=requests))
    large.descriptors[-1].rate_limit.requests_per_unit = last
    return [bench, large.SerializeToString()]


def seconds_until(client: Client, requests: int) -> float:
    """How long it takes from now until the limit is so many requests."""
    started = time.perf_counter()
    while time.perf_counter() < started + GIVE_UP_SECONDS:
        limit = client.should_rate_limit(ASKED, TIMEOUT_US).statuses[0].limit
        if limit is not None and limit.requests_per_unit == requests:
            return time.perf_counter() - started
        time.sleep(ASK_SECONDS)
    raise SystemExit(f"xds.py: no change in {GIVE_UP_SECONDS:.0f} s")


def changes(
    management: Management, port: int, begun: Callable[[], object]
) -> dict[str, list[float]]:
    """Changes the rules, one after the other; how long each has taken. `begun` is called first."""
    taken: dict[str, list[float]] = {"one": [], "all": []}
    requests = 1_000_000
    with Client(f"127.0.0.1:{port}") as client:
        seconds_until(client, requests)
        begun()
        for number in range(1, CHANGES + 1):
            kind = "one" if number % 2 else "all"
            last = 1_000_000 + number
            if kind == "all":
                requests = last
            sent = resources(requests, last)
            time.sleep(REST_SECONDS)
            management.serve(str(number), *sent)
            taken[kind].append(seconds_until(client, last))
    return taken


def forget(http_port: int) -> None:
    """Has the worker note only what takes long from now on."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/processes") as answer:
        (worker,) = json.load(answer)["workers"]
    os.kill(worker["pid"], signal.SIGUSR1)


def measured(directory: Path, cores: str) -> dict[str, object]:
    """All that was found on these cores: the service's callbacks, the load's figures, changes."""
    port, http_port, record = free_port(), free_port(), directory / "record.json"
    management = Management(directory)
    management.start()
    management.serve("0", *resources(1_000_000, 1_000_000))
    command = ["taskset", "-c", cores, sys.executable, "-m", "benchmarks.measured"]
    command += [str(record), "--log-level", "error", "--grpc", f"127.0.0.1:{port}"]
    command += ["--http", f"127.0.0.1:{http_port}"]
    environment = {**os.environ, **management.environment}
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=HERE.parent, env=environment)
    try:
        wait_for(port)
        load = ["taskset", "-c", LOAD_CORE, sys.executable, str(HERE / "load.py"), str(port), "hot"]
        load += ["--rate", str(RATE), "--seconds", str(CHANGES * (REST_SECONDS + 0.5))]
        loading = subprocess.Popen(load, stdout=subprocess.PIPE, text=True)
        taken = changes(management, port, lambda: forget(http_port))
        figures = json.loads(loading.communicate()[0])
    finally:
        service.terminate()
        service.wait(60)
        management.stop()
    return {**json.loads(record.read_text()), "load": figures, "changes": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon rules over xDS are in effect.")
    parser.add_argument("--cores", default=SERVER_CORE, help="Where the service runs.")
    parser.add_argument("--no-bounds", action="store_true", help="Only measure.")
    chosen = parser.parse_args()
    if not Path(MANAGEMENT).exists():
        raise SystemExit("xds.py: no management server: run `make tools` (it needs Go)")
    with tempfile.TemporaryDirectory() as directory:
        told(f"{CHANGES} changes among {DESCRIPTORS:,} descriptors")
        found = measured(Path(directory), chosen.cores)
    taken, noted, load = found["changes"], found["noted"], found["load"]
    assert isinstance(taken, dict)
    assert isinstance(noted, list)
    assert isinstance(load, dict)
    above = [each for each in noted if each[0] > MOST_CPU_MS]
    worst = max(noted, default=(0.0, 0.0, ""))
    for kind, seconds in taken.items():
        print(
            f"{kind} changed: in effect after {statistics.median(seconds):.2f} s (median), "
            f"{max(seconds):.2f} s (most)"
        )
    print(
        f"{load['calls']:,} calls, {load['failed']} failed, {load['late']} late; "
        f"worst callback {worst[0]:.1f} ms of CPU, above {MOST_CPU_MS:g} ms: {len(above)}"
    )
    for cpu, wall, cause in sorted(noted, reverse=True)[:5]:
        print(f"  {cpu:.1f} ms of CPU, {wall:.1f} ms of wall: {cause}")
    broken = []
    most = max(map(max, taken.values()))
    if most > MOST_SECONDS:
        broken.append(f"a change took {most:.2f} s, at most {MOST_SECONDS:g} s is asked")
    if above:
        broken.append(f"{len(above)} callbacks took more than {MOST_CPU_MS:g} ms of CPU")
    if wrong := too_many(load["calls"], load["by_policy"]):
        broken.append(wrong)
    if load["failed"]:
        broken.append(f"{load['failed']} calls failed")
    if broken and not chosen.no_bounds:
        raise SystemExit("xds.py: " + "; ".join(broken))


if __name__ == "__main__":
    main()
