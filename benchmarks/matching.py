"""What it costs to match among 100,000 rules, and to load them.

    .venv/bin/python -m benchmarks.matching

Prints two tables; `make bench` has them, too. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from itertools import accumulate
from pathlib import Path
from statistics import median

from benchmarks.run import resident_bytes, told
from benchmarks.timing import MeasuredLoop
from ratelimit_service.limiter import Planner
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.comparison import difference
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.match import match
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings

MANY = int(os.environ.get("MANY", "100000"))
FEW = 10
REGEXES = 1_000
ASKED = 2_000
PAIRS = 31
"""Turns of few rules and of many, one after the other; each asks for values that are drawn anew."""
KINDS = os.environ.get("KINDS", "value,one_of,cidr,list,regex").split(",")
LIMIT = "rate_limit: {unit: day, requests_per_unit: 100}"


def rules(kind: str, count: int) -> tuple[str, list[str]]:
    """Rules of one level, and values that go to them; of a `list` it is one rule with all."""
    if kind == "value":
        values = [f"customer-{number}" for number in range(count)]
        taken = [f"value: {value}" for value in values]
    elif kind == "one_of":
        values = [f"customer-{number}" for number in range(count * 3)]
        taken = [f"one_of: [{', '.join(values[at : at + 3])}]" for at in range(0, len(values), 3)]
    elif kind == "list":
        values = [f"customer-{number}" for number in range(count)]
        taken = [f"one_of: [{', '.join(values)}]"]
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


class Costs:
    """Asks for values of one level's rules."""

    def __init__(self, snapshot: Snapshot, values: Sequence[str]) -> None:
        self._snapshot = snapshot
        self._domain = snapshot.domains["edge"]
        self._values = random.Random(2).sample(values, len(values))
        """Those that come most often come first; in memory they are far from each other."""
        self._zipf = list(accumulate(1 / rank for rank in range(1, len(values) + 1)))
        self._planner = Planner(Settings())
        self._bare = dict.fromkeys(values, 0)
        for value in values:  # rules are compiled when they are first met
            self._planner.plan(_request(value), snapshot)

    def values(self, chance: random.Random, *, zipf: bool) -> list[str]:
        """Values as they come in requests: texts of their own."""
        if zipf:
            drawn = chance.choices(self._values, cum_weights=self._zipf, k=ASKED)
        else:
            drawn = chance.choices(self._values, k=ASKED)
        return [f"{value} "[:-1] for value in drawn]

    def look_up(self, values: Sequence[str]) -> float:
        """Microseconds to look a value up in a bare dict."""
        get = self._bare.get
        started = time.thread_time()
        for value in values:
            get(value)
        return _microseconds(started)

    def match(self, values: Sequence[str]) -> float:
        """Microseconds to find a value's rule."""
        asked = [(Entry("k", value),) for value in values]
        domain = self._domain
        started = time.thread_time()
        for entries in asked:
            match(domain, entries)
        return _microseconds(started)

    def plan(self, values: Sequence[str]) -> float:
        """Microseconds to plan a request that is not remembered."""
        requests = list(map(_request, values))
        plan, snapshot = self._planner.plan, self._snapshot
        started = time.thread_time()
        for request in requests:
            plan(request, snapshot)
        return _microseconds(started)


def _request(value: str) -> Request:
    return Request("edge", (Descriptor((Entry("k", value),)),))


def _microseconds(started: float) -> float:
    return (time.thread_time() - started) / ASKED * 1e6


def compared(few: Costs, many: Costs) -> list[str]:
    """For each thing that is asked: its time among few and many, and how many times as long."""
    chance = random.Random(1)
    ways: dict[str, Callable[[Costs, Sequence[str]], float]] = {
        "a bare dict": Costs.look_up,
        "match": Costs.match,
        "plan": Costs.plan,
    }
    rows = []
    for way, cost in ways.items():
        for draw in ("evenly", "by Zipf's law"):
            times = [
                tuple(
                    cost(asked, asked.values(chance, zipf=draw != "evenly"))
                    for asked in (few, many)
                )
                for _ in range(PAIRS)
            ]
            mine, its = (median(each[at] for each in times) for at in (0, 1))
            ratio = median(each[1] / each[0] for each in times)
            rows.append(f"{way} | {draw} | {mine:.2f} us | {its:.2f} us | {ratio:.2f} x")
    return rows


class Served:
    """Rules of one level in a process that serves, and how they come and go."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rules.yaml"
        self._longest = 0.0
        self._rules = Rules(self._path, stats=Stats(), health=Health(), difference=difference)

    def _note(self, cpu: float, _wall: float, _cause: str) -> None:
        self._longest = max(self._longest, cpu)

    async def load(self, text: str) -> tuple[float, float]:
        """Lets rules hold; the seconds that it took, and the longest callback in milliseconds."""
        await asyncio.to_thread(self._path.write_text, text)
        await asyncio.sleep(0)
        self._longest = 0.0
        MeasuredLoop.note = staticmethod(self._note)
        started = time.perf_counter()
        await self._rules.reload()
        seconds = time.perf_counter() - started
        assert not self._rules.problems(), self._rules.problems()[0]
        return seconds, self._longest

    @property
    def snapshot(self) -> Snapshot:
        """The rules that hold now."""
        return self._rules.snapshot


async def measured(kind: str, few: Served, many: Served) -> tuple[list[str], str]:
    """The rows of one kind: what matching costs, and loading."""
    text, values = rules(kind, FEW)
    await few.load(text)
    among_few = Costs(few.snapshot, values)
    count = REGEXES if kind == "regex" else MANY
    text, values = await asyncio.to_thread(rules, kind, count)
    before = resident_bytes("self")
    seconds, coming = await many.load(text)
    grown = resident_bytes("self") - before
    rows = [
        f"| {count:,} `{kind}` | {row} |"
        for row in compared(among_few, Costs(many.snapshot, values))
    ]
    other = text.replace("requests_per_unit: 100", "requests_per_unit: 101")
    _, changing = await many.load(other)
    _, going = await many.load("domain: edge\ndescriptors: [{key: k}]\n")
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return rows, (
        f"| {count:,} `{kind}` | {seconds:.1f} s | {grown / 1e6:.0f} MB | {child / 1e3:.0f} MB "
        f"| {coming:.1f} ms | {changing:.1f} ms | {going:.1f} ms |"
    )


async def main() -> None:
    """Prints both tables."""
    gc.disable()  # as in every process that serves
    matching, loading = [], []
    for kind in KINDS:
        told(kind)
        with (
            tempfile.TemporaryDirectory() as few,
            tempfile.TemporaryDirectory() as many,
        ):
            rows, row = await measured(kind, Served(Path(few)), Served(Path(many)))
        matching += rows
        loading.append(row)
    print("| rules of one level | asked | values are drawn | of ten | of all | times as long |")
    print("|---|---|---|---|---|---|")
    print("\n".join(matching))
    print(
        "\n| rules | load | grows what serves by | most in the child | longest callback: they come "
        "| others come in their place | they go |\n|---|---|---|---|---|---|---|"
    )
    print("\n".join(loading))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main())
