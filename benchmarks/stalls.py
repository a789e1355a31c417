"""`make bench-stalls`: everything at once that could hold a process up, and what did.

A million live counters, remembered plans at their bound, counters that expire, 20,000 rules
that change every few seconds, and metrics that are scraped, under load on a schedule. Every
callback of the event loop above a millisecond is recorded with its cause. Before it a process
that only spins shows, on the same core, how long this machine itself keeps anybody waiting.
STALL_SECONDS (60) in the environment sets for how long, and memory is watched all the while.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

from benchmarks.by_policy import hold
from benchmarks.cpu import processes
from benchmarks.run import HERE, LOAD_CORE, SERVER_CORE, free_port, resident_bytes, told, wait_for

SECONDS = int(os.environ.get("STALL_SECONDS", "60"))
RULES = 20_000
COUNTERS = 1_000_000
RELOAD_SECONDS = 5.0
SCRAPE_SECONDS = 5.0
LOOK_SECONDS = 1.0
RATES = {"h2": 10_000, "grpcio": 2_000}
MAX_CPU_MS = 5.0

SPINNER = """
import sys, time
until, worst, last = time.perf_counter() + float(sys.argv[1]), [], time.perf_counter()
while last < until:
    now = time.perf_counter()
    if now - last > 0.001:
        worst.append(now - last)
    last = now
print(len(worst), max(worst, default=0) * 1000)
"""


def rules(limit: int) -> str:
    """A file of 20,000 rules, of which each name is asked for now and then."""
    lines = ["domain: bench", "descriptors:", "  - key: route", "    value: checkout"]
    lines += ["    descriptors:"]
    lines += ["      - {key: user, rate_limit: {unit: hour, requests_per_unit: 200000000}}"]
    lines += ["      - {key: tenant, rate_limit: {unit: second, requests_per_unit: 200000000}}"]
    for number in range(RULES):
        lines.append(f"      - key: user\n        value: customer-{number:09d}")
        lines.append(f"        rate_limit: {{unit: hour, requests_per_unit: {limit}}}")
    return "\n".join(lines) + "\n"


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        page: bytes = answer.read()
        return page


def spin() -> list[float]:
    """How often, and for how many milliseconds at most, a process that only spins had to wait."""
    command = ["taskset", "-c", SERVER_CORE, sys.executable, "-c", SPINNER, str(SECONDS / 3)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def stress(transport: str, directory: Path) -> dict[str, object]:
    """One transport under everything; what was found."""
    port, http_port = free_port(), free_port()
    path, record = directory / "rules.yaml", directory / f"{transport}.json"
    path.write_text(rules(1_000_000))
    command = [sys.executable, "-m", "benchmarks.measured", str(record)]
    command += ["--rules", str(path), "--transport", transport, "--log-level", "error"]
    command += ["--max-counters", str(2 * COUNTERS)]
    command += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
    server = subprocess.Popen(
        ["taskset", "-c", SERVER_CORE, *command], stdout=subprocess.DEVNULL, cwd=HERE.parent
    )
    stopped = threading.Event()
    memory: list[int] = []
    reloads = 0

    def disturb() -> None:
        nonlocal reloads
        next_reload = time.monotonic() + RELOAD_SECONDS
        next_scrape = time.monotonic() + SCRAPE_SECONDS
        while not stopped.wait(LOOK_SECONDS):
            memory.append(sum(map(resident_bytes, processes(server.pid))))
            if time.monotonic() > next_scrape:
                next_scrape += SCRAPE_SECONDS
                with contextlib.suppress(OSError):
                    get(f"http://127.0.0.1:{http_port}/metrics")
            if time.monotonic() > next_reload:
                next_reload += RELOAD_SECONDS
                reloads += 1
                new = path.with_name(".new")
                new.write_text(rules(1_000_000 + reloads))
                new.rename(path)

    wait_for(port)
    fill = [sys.executable, str(HERE / "load.py"), str(port), "new", "--count", str(COUNTERS)]
    subprocess.run(["taskset", "-c", LOAD_CORE, *fill], stdout=subprocess.DEVNULL, check=True)
    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    load = [sys.executable, str(HERE / "load.py"), str(port), "uniform"]
    load += ["--seconds", str(SECONDS), "--rate", str(RATES[transport])]
    done = subprocess.run(
        ["taskset", "-c", LOAD_CORE, *load], capture_output=True, text=True, check=True
    )
    stopped.set()
    disturbing.join()
    page = get(f"http://127.0.0.1:{http_port}/metrics").decode()
    server.terminate()
    server.wait(60)
    gauges = dict(line.split(" ") for line in page.splitlines() if line.startswith("ratelimit_m"))
    return {
        **json.loads(record.read_text()),
        "load": json.loads(done.stdout),
        "reloads": reloads,
        "scraped_bytes": len(page),
        "counters": float(gauges["ratelimit_memory_counters"]),
        "memory": memory,
    }


def report(transport: str, found: dict[str, object]) -> None:
    noted, memory = found["noted"], found["memory"]
    load = found["load"]
    assert isinstance(noted, list)
    assert isinstance(memory, list)
    assert isinstance(load, dict)
    print(
        f"\n--transport {transport}: {load['calls']:,} calls in {SECONDS} s, late: {load['late']}"
    )
    print(
        f"{found['callbacks']:,} callbacks, {found['reloads']} reloads of {RULES:,} rules, "
        f"{found['counters']:,.0f} counters, pages of {found['scraped_bytes']:,} bytes"
    )
    above = [each for each in noted if each[0] > MAX_CPU_MS]
    print(f"above {MAX_CPU_MS:g} ms of CPU: {len(above)}")
    print("| cause | above 1 ms | worst ms of CPU | worst ms of wall |\n|---|---|---|---|")
    worst: dict[str, tuple[float, float]] = {}
    for cpu, wall, name in noted:
        before = worst.get(name, (0.0, 0.0))
        worst[name] = (max(before[0], cpu), max(before[1], wall))
    times = Counter(name for _, _, name in noted)
    for name, (cpu, wall) in sorted(worst.items(), key=lambda each: -each[1][0]):
        print(f"| {name} | {times[name]} | {cpu:.1f} | {wall:.1f} |")
    third = len(memory) // 3
    parts = [memory[third : 2 * third], memory[2 * third :]]
    megabytes = [f"{sum(part) / max(1, len(part)) / 1e6:.0f}" for part in parts]
    print(f"resident: {megabytes[0]} MB in the second third, {megabytes[1]} MB in the last")


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        told("the machine by itself")
        times, worst = spin()
        for transport in RATES:
            told(f"{transport}, for {SECONDS} s")
            results[transport] = stress(transport, Path(directory))
    print(
        f"a process that only spins waited {times:.0f} times above 1 ms in {SECONDS / 3:.0f} s, "
        f"at most {worst:.1f} ms"
    )
    for transport, found in results.items():
        report(transport, found)
    for found in results.values():
        found.pop("memory")
    (HERE / "stalls.json").write_text(json.dumps(results, indent=1) + "\n")
    for transport, found in results.items():
        load = found["load"]
        assert isinstance(load, dict)
        hold(f"stalls.py: {transport}", load["calls"], load["by_policy"])


if __name__ == "__main__":
    main()
