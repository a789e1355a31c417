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
        self._tallies: dict[tuple[str, str], Tallies] = {}

    @property
    def snapshot(self) -> Snapshot:
        """The rules that hold now."""
        return self._snapshot

    def tallies_of(self, domain: str, path: str) -> Tallies:
        """The tallies of a rule, the same ones for as long as it is there."""
        tallies = self._tallies.get((domain, path))
        if tallies is None:
            tallies = self._tallies[domain, path] = Tallies(domain, path)
        return tallies

    async def take(self) -> AsyncIterator[Tallied]:
        """What was tallied, a little at a time, for `add` in another process; forgotten here."""
        async for tallies in slowly(list(self._tallies.values())):
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
        kept = {(name, path) for name in now for path in (OVERRIDES, UNMATCHED)}
        new = [node for domain in now.values() for node in domain.root.nodes]
        async for node in slowly(walk(new)):
            if node.rule:
                kept.add((node.rule.domain, node.rule.path))
        async for key in slowly(list(self._tallies)):
            if key not in kept:
                del self._tallies[key]
        remains: list[Node] = []
        for name, domain in old.domains.items():
            if now.get(name) is not domain:
                remains += [node async for node in slowly(walk(domain.root.nodes))]
            del domain
        del old, new
        remains.reverse()  # parents first, while this list still holds their children
        while remains or kept:
            del remains[-SLICE:]
            for _ in range(min(len(kept), SLICE)):
                kept.pop()
            await asyncio.sleep(0)
