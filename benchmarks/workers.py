"""What a second worker brings, and what it costs.

    .venv/bin/python -m benchmarks.workers

CPU of all the service's processes for a decision, counters in Redis, with one and two workers on
the same core. And calls a second of an unlimited rule, which needs no store, with one worker on one
core and two on two, the generator being on one of them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import urllib.request
from typing import NamedTuple

from benchmarks.cpu import cpu_seconds
from benchmarks.run import (
    COMPILED,
    LOAD_CORE,
    RATELIMIT,
    REDIS,
    RUNS,
    SECONDS,
    SERVER_CORE,
    Bench,
    running,
    told,
)

BOTH_CORES = f"{SERVER_CORE},{LOAD_CORE}"


class Figures(NamedTuple):
    """Decisions a second, and microseconds of CPU for each."""

    rate: float
    cpu_us: float


def measured(bench: Bench, program: str, workers: int, core: str, shape: str) -> Figures:
    """So many workers on a core, or on several, under load."""
    command = [program, *bench.commands[REDIS][1:], "--workers", str(workers)]
    with running(core, command, bench.port) as process:
        url = f"http://127.0.0.1:{bench.http_port}/processes"
        for _ in range(100):
            with urllib.request.urlopen(url) as answer:
                pids = [each["pid"] for each in json.load(answer)["workers"]]
            if len(pids) == workers:
                break
            time.sleep(0.05)
        pids.append(process.pid)
        before = sum(map(cpu_seconds, pids))
        figures = bench.generate(shape, "--seconds", SECONDS)
        used = sum(map(cpu_seconds, pids)) - before
    # The generator's figures leave out its warming up, the processes' CPU does not.
    calls = figures["calls_per_second"] * float(SECONDS) * 1.25
    return Figures(figures["calls_per_second"], used / calls * 1e6)


def main() -> None:
    programs = {"interpreted": RATELIMIT}
    if COMPILED.exists():
        programs["compiled"] = str(COMPILED)
    cases = [
        ("Redis, uniform, on one core", SERVER_CORE, "uniform"),
        ("unlimited rule, on a core each", "", "unlimited"),
    ]
    found: dict[tuple[str, str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory)
        with running(LOAD_CORE, bench.redis, bench.redis_port):
            for turn in range(RUNS):
                for title, core, shape in cases:
                    for build, program in programs.items():
                        for workers in (1, 2):
                            cores = core or (SERVER_CORE if workers == 1 else BOTH_CORES)
                            figures = measured(bench, program, workers, cores, shape)
                            told(f"{turn}: {title}, {build}, {workers}: {figures}")
                            found.setdefault((title, build, workers), []).append(figures)
    print("\n| service | workers | calls/s | µs of CPU a call | rate, to one | CPU, to one |")
    print("|---|---|---|---|---|---|")
    for (title, build, workers), runs in found.items():
        rate, cpu = (statistics.median(each) for each in zip(*runs, strict=True))
        alone = found[title, build, 1]
        one_rate, one_cpu = (statistics.median(each) for each in zip(*alone, strict=True))
        print(
            f"| {title}, {build} | {workers} | {rate:,.0f} | {cpu:.2f} "
            f"| {rate / one_rate:.2f} | {cpu / one_cpu:.2f} |"
        )


if __name__ == "__main__":
    main()
