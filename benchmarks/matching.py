"""What it costs to match among 100,000 rules, and to load them.

    .venv/bin/python -m benchmarks.matching

Prints two tables; `make bench` has them, too. docs/benchmarks.md tells the method.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network

from benchmarks.run import resident_bytes
from ratelimit_service.limiter import Planner
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.rules.build import Version
from ratelimit_service.rules.child import build_in_child
from ratelimit_service.rules.match import match
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings

MANY = int(os.environ.get("MANY", "100000"))
FEW = 10
REGEXES = 1_000
ASKED = 2_000
RUNS = 15
KINDS = os.environ.get("KINDS", "value,one_of,cidr,regex").split(",")
LIMIT = "rate_limit: {unit: day, requests_per_unit: 100}"


def rules(kind: str, count: int) -> tuple[str, list[str]]:
    """Rules of one level, and values that go to them."""
    if kind == "value":
        values = [f"customer-{number}" for number in range(count)]
        taken = [f"value: {value}" for value in values]
    elif kind == "one_of":
        values = [f"customer-{number}" for number in range(count * 3)]
        taken = [f"one_of: [{', '.join(values[at : at + 3])}]" for at in range(0, len(values), 3)]
    elif kind == "cidr":
        sizes = (24, 25, 26, 27, 28, 29, 30, 32)
        known = [
            IPv4Network((0x0A000000 + number * 256, sizes[number % 8])) for number in range(count)
        ]
        taken = [f"cidr: {network}" for network in known]
        values = [str(network[0]) for network in known]
    else:
        values = [f"/api/v{number}/users" for number in range(count)]
        taken = [f"regex: '/api/v{number}/[a-z]+'" for number in range(count)]
    lines = "\n".join(f"- {{key: k, {each}, {LIMIT}}}" for each in taken)
    return f"domain: edge\ndescriptors:\n{lines}\n", values


async def loaded(text: str) -> tuple[Snapshot, float, float]:
    """The rules, the seconds that loading took, and the longest that the loop was busy at once."""
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    started = time.perf_counter()
    version = Version("rules.yaml", text.encode(), None)
    built = await build_in_child([version], Rulebook().tallies_of, strict=True)
    seconds = time.perf_counter() - started
    running = False
    await watching
    assert not built.conflicts, built.conflicts[0]
    return Snapshot(1, built.domains), seconds, longest


def least_us(run: Callable[[], None], count: int) -> float:
    """Microseconds for each of so many, in the quickest of some runs."""
    least = float("inf")
    for _ in range(RUNS):
        started = time.thread_time()
        run()
        least = min(least, time.thread_time() - started)
    return least / count * 1e6


def costs(snapshot: Snapshot, values: Sequence[str]) -> tuple[float, float]:
    """Microseconds to find a value's rule, and to plan a request that nobody has made before."""
    chance = random.Random(1)
    domain = snapshot.domains["edge"]
    asked = [(Entry("k", chance.choice(values)),) for _ in range(ASKED)]
    requests = [Request("edge", (Descriptor(entries),)) for entries in asked]
    planner = Planner(Settings())

    def matching() -> None:
        for entries in asked:
            assert match(domain, entries).rule is not None

    def planning() -> None:
        for request in requests:
            planner.plan(request, snapshot)

    planning()  # rules are compiled when they are first met
    return least_us(matching, ASKED), least_us(planning, ASKED)


async def main() -> None:
    """Prints both tables."""
    gc.disable()  # as in every process that serves
    print("| rules of one level | match | plan anew | of ten |")
    print("|---|---|---|---|")
    loads = []
    for kind in KINDS:
        few = 0.0
        for count in (FEW, REGEXES if kind == "regex" else MANY):
            text, values = rules(kind, count)
            before = resident_bytes("self")
            snapshot, seconds, longest = await loaded(text)
            grown = (resident_bytes("self") - before) / 1e6
            found, planned = costs(snapshot, values)
            few = few or planned
            row = f"| {count:,} `{kind}` | {found:.2f} us | {planned:.2f} us"
            print(f"{row} | {planned / few:.2f} x |")
            sys.stdout.flush()
            if count > FEW:
                child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
                loads.append((count, kind, seconds, grown, child, longest * 1e3))
    print("\n| rules | load | grows what serves by | most in the child | longest turn |")
    print("|---|---|---|---|---|")
    for count, kind, seconds, grown, child, longest in loads:
        print(
            f"| {count:,} `{kind}` | {seconds:.1f} s | {grown:.0f} MB | {child:.0f} MB "
            f"| {longest:.1f} ms |"
        )


if __name__ == "__main__":
    asyncio.run(main())
