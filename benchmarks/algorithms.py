"""What each algorithm costs: bytes of a counter, Redis' time for a hit, decisions a second.

    .venv/bin/python -m benchmarks.algorithms

Prints two tables; `make bench` has them, too. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from benchmarks.run import (
    LOAD_CORE,
    MEMORY,
    REDIS,
    RUNS,
    SECONDS,
    Bench,
    Figures,
    median,
    resident_bytes,
    running,
    told,
)
from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import SECOND_US, Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.keys import CounterNames
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.script import SCRIPT, ScriptCall
from tests.algorithms.costs import Cost, limit_of, rules_of
from tests.algorithms.ways import COSTS

HOUR_US = 3_600 * SECOND_US
START_US = 1_700_000_000 * SECOND_US
BATCH = 100


def hits_of(kind: Cost) -> Iterator[tuple[int, list[list[Hit]]]]:
    """Batches of requests of one hit each, with their time: every counter spread over an hour."""
    spec = spec_of(limit_of(kind))
    names = CounterNames("bench", spec)
    keys = [
        names.key([("route", "checkout"), ("user", f"customer-{number:09d}")])
        for number in range(kind.counters)
    ]
    chance = random.Random(1)
    for number in range(kind.hits):
        for start in range(0, kind.counters, BATCH):
            now_us = START_US + number * HOUR_US // kind.hits + chance.randrange(SECOND_US)
            yield (
                now_us,
                [
                    [Hit(key, spec, lease=chance.randbytes(8))]
                    for key in keys[start : start + BATCH]
                ],
            )


def bytes_in_redis(kind: Cost, port: int) -> Figures:
    """What a counter takes, by MEMORY USAGE and of used_memory."""
    client = redis.Redis(port=port)
    client.flushall()
    before: int = client.info("memory")["used_memory"]
    script = client.script_load(SCRIPT)
    for now_us, requests in hits_of(kind):
        left = range(len(requests))
        while left:
            call = ScriptCall(0, now_us)
            left = left[call.add(Background(requests), left) :]
            count, *words = call.arguments(judge=True)
            client.evalsha(script, int(count), *words)
    used: int = client.info("memory")["used_memory"] - before
    assert client.dbsize() == kind.counters
    keys = [client.randomkey() or b"" for _ in range(100)]
    usages = [client.memory_usage(key) or 0 for key in keys]
    return {"usage": sum(usages) / len(usages), "used": used / kind.counters}


def bytes_in_memory(kind: Cost) -> float:
    """What the process grows by for each counter."""
    clock = [START_US]
    store = MemoryStore(3_000_000, Stats(), Health(), lambda: clock[0])
    before = resident_bytes("self")
    for now_us, requests in hits_of(kind):
        clock[0] = now_us
        store.charge(requests, lambda _: None)
    return (resident_bytes("self") - before) / kind.counters


def speed(bench: Bench, name: str) -> Figures:
    """Decisions a second of a server on this store, and Redis' microseconds for hits and calls."""
    client = redis.Redis(port=bench.redis_port)
    client.flushall()
    client.config_resetstat()
    busy = _busy_seconds(client)
    figures = bench.load(name, "uniform", "--seconds", SECONDS)
    figures["redis_us"] = (_busy_seconds(client) - busy) / (2 * figures["calls"]) * 1e6
    if scripts := client.info("latencystats").get("latency_percentiles_usec_evalsha"):
        figures["script_us"] = scripts["p99"]
    return figures


def _busy_seconds(client: redis.Redis) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def main() -> None:
    if sys.argv[1:]:  # a process of its own for each kind
        print(bytes_in_memory(COSTS[sys.argv[1]]))
        return
    sizes: dict[str, Figures] = {}
    speeds: dict[str, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rules.yaml")
        bench = Bench(directory, path)
        with running(LOAD_CORE, bench.redis, bench.redis_port):
            for name, kind in COSTS.items():
                told(f"bytes: {name}")
                command = [sys.executable, "-m", "benchmarks.algorithms", name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                sizes[name] = bytes_in_redis(kind, bench.redis_port)
                sizes[name]["memory"] = float(done.stdout)
            for _ in range(min(RUNS, 3)):
                for name, kind in COSTS.items():
                    path.write_text(rules_of(kind.fields))
                    for store in (MEMORY, REDIS):
                        figures = speed(bench, store)
                        told(f"{name}, {store}: {figures}")
                        speeds.setdefault(name, {}).setdefault(store, []).append(figures)
    report(sizes, speeds)


def report(sizes: dict[str, Figures], speeds: dict[str, dict[str, list[Figures]]]) -> None:
    print("\n| bytes of a counter | MEMORY USAGE | at most | used_memory | at most | in memory |")
    print("|---|---|---|---|---|---|")
    for name, size in sizes.items():
        kind = COSTS[name]
        cells = [size["usage"], kind.most_usage, size["used"], kind.most_used, size["memory"]]
        print(f"| {name} |", " | ".join(f"{cell:,.0f}" for cell in cells), "|")
    print(
        "\n| a million keys | memory, calls/s | to fixed | Redis, calls/s | to fixed "
        "| Redis, µs a hit | µs a script call, p99 |"
    )
    print("|---|---|---|---|---|---|---|")
    base = {
        store: median(runs, "calls_per_second") for store, runs in speeds["fixed_window"].items()
    }
    for name, stores in speeds.items():
        told = []
        for store, runs in stores.items():
            rate = median(runs, "calls_per_second")
            told += [f"{rate:,.0f}", f"{rate / base[store]:.2f}"]
        told.append(f"{median(stores[REDIS], 'redis_us'):.1f}")
        told.append(f"{median(stores[REDIS], 'script_us'):.0f}")
        print(f"| {name} |", " | ".join(told), "|")


if __name__ == "__main__":
    main()
