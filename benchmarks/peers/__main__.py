"""This service beside other servers of Envoy's protocol, in turns on one core.

    .venv/bin/python -m benchmarks.peers get            # builds the peers into .tools/peers
    .venv/bin/python -m benchmarks.peers                # measures all, and prints the tables
    .venv/bin/python -m benchmarks.peers alone hot    # some of these, ten, uniform, open, exact

The generator, and Redis, have the other core. All servers have the same limits, which are never
reached under load (`limits.py`). Before each row a server must show that it decides: a limit of
three lets three calls pass and denies the fourth. `RUNS` (5), `SECONDS_EACH` (4) and `RATE` (3,000
calls a second, open loop) are taken from the environment. docs/benchmarks.md tells the
method.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.asking import Exactness, check_decides, exactness, hot_remaining
from benchmarks.peers.limits import CROWD, GATE, write
from benchmarks.peers.servers import PEERS, commands, get, missing
from benchmarks.run import (
    ALONE,
    COMPILED_MEMORY,
    COMPILED_REDIS,
    LOAD_CORE,
    MEMORY,
    REDIS,
    RUNS,
    SECONDS,
    SERVER_CORE,
    VOID_ABOVE,
    Bench,
    Figures,
    median,
    running,
    told,
)

RATE = os.environ.get("RATE", "3000")
OURS = (REDIS, COMPILED_REDIS, MEMORY, COMPILED_MEMORY)
LOADS = {
    "alone": ("hot", *ALONE),
    "ten": ("hot", "--seconds", SECONDS, "--connections", "1", "--in-flight", "10"),
    "hot": ("hot", "--seconds", SECONDS),
    "uniform": ("uniform", "--seconds", SECONDS),
    "open": ("uniform", "--seconds", SECONDS, "--rate", RATE),
}
HOW = {
    "alone": "one call at a time",
    "ten": "ten in flight",
    "open": f"uniform, {RATE} calls a second",
}
SOME = ", ".join([*LOADS, "exact"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("what", nargs="*", help=f"get; or some of {SOME}")
    asked = parser.parse_args().what
    if asked == ["get"]:
        get()
        return
    if unknown := set(asked) - {*LOADS, "exact"}:
        words = ", ".join(sorted(unknown))
        parser.error(f"{words}: name get, or some of {SOME}")
    measure(asked or [*LOADS, "exact"])


def measure(asked: list[str]) -> None:
    """Measures and prints what was asked for, of all servers that are there."""
    found: dict[str, dict[str, list[Figures]]] = {what: {} for what in LOADS if what in asked}
    exact: dict[str, list[Exactness]] = {}
    with tempfile.TemporaryDirectory() as place:
        rules, limits = write(Path(place))
        bench = Bench(place, rules)
        if REDIS not in bench.commands:
            raise SystemExit("peers: redis-server is missing: sudo apt install redis-server")
        for peer in PEERS:
            if why := missing(peer):
                told(why)
        peers = commands(bench.port, bench.redis_port, Path(place), limits)
        servers = {name: bench.commands[name] for name in OURS if name in bench.commands} | peers
        with running(LOAD_CORE, bench.redis, bench.redis_port):
            for turn in range(RUNS):
                told(f"run {turn + 1} of {RUNS}")
                for name, command in servers.items():
                    with running(SERVER_CORE, command, bench.port):
                        check_decides(name, bench.port)
                        for what, runs in found.items():
                            figures = counted(name, bench, what)
                            told(f"{what}: {name}: {figures}")
                            runs.setdefault(name, []).append(figures)
                        if "exact" in asked:
                            exact.setdefault(name, []).append(exactness(bench.port))
                            told(f"exact: {name}: {exact[name][-1]}")
    for what, runs in found.items():
        report(what, runs)
    if exact:
        report_exact(exact)


def counted(name: str, bench: Bench, what: str) -> Figures:
    """Puts a server under load. Where it tells what remains, all calls must have been counted."""
    shape, *flags = LOADS[what]
    before = hot_remaining(bench.port)
    figures = bench.generate(shape, *flags)
    after = hot_remaining(bench.port)
    if shape != "hot" or before is None or after is None:
        return figures
    if 0 < before - after < figures["calls"]:  # below 0 an hour has ended
        wrong = f"answered {figures['calls']:.0f} calls, and counted {before - after}"
        raise SystemExit(f"peers: {name} {wrong}")
    return figures


def report(what: str, found: dict[str, list[Figures]]) -> None:
    how = HOW.get(what, what)
    print(f"\n| {how} | calls/s | p50 ms | p99 ms | later than 20 ms | generator |")
    print("|---|---|---|---|---|---|")
    for name, runs in found.items():
        cells = [f"{median(runs, 'calls_per_second'):,.0f}"]
        cells += [f"{median(runs, key):.3f}" for key in ("p50_ms", "p99_ms")]
        cells.append(f"{sum(run['late'] for run in runs) / sum(run['calls'] for run in runs):.2%}")
        cpu = median(runs, "generator_cpu")
        cells.append(f"{cpu:.0%}" + (" (void)" if cpu > VOID_ABOVE else ""))
        print(f"| {name} | {' | '.join(cells)} |")


def report_exact(found: dict[str, list[Exactness]]) -> None:
    print(f"\n| {CROWD:,} calls at once, limit {GATE.number} | passed | neighbour charged |")
    print("|---|---|---|")
    several: list[tuple[str, Callable[[Exactness], int]]] = [
        ("passed", lambda each: each.passed),
        ("charged", lambda each: each.charged),
    ]
    for name, runs in found.items():
        cells = []
        for _, of in several:
            low, high = min(map(of, runs)), max(map(of, runs))
            cells.append(f"{low:,}" if low == high else f"{low:,} to {high:,}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
