"""The rules that hold now in this process, and the tallies that outlive them.

Where rules come from is not known here: `load` puts in what it has read, a worker what it was
sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping

from ratelimit_service.containers.spread import SpreadTable
from ratelimit_service.eventloop.slices import SLICE, pause, slowly, stepwise
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.tree import OVERRIDES, UNMATCHED, Domain, Level, Node, Snapshot, walk

__all__ = ["Rulebook", "Tallied", "hold_without"]

Tallied = tuple[str, str, str, list[int]]
"""A rule's domain and path, the value that it tallies by, and what `Tally.take` gives."""

_RuleId = tuple[str, str]
"""A rule's domain and path."""

_TALLIES_LIKE_ONE_RULE = 4
"""So many tallies take as long to drop as a rule."""


def hold_without(health: Health, snapshot: Snapshot) -> None:
    """Turns requests away for as long as no domain is served."""
    if snapshot.domains:
        health.let_go("rules")
    else:
        health.hold("rules", "no domain has rules: --healthy-with-rules")


class Rulebook:
    """One snapshot at a time, and every rule's tallies by domain and path.

    Reading `snapshot` is atomic; requests take it once and keep it to their end.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, {})
        """The rules that hold now. Only `swap` puts others there."""
        self._tallies: SpreadTable[_RuleId, Tallies] = SpreadTable()

    def tallies_of(self, domain: str, path: str) -> Tallies:
        """The tallies of a rule, the same ones for as long as it is there."""
        rule_id = domain, path
        tallies = self._tallies.get(rule_id)
        if tallies is None:
            tallies = self._tallies[rule_id] = Tallies(domain, path)
        return tallies

    async def take(self) -> AsyncIterator[Tallied]:
        """What was tallied, a little at a time, for `add` in another process; forgotten here."""
        looked = 0
        for table in self._tallies.parts:
            for tallies in list(table.values()):
                for value, tally in tallies.items():
                    if taken := tally.take():
                        yield tallies.domain, tallies.path, value, taken
                    looked += 1
                    if looked % SLICE == 0:
                        await pause()

    def add(self, tallied: Iterable[Tallied]) -> None:
        """Adds what another one has tallied."""
        for domain, path, value, taken in tallied:
            self.tallies_of(domain, path).of(value).add(taken)

    def swap(
        self, domains: Mapping[str, Domain], unserved: frozenset[str], *, emptied: bool = False
    ) -> Snapshot:
        """Lets other rules hold from now on; returns what held before, for `let_go`.

        `emptied` says that there are none on purpose.
        """
        old = self.snapshot
        self.snapshot = Snapshot(old.number + 1, domains, unserved, emptied)
        return old

    async def let_go(self, old: Snapshot) -> None:
        """Frees what does not hold any more, a little at a time: a large tree takes 20 ms at once.

        Tallies are kept of rules that are still there. The caller keeps no name for `old`.
        """
        now = self.snapshot.domains
        await self._forget_tallies(now)
        remains: deque[object] = deque()
        for name, domain in old.domains.items():
            if now.get(name) is not domain:
                remains.append(domain)
                await stepwise(_collecting(domain.root, remains))
            del domain
        del old
        work = 0
        while remains:  # parents first, while this still holds their children
            work += _weight(remains[0])
            remains.popleft()
            if work >= SLICE:
                work = 0
                await asyncio.sleep(0)

    async def _forget_tallies(self, now: Mapping[str, Domain]) -> None:
        """Drops those of rules that are not in these domains."""
        current: SpreadTable[_RuleId, None] = SpreadTable()
        async for name in slowly(now):
            for path in (OVERRIDES, UNMATCHED):
                current[name, path] = None
        nodes = (node for domain in now.values() for node in domain.root.nodes)
        async for node in slowly(walk(nodes)):
            if node.rule:
                current[node.rule.domain, node.rule.path] = None
        for table in self._tallies.parts:
            async for rule_id in slowly(list(table)):
                if rule_id not in current:
                    del table[rule_id]
        await stepwise(current.emptying())


def _collecting(level: Level, parts: deque[object]) -> Generator[None, None, None]:
    """Adds all of a level that takes time to drop, in steps."""
    for number, part in enumerate(_in_parts(level)):
        parts.append(part)
        if number % SLICE == 0:
            yield


def _in_parts(level: Level) -> Iterator[object]:
    """All of a level that takes time to drop, each thing before those that it holds."""
    yield from level.parts()
    for node in level.nodes:
        yield node
        if node.matcher is not None:
            yield from node.matcher.parts
        if node.children:
            yield from _in_parts(node.children)


def _weight(part: object) -> int:
    """How long it takes to drop a part, where a node with one tally takes 1."""
    if isinstance(part, Domain):
        return 1
    if not isinstance(part, Node):
        return SLICE
    rule = part.rule
    return 1 if rule is None else 1 + rule.tallies.size // _TALLIES_LIKE_ONE_RULE
