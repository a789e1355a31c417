"""Where numbers come from, and one look at all of them.

A reading is taken a little at a time, since there can be thousands of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats, Tally
from ratelimit_service.rules.load import Loaded
from ratelimit_service.rules.tree import Node, Rule, Snapshot, ways

__all__ = ["OVERRIDES", "Limited", "Reading", "Series", "Sources", "Unmatched", "WorkerFigures"]

OVERRIDES = "(override)"
"""What stands for a rule where callers bring their limits along."""

_NOTHING: Final = Tally()
"""Of series that have not counted yet: it stays at 0."""


class WorkerFigures(NamedTuple):
    """A worker by its number, with what it uses."""

    number: int
    connections: int
    cpu_us: int
    resident_bytes: int


class Series(NamedTuple):
    """A tally of a rule: its own ("" as `value`), or that of one value.

    `way` leads to the rule; it is empty, and there is no rule, for limits that callers bring.
    """

    domain: str
    way: tuple[Node, ...]
    rule: Rule | None
    value: str
    tally: Tally

    @property
    def labels(self) -> tuple[str, str, str]:
        """Domain, rule and value."""
        return self.domain, self.rule.path if self.rule else OVERRIDES, self.value


class Limited(NamedTuple):
    """A rule of a domain that has limits."""

    domain: str
    rule: Rule


class Unmatched(NamedTuple):
    """How many descriptors of a domain no rule has matched."""

    domain: str
    descriptors: int


@dataclass(slots=True)
class Reading:
    """All numbers at one moment, or nearly: rules are looked at one after the other."""

    stats: Stats
    health: Health
    live_counters: int | None
    workers: Sequence[WorkerFigures] | None
    series: list[Series] = field(default_factory=list)
    unmet: list[Series] = field(default_factory=list)
    loaded: Loaded | None = None
    limited: list[Limited] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)

    @property
    def known(self) -> Iterator[Series]:
        """The series that count, then those that are known and have not counted yet."""
        return chain(self.series, self.unmet)

    def add(self, item: Series | Limited | Unmatched) -> None:
        """Adds what was found of a rule or a domain."""
        if isinstance(item, Series):
            (self.unmet if item.tally is _NOTHING else self.series).append(item)
        elif isinstance(item, Unmatched):
            self.unmatched.append(item)
        else:
            self.limited.append(item)


class Sources:
    """Where the numbers are kept, for whoever takes a reading."""

    def __init__(
        self,
        stats: Stats,
        health: Health,
        snapshot: Callable[[], Snapshot],
        live_counters: Callable[[], int] | None = None,
        workers: Callable[[], Sequence[WorkerFigures]] | None = None,
        loaded: Callable[[], Loaded] | None = None,
    ) -> None:
        """`live_counters` is the size of an in-memory store, None where there is none.

        `workers` gives the figures of those that serve, None where there are none.
        `loaded` tells of the last load of the rules, None where nobody reads any.
        """
        self._stats = stats
        self._health = health
        self._snapshot = snapshot
        self._live_counters = live_counters
        self._workers = workers
        self._loaded = loaded

    async def read(self) -> Reading:
        """A reading, with pauses for requests."""
        reading = self._begun()
        async for item in slowly(self._of_rules()):
            reading.add(item)
        return reading

    def read_at_once(self) -> Reading:
        """A reading, without pauses: where nobody waits."""
        reading = self._begun()
        for item in self._of_rules():
            reading.add(item)
        return reading

    def _begun(self) -> Reading:
        return Reading(
            self._stats,
            self._health,
            self._live_counters() if self._live_counters else None,
            self._workers() if self._workers else None,
            loaded=self._loaded() if self._loaded else None,
        )

    def _of_rules(self) -> Iterator[Series | Limited | Unmatched]:
        for domain in self._snapshot().domains.values():
            for way in ways(domain.root.nodes):
                rule = way[-1].rule
                assert rule is not None  # noqa: S101 -- `ways` end at rules
                for value, tally in rule.tallies.items():
                    yield Series(domain.name, way, rule, value, tally)
                if not rule.tallies.size and not _shows_values(way, rule):
                    yield Series(domain.name, way, rule, "", _NOTHING)
                if rule.limits:
                    yield Limited(domain.name, rule)
            for value, tally in domain.overrides.items():
                yield Series(domain.name, (), None, value, tally)
            if not domain.overrides.size:
                yield Series(domain.name, (), None, "", _NOTHING)
            yield Unmatched(domain.name, domain.unmatched.of().hits)


def _shows_values(way: Sequence[Node], rule: Rule) -> bool:
    """Whether the rule counts by callers' values, which nobody knows before they come."""
    return rule.detailed_metric or any(
        node.value_to_metric and (node.matcher is not None or not node.value) for node in way
    )
