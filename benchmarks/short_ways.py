"""What each short way brings: the time of a usual call with it, and with the long way instead.

    .venv/bin/python -m benchmarks.short_ways [words of their names]

Both run in one process, in turns of twenty reads of fifty calls, through the connection, the
service and the memory store, without sockets. A row has the medians of many turns, and how much
of the long way's time the short one saves, with the quartiles of the pairs. For the script it is
the time that Redis itself says it has used. Run it interpreted: compiled code cannot be told to
take another way. docs/architecture.md has the rows.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import redis

from benchmarks.profile import RULES, Process
from ratelimit_service import compiled, limiter, wire
from ratelimit_service.algorithms import ALGORITHMS, DEFAULT
from ratelimit_service.grpc.h2 import frames, runs
from ratelimit_service.grpc.h2.receiving import Receiver
from ratelimit_service.grpc.h2.sending import Sender
from ratelimit_service.limiter import Planner, compiler
from ratelimit_service.model import SECOND_US, CounterSpec, Hit
from ratelimit_service.service import answering
from ratelimit_service.stores.keys import CounterNames
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import script
from ratelimit_service.stores.redis.batch import Background
from tests.servers.redis import RedisServer

PAIRS, READS, CALLS, WARM = 40, 20, 50, 4
"""So many pairs of turns; reads of a turn, calls of a read; and reads that begin a turn and are
not counted."""

Changes = Mapping[tuple[Any, str], object]
"""What stands in the place of what, by its owner and name."""

NONE: Changes = {}
APART: Changes = {(runs, "usual_calls"): lambda *given: (given[1], [], [])}
"""With this each frame of a call is read by itself."""
SETTLED: Changes = {
    (script, "_LEADS"): [(count | 0x8000).to_bytes(2, "big") for count in range(64)]
}
"""With this every request says of itself that the script's long way is to settle it."""


class Way(NamedTuple):
    """A short way: how it is switched off, and on what calls it is usual."""

    name: str
    shape: str
    off: Changes
    beside: Changes = NONE
    """What is switched off in both turns, so that no other short way stands before it."""
    limit: int = 200_000_000
    algorithm: str = "fixed_window"


WAYS = (
    Way("usual_calls", "hot", APART),
    Way("begun", "hot", {(Receiver, "_calls"): lambda *_: (0, 0)}, APART),
    Way("answer_whole", "hot", {(Sender, "answer_whole"): lambda *_: 0}),
    Way("PlanTemplate.plan", "new", {(Planner, "template"): lambda *_: None}),
    Way(
        "plain_entries, plan_alone",
        "new",
        {(wire, "plain_entries"): lambda *_: None},
        {(Planner, "template"): lambda *_: None},
    ),
    Way("MemoryStore._charge", "hot", {(MemoryStore, "_charge"): vars(MemoryStore)["_settle"]}),
    Way("passing", "hot", {(DEFAULT, "adds"): False}),
    Way(
        "sliding_window.passing",
        "hot",
        {(ALGORITHMS["sliding_window"], "paired"): False},
        algorithm="sliding_window",
    ),
    Way("encode_within, tally_within", "hot", {(answering, "_WITHIN"): None}),
    Way(
        "plain, encode_plain, tally_plain",
        "hot",
        {(limiter, "plain"): lambda *_: None},
        limit=0,
    ),
)


@contextmanager
def patched(changes: Changes) -> Iterator[None]:
    before = {at: getattr(*at) for at in changes}
    for (owner, name), value in changes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


def turn(process: Process) -> float:
    """Microseconds of a call in one turn."""
    reads = [process.frames(CALLS) for _ in range(READS)]
    took = []
    for data in reads:
        started = time.process_time()
        process.read(data)
        took.append(time.process_time() - started)
        process.connection.receive(frames.window_update(0, len(data)))
    return median(took[WARM:]) / CALLS * 1e6


def in_turns(way: Way, rules: Path) -> tuple[list[float], list[float]]:
    """Turns of the short way, and of the long one."""
    with patched(way.beside):
        short = Process(way.shape, rules)
        with patched(way.off):
            compiler.shared_spec.cache_clear()  # or both count by the same
            long = Process(way.shape, rules)
        gc.collect()
        gc.freeze()
        gc.disable()
        found: tuple[list[float], list[float]] = [], []
        for number in range(PAIRS):
            for at in (0, 1) if number % 2 else (1, 0):
                with patched(way.off if at else NONE):
                    found[at].append(turn(long if at else short))
        gc.enable()
        gc.unfreeze()
    return found


def script_in_turns(port: int) -> tuple[list[float], list[float]]:
    """Redis' microseconds for a request of two hits, settled the short way and the long one."""
    client = redis.Redis(port=port)
    sha = client.script_load(script.SCRIPT)
    spec = CounterSpec(DEFAULT, 200_000_000, 3_600 * SECOND_US)
    names = CounterNames("bench", spec)
    hits = [Hit(names.key([("user", str(number))]), spec) for number in range(4_096)]
    found: tuple[list[float], list[float]] = [], []
    for number in range(PAIRS):
        for at in (0, 1) if number % 2 else (1, 0):
            before = _script_us(client)
            for first in range(0, len(hits), 64):
                some = hits[first : first + 64]
                with patched(SETTLED if at else NONE):
                    call = script.ScriptCall(1, 0)
                    asked = list(zip(some[::2], some[1::2], strict=True))
                    call.add(Background(asked), range(len(asked)))
                    count, *words = call.arguments()
                client.evalsha(sha, int(count), *words, 1)
            found[at].append(2 * (_script_us(client) - before) / len(hits))
    return found


def _script_us(client: redis.Redis) -> float:
    """How long Redis has been in scripts."""
    said = client.info("commandstats").get("cmdstat_evalsha", {})
    return float(said.get("usec", 0))


def row(name: str, shape: str, found: tuple[list[float], list[float]]) -> str:
    short, long = found
    saved = [100 * (1 - one / other) for one, other in zip(short, long, strict=True)]
    low, middle, high = quantiles(saved, n=4)
    return (
        f"| {name} | {shape} | {median(short):.2f} | {median(long):.2f} "
        f"| {middle:.0f} % ({low:.0f} to {high:.0f}) |"
    )


def chosen(name: str) -> bool:
    return not sys.argv[1:] or any(word in name for word in sys.argv[1:])


def main() -> None:
    if compiled():
        sys.exit("short_ways.py: the package is compiled, and no short way can be switched off")
    print("| short way | calls | µs with it | µs without it | saved |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for way in WAYS:
            if not chosen(way.name):
                continue
            rules = Path(directory, "rules.yaml")
            text = RULES.read_text()
            rules.write_text(text.replace("200000000", f"{way.limit}, algorithm: {way.algorithm}"))
            print(row(way.name, way.shape, in_turns(way, rules)), flush=True)
        if not chosen("increment"):
            return
        server = RedisServer(Path(directory))
        server.start()
        try:
            print(row("increment", "two hits in Redis", script_in_turns(server.port)))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
