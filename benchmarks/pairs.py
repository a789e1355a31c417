"""Whether a change made the service slower: two installations of it, asked in turns.

    .venv/bin/python -m benchmarks.pairs OLD NEW [words of the rows]

OLD and NEW are `ratelimit` programs, each of its own environment; the generator is that of this
tree. Both servers stand on one core, and one of them is asked at a time. The figure is processor
time of the server for a call, which other work on the machine changes less than calls a second.
A row has the medians, and how much longer NEW takes, with the 95 % interval of the median of the
pairs. docs/benchmarks.md has the rows.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.beside import cpu_seconds, say
from benchmarks.console import processes
from benchmarks.load import SHAPES, Call, Caller, keep_in_flight
from benchmarks.run import HERE, LOAD_CORE, SERVER_CORE, free_port, running

PAIRS = int(os.environ.get("PAIRS", "20"))


class Row(NamedTuple):
    """Calls of a shape: so many in a turn, on so many connections, so many at once on each."""

    shape: str
    calls: int = 20_000
    connections: int = 4
    in_flight: int = 50


ROWS = {
    "hot": Row("hot"),
    "uniform": Row("uniform"),
    "zipf": Row("zipf"),
    "traced": Row("traced"),
    "one at a time": Row("hot", 3_000, 1, 1),
}


def command(program: str, port: int, store: list[str]) -> list[str]:
    serve = [program, "serve", "--rules", str(HERE / "rules.yaml"), "--log-level", "error"]
    serve += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
    return [*serve, "--max-counters", "3000000", *store]


async def turn(port: int, pid: int, calls: Iterator[Call], row: Row) -> float:
    """Microseconds of the server's processor time for a call."""
    loop = asyncio.get_running_loop()
    latencies = array("d")
    callers: list[Caller] = []
    for _ in range(row.connections):
        _, caller = await loop.create_connection(
            lambda: Caller(calls, latencies), "127.0.0.1", port
        )
        callers.append(caller)
    pids = processes(pid)
    began = sum(map(cpu_seconds, pids))
    keep_in_flight(callers, row.in_flight)
    while len(latencies) < row.calls:
        await asyncio.sleep(0.005)
        if any(caller._transport.is_closing() for caller in callers):  # noqa: SLF001
            raise SystemExit("pairs.py: a server gave up")
    for caller in callers:
        caller.answered = lambda _: None
    while any(caller.in_flight for caller in callers):
        await asyncio.sleep(0.005)
    spent = sum(map(cpu_seconds, pids)) - began
    for caller in callers:
        if caller.ended - caller.messages or caller.by_policy:
            raise SystemExit("pairs.py: some answers are no decisions")
        caller._transport.close()  # noqa: SLF001
    await asyncio.sleep(0.05)
    return spent / len(latencies) * 1e6


async def rows(programs: list[str], where: str, chosen: dict[str, Row]) -> None:
    """The rows of one store, with both servers running."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        servers: list[tuple[int, int]] = []
        for number, program in enumerate(programs):
            store: list[str] = []
            if where == "Redis":
                port, own = free_port(), Path(directory, str(number))
                own.mkdir()  # noqa: ASYNC240 -- nobody waits yet
                redis = ["redis-server", "--port", str(port), "--save", "", "--dir", str(own)]
                stack.enter_context(running(LOAD_CORE, redis, port))
                store = ["--store", f"redis://127.0.0.1:{port}/0", "--store-timeout", "1s"]
            port = free_port()
            process = running(SERVER_CORE, command(program, port, store), port)
            servers.append((port, stack.enter_context(process).pid))
        for name, row in chosen.items():
            calls = SHAPES[row.shape]()
            found: tuple[list[float], list[float]] = [], []
            for number in range(PAIRS + 1):
                for at in (0, 1) if number % 2 else (1, 0):
                    spent = await turn(*servers[at], calls, row)
                    if number:  # the first turn is for warming up
                        found[1 - at].append(spent)
            say(name, where, found)


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit("pairs.py: say two programs: OLD/bin/ratelimit NEW/bin/ratelimit")
    programs, words = sys.argv[1:3], sys.argv[3:]
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    print("| requests | store | µs new | µs old | longer |")
    print("|---|---|---|---|---|", flush=True)
    for where in ("memory", "Redis"):
        chosen = {
            name: row
            for name, row in ROWS.items()
            if not words or any(word in f"{name}, {where}" for word in words)
        }
        if chosen:
            uvloop.run(rows(programs, where, chosen))


if __name__ == "__main__":
    main()
