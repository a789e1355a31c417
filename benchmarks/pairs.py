"""Whether a change made the service slower: two installations of it, asked in turns.

    .venv/bin/python -m benchmarks.pairs OLD NEW [words of the rows]

OLD and NEW are `ratelimit` programs, each of its own environment; the generator is that of this
tree. Both servers stand on one core, and one of them is asked at a time. The figure is processor
time of the server for a call, which other work on the machine changes less than calls a second.
A row has the medians, and how much longer NEW takes, with the 95 % interval of the median of the
pairs. docs/benchmarks.md names it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.cpu import Load, processes, say, turn
from benchmarks.load import SHAPES
from benchmarks.run import HERE, LOAD_CORE, SERVER_CORE, free_port, running

PAIRS = int(os.environ.get("PAIRS", "20"))

Row = tuple[str, Load]
"""A shape of calls, and how many."""

ROWS: dict[str, Row] = {
    "one at a time": ("hot", Load(3_000, 1, 1)),
    "ten in flight": ("hot", Load(10_000, 1, 10)),
    "100 connections of two": ("hot", Load(20_000, 100, 2)),
    "hot": ("hot", Load()),
    "uniform": ("uniform", Load()),
    "zipf": ("zipf", Load()),
    "traced": ("traced", Load()),
}


def command(program: str, port: int, store: list[str]) -> list[str]:
    serve = [program, "serve", "--rules", str(HERE / "rules.yaml"), "--log-level", "error"]
    serve += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
    return [*serve, "--max-counters", "3000000", *store]


async def rows(programs: list[str], where: str, chosen: dict[str, Row]) -> None:
    """The rows of one store, with both servers running."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        servers: list[tuple[int, list[int]]] = []
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
            servers.append((port, processes(stack.enter_context(process).pid)))
        for name, (shape, load) in chosen.items():
            calls = SHAPES[shape]()
            found: tuple[list[float], list[float]] = [], []
            for number in range(PAIRS + 1):
                for at in (0, 1) if number % 2 else (1, 0):
                    spent = sum((await turn(*servers[at], calls, load)).each)
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
