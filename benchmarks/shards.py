"""What several shards cost: a ring beside a single server, many slots of a cluster beside one.

    .venv/bin/python -m benchmarks.shards

Alternating runs, as in `run.py`. The ring's three shards are databases of one Redis, so that
the service is the bottleneck in both; the cluster has three masters, asked one request at a
time. Also how many requests are denied by what is then given back.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks.run import (
    ALONE,
    HERE,
    LOAD_CORE,
    RATELIMIT,
    SECONDS,
    Bench,
    Figures,
    free_port,
    median,
    running,
    told,
)
from ratelimit_service.algorithms import DEFAULT
from ratelimit_service.model import CounterSpec, Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled
from ratelimit_service.stores.keys import CounterNames
from ratelimit_service.stores.redis import RedisStore
from tests.servers.cluster import RedisCluster

RUNS = int(os.environ.get("RUNS", "5"))
SINGLE, RING, CLUSTER = "one Redis", "a ring of three", "a cluster of three"


def serve(bench: Bench, store: str) -> list[str]:
    command = [RATELIMIT, "serve", "--rules", str(HERE / "rules.yaml"), "--log-level", "error"]
    command += ["--grpc", f"127.0.0.1:{bench.port}", "--http", f"127.0.0.1:{free_port()}"]
    return [*command, "--store", store, "--store-timeout", "1s"]


def ring(directory: str, port: int) -> str:
    """Three databases of one server, as shards."""
    file = Path(directory) / "shards.yaml"
    shards = [f"- {{name: shard-{n}, store: redis://127.0.0.1:{port}/{n}}}" for n in range(3)]
    file.write_text("\n".join(["shards:", *shards]))
    return f"file:{file}"


async def denied_in_vain(url: str) -> float:
    """The share of requests denied by a charge that is given back, where two shards contend.

    Of four processes three ask for the last hit of a counter and for one of a full one, then the
    fourth for the last hit alone.
    """
    stores = [RedisStore(url, 1_000_000, Stats(), Health()) for _ in range(4)]
    for store in stores:
        await store.start()
    spec, full = CounterSpec(DEFAULT, 1, 3_600_000_000), CounterSpec(DEFAULT, 0, 10**9)
    names = CounterNames("vain", spec)
    wrong = asked = 0
    for number in range(500):
        free = Hit(names.key([("free", str(number))]), spec)
        never = Hit(names.key([("never", str(number))]), full)
        futures = []
        for turn, store in enumerate(stores):
            future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
            store.charge([[free, never] if turn < 3 else [free]], future.set_result)
            futures.append(future)
        answers = await asyncio.gather(*futures)
        asked += 1
        wrong += any(outcome is not None and outcome.over for outcome in answers[3][0].outcomes)
    for store in stores:
        await store.close()
    return wrong / asked


def main() -> None:
    found: dict[tuple[str, str], list[Figures]] = {}

    def note(name: str, shape: str, figures: Figures) -> None:
        told(f"{name}, {shape}: {figures}")
        found.setdefault((name, shape), []).append(figures)

    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory)
        cluster = RedisCluster(Path(directory))
        cluster.start()
        with running(LOAD_CORE, bench.redis, bench.redis_port):
            stores = {
                SINGLE: f"redis://127.0.0.1:{bench.redis_port}/0",
                RING: ring(directory, bench.redis_port),
                CLUSTER: cluster.url,
            }
            bench.commands |= {name: serve(bench, store) for name, store in stores.items()}
            for _ in range(RUNS):
                for shape in ("hot", "zipf", "uniform"):
                    for name in (SINGLE, RING):
                        note(name, shape, bench.load(name, shape, "--seconds", SECONDS))
                for name in (SINGLE, CLUSTER):
                    for shape in ("one", "ten"):
                        note(name, shape, bench.load(name, shape, *ALONE))
            vain = asyncio.run(denied_in_vain(stores[RING]))
        cluster.kill()
    print("\n| requests, closed loop | one Redis, calls/s | ring of three, calls/s | ratio |")
    print("|---|---|---|---|")
    for shape in ("hot", "zipf", "uniform"):
        one, three = (median(found[name, shape], "calls_per_second") for name in (SINGLE, RING))
        print(f"| {shape} | {one:,.0f} | {three:,.0f} | {three / one:.2f} |")
    print("\n| one at a time | one descriptor, p99 µs | ten, p99 µs | ratio |")
    print("|---|---|---|---|")
    for name in (SINGLE, CLUSTER):
        one, ten = (median(found[name, shape], "p99_ms") * 1_000 for shape in ("one", "ten"))
        print(f"| {name} | {one:.0f} | {ten:.0f} | {ten / one:.2f} |")
    print(f"\nDenied by what was given back, the worst case: {vain:.1%} of requests.")


if __name__ == "__main__":
    main()
