"""The rules that hold now in this process, and the tallies that outlive them.

Where rules come from is not known here: `load` puts in what it has read, a worker what it was
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

from ratelimit_service.health import Health
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.tree import OVERRIDES, UNMATCHED, Domain, Node, Snapshot, walk
from ratelimit_service.slices import SLICE, slowly

__all__ = ["Rulebook", "Tallied", "hold_without"]

Tallied = tuple[str, str, str, list[int]]
"""A rule's domain and path, the value that it tallies by, and what `Tally.take` gives."""

_Place = tuple[str, str]
"""A rule's domain and path."""

_TABLES = 256


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
        self._snapshot = Snapshot(0, {})
        self._tallies: list[dict[_Place, Tallies]] = [{} for _ in range(_TABLES)]
        """In many small tables: to grow one of 100,000 holds requests up for milliseconds."""

    @property
    def snapshot(self) -> Snapshot:
        """The rules that hold now."""
        return self._snapshot

    def tallies_of(self, domain: str, path: str) -> Tallies:
        """The tallies of a rule, the same ones for as long as it is there."""
        place = domain, path
        table = self._tallies[hash(place) % _TABLES]
        tallies = table.get(place)
        if tallies is None:
            tallies = table[place] = Tallies(domain, path)
        return tallies

    async def take(self) -> AsyncIterator[Tallied]:
        """What was tallied, a little at a time, for `add` in another process; forgotten here."""
        for table in self._tallies:
            async for tallies in slowly(list(table.values())):
                for value, tally in tallies.items():
                    if taken := tally.take():
                        yield tallies.domain, tallies.path, value, taken

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
        old = self._snapshot
        self._snapshot = Snapshot(old.number + 1, domains, unserved, emptied)
        return old

    async def let_go(self, old: Snapshot) -> None:
        """Frees what does not hold any more, a little at a time: a large tree takes 20 ms at once.

        Tallies are kept of rules that are still there. The caller keeps no name for `old`.
        """
        now = self._snapshot.domains
        kept: list[set[_Place]] = [set() for _ in range(_TABLES)]
        for place in ((name, path) for name in now for path in (OVERRIDES, UNMATCHED)):
            kept[hash(place) % _TABLES].add(place)
        new = (node for domain in now.values() for node in domain.root.nodes)
        async for node in slowly(walk(new)):
            if node.rule:
                place = node.rule.domain, node.rule.path
                kept[hash(place) % _TABLES].add(place)
        for table, still in zip(self._tallies, kept, strict=True):
            async for place in slowly(list(table)):
                if place not in still:
                    del table[place]
        remains: list[Node] = []
        for name, domain in old.domains.items():
            if now.get(name) is not domain:
                remains += [node async for node in slowly(walk(domain.root.nodes))]
            del domain
        del old, new
        remains.reverse()  # parents first, while this list still holds their children
        while remains or kept:
            del remains[-SLICE:]
            del kept[-1:]
            await asyncio.sleep(0)
