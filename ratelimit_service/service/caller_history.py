"""Which callers were over, near or busy in the last minute and the last hour.

What decisions note (`limiter.callers`) is taken every few seconds, and kept by stretches of time:
a minute in stretches of 20 s, an hour in stretches of 15 minutes. So what is told of a minute is of
60 to 80 s, and of an hour of 60 to 75 minutes. What must not live here: how it is shown, and how
Redis is asked.

Where counters are in Redis, each process leaves what it has in a stretch there, too
(`ProcessRecords`). So the callers of all processes can be told, those of a process that has ended
as well. A record has at most 16 kB; a caller that has no place in it only makes the error larger.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from os import urandom
from typing import Any, Final, NamedTuple, Protocol

from ratelimit_service import wire
from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.errors import BadRequestError
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.eventloop.slices import pause
from ratelimit_service.limiter import CallerStanding, RuleCallers, TopCallers, tally_sample
from ratelimit_service.limiter.callers import MOST_RULES, room_for
from ratelimit_service.model import SECOND_US
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.stores.keys import entries_of

__all__ = [
    "HOUR",
    "MINUTE",
    "WINDOWS",
    "CallerHistory",
    "CallerOrder",
    "Period",
    "ProcessRecords",
    "RuleStretch",
    "Standing",
    "Stretch",
]

_FOLD_SECONDS: Final = 5.0
_MOST_ROWS: Final = 100
_MOST_BYTES: Final = 1 << 14
"""Callers of each kind in a record, and its bytes."""

_MOST_TEXT: Final = 200
"""Characters of a key or value that are kept."""


class CallerOrder(StrEnum):
    """By what callers are the most."""

    OVER = "over"
    """Hits that were over their limit."""
    NEAR = "near"
    """Hits that passed, but were near their limit."""
    HITS = "hits"
    """All hits."""


class ProcessRecords(Protocol):
    """Where processes leave records for each other. What fails is as if nothing were there."""

    async def leave(self, name: str, process: str, record: bytes, life_us: int) -> None:
        """Leaves a process's record under a name, in the place of its last one."""

    async def read(self, name: str) -> Mapping[str, bytes]:
        """The records under a name, by process."""


class Period(NamedTuple):
    """A window of the past, in so many whole stretches beside the one that has begun."""

    name: str
    stretch_us: int
    whole: int


MINUTE: Final = Period("minute", 20 * SECOND_US, 3)
HOUR: Final = Period("hour", 900 * SECOND_US, 4)
WINDOWS: Final = {each.name: each for each in (MINUTE, HOUR)}


class Standing(NamedTuple):
    """How a caller stood when it was nearest to its limit, as far as anybody looked.

    Without entries it is known by its key alone. `remaining` is -1 where nobody saw it near.
    """

    limit: str
    capacity: int
    remaining: int
    entries: list[tuple[str, str]] | None


RuleName = tuple[str, str]
"""A rule's domain and path."""


class RuleStretch:
    """One rule's callers in a stretch of time."""

    def __init__(self, most: int) -> None:
        self.sketches: dict[CallerOrder, TopNames[str]] = {
            order: TopNames(most) for order in CallerOrder
        }
        self.standing: dict[str, Standing] = {}

    def limit_to(self, most: int) -> None:
        """Keeps so many callers of each kind at most."""
        for each in self.sketches.values():
            each.most = min(each.most, most)
            each.purge()
        self.forget()

    def forget(self) -> None:
        """Drops what is known of callers that are not among the most."""
        known = [each.counts for each in self.sketches.values()]
        self.standing = {
            key: each
            for key, each in self.standing.items()
            if any(key in counts for counts in known)
        }


class Stretch:
    """All rules' callers in a stretch of time, by one process or several."""

    def __init__(self) -> None:
        self.rules: dict[RuleName, RuleStretch] = {}
        self.left_out = 0

    def rule(self, name: RuleName) -> RuleStretch | None:
        """One rule's; None if there is no room for another rule."""
        stretch = self.rules.get(name)
        if stretch is None and len(self.rules) < MOST_RULES:
            before, most = room_for(len(self.rules)), room_for(len(self.rules) + 1)
            if most < before:
                for each in self.rules.values():
                    each.limit_to(most)
            stretch = self.rules[name] = RuleStretch(most)
        return stretch

    def add(self, name: RuleName, other: RuleStretch) -> None:
        """Adds what another stretch, or another process, has of a rule."""
        own = self.rule(name)
        if own is None:
            self.left_out += other.sketches[CallerOrder.HITS].total
            return
        for order, sketch in other.sketches.items():
            own.sketches[order].merge(sketch.counts.items(), sketch.error, sketch.total)
        for key, seen in other.standing.items():
            before = own.standing.get(key)
            if before is None or before.remaining < 0 or 0 <= seen.remaining < before.remaining:
                own.standing[key] = seen
        own.forget()

    def merge(self, other: Stretch) -> None:
        """Adds all of another one."""
        self.left_out += other.left_out
        for name, each in other.rules.items():
            self.add(name, each)

    def told(self, domain: str = "", rule: str = "", most: int = MOST_RULES) -> Iterator[Any]:
        """A part for each rule that JSON can say, for `hear`; of a domain, or rule, if named.

        Of each kind the `most` callers, over all rules, are told.
        """
        chosen = {
            name: each
            for name, each in self.rules.items()
            if (not domain or name[0] == domain) and (not rule or name[1] == rule)
        }
        floors = {order: _floor(chosen.values(), order, most) for order in CallerOrder}
        for (of_domain, path), each in chosen.items():
            sketches, keys = {}, set[str]()
            for order, sketch in each.sketches.items():
                floor, dropped = floors[order], 0
                counts = {}
                for key, times in sketch.counts.items():
                    if times >= floor:
                        counts[key] = times
                    else:
                        dropped = max(dropped, times)
                sketches[order.value] = [sketch.total, sketch.error + dropped, counts]
                keys |= counts.keys()
            standing = {key: seen for key, seen in each.standing.items() if key in keys}
            yield [of_domain, path, sketches, standing]

    def hear(self, part: Any) -> None:
        """Adds a part that another process has told.

        Raises ValueError, TypeError, KeyError or AttributeError if it is none.
        """
        domain, path, sketches, standing = part
        stretch = RuleStretch(MOST_RULES)
        for order in CallerOrder:
            total, error, counts = sketches[order.value]
            sketch = stretch.sketches[order]
            sketch.total, sketch.error = int(total), int(error)
            sketch.counts = {str(key): int(times) for key, times in counts.items()}
        for key, (limit, capacity, remaining, entries) in standing.items():
            pairs = None if entries is None else [(str(one), str(other)) for one, other in entries]
            stretch.standing[str(key)] = Standing(str(limit), int(capacity), int(remaining), pairs)
        self.add((str(domain), str(path)), stretch)


def _floor(rules: Iterable[RuleStretch], order: CallerOrder, most: int) -> int:
    """The least count that is among the `most` of all rules."""
    counts = sorted(
        (times for each in rules for times in each.sketches[order].counts.values()), reverse=True
    )
    return counts[most - 1] if len(counts) >= most else 0


class CallerHistory:
    """The stretches of one process that decides, and the way to those of others."""

    def __init__(
        self, callers: TopCallers, records: ProcessRecords | None = None, clock: Clock = now_us
    ) -> None:
        self.id = urandom(8).hex()
        """Names the process in what it leaves for others."""
        self._callers = callers
        self._records = records
        self._clock = clock
        self._stretches: dict[Period, dict[int, Stretch]] = {MINUTE: {}, HOUR: {}}
        self._left = {period: clock() // period.stretch_us for period in WINDOWS.values()}
        """The stretch of which a record was left last."""
        self._folding = asyncio.Lock()
        self._bugs = Bugs()

    async def keep(self) -> None:
        """Folds, and leaves records for others, again and again."""
        while True:
            await asyncio.sleep(_FOLD_SECONDS)
            await self.leave()

    async def leave(self) -> None:
        """Folds, and leaves a record of the stretches of now for others. Raises nothing."""
        try:
            await self.fold()
            if self._records is None:
                return
            for period, last in list(self._left.items()):
                self._left[period] = number = self.number(period)
                for each in {last, number}:
                    stretch = self._stretches[period].get(each)
                    if stretch is not None and stretch.rules:
                        life_us = (period.whole + 2) * period.stretch_us
                        name = _name(period, each)
                        await self._records.leave(name, self.id, await _record(stretch), life_us)
        except Exception as error:
            self._bugs.note("what is known of callers could not be kept", error)

    async def fold(self) -> None:
        """Takes what was noted since the last time into the stretches of now, rule by rule."""
        async with self._folding:
            callers = self._callers
            tally_sample(callers)
            rules, bodies, left_out = callers.rules, callers.bodies, callers.left_out
            callers.clear()
            now = self._stretches_of_now()
            for stretch in now:
                stretch.left_out += left_out
            for rule, noted in rules.items():
                converted = _converted(noted, rule.domain, bodies)
                for stretch in now:
                    stretch.add((rule.domain, rule.path), converted)
                await pause()

    def number(self, period: Period) -> int:
        """The number of the stretch of now."""
        return self._clock() // period.stretch_us

    async def window(self, period: Period) -> Stretch:
        """All that this process knows of a window of the past."""
        await self.fold()
        number, window = self.number(period), Stretch()
        for each, stretch in list(self._stretches[period].items()):
            if 0 <= number - each <= period.whole:
                window.merge(stretch)
                await pause()
        return window

    async def elsewhere(self, period: Period, known: Collection[str]) -> tuple[Stretch, set[str]]:
        """What other processes than these have left of a window of the past, and who they are."""
        stretch, processes = Stretch(), set[str]()
        if self._records is None:
            return stretch, processes
        number = self.number(period)
        for each in range(number - period.whole, number + 1):
            records = await self._records.read(_name(period, each))
            for process, record in records.items():
                if process not in known and len(record) <= _MOST_BYTES:
                    try:
                        for part in json.loads(record):
                            stretch.hear(part)
                    except (ValueError, TypeError, KeyError, AttributeError):
                        continue  # of another version
                    processes.add(process)
                    await pause()
        return stretch, processes

    def _stretches_of_now(self) -> list[Stretch]:
        current = []
        for period, stretches in self._stretches.items():
            number = self.number(period)
            for old in [each for each in stretches if not 0 <= number - each <= period.whole]:
                del stretches[old]
            current.append(stretches.setdefault(number, Stretch()))
        return current


def _name(period: Period, number: int) -> str:
    """The name of a stretch's records."""
    return f"{period.name}.{number}"


async def _record(stretch: Stretch) -> bytes:
    """What is told of a stretch, with as many callers as there is room for."""
    rows = _MOST_ROWS
    while True:
        record = json.dumps(list(stretch.told(most=rows)), separators=(",", ":")).encode()
        if len(record) <= _MOST_BYTES:
            return record
        if rows <= 1:
            return b"[]"
        rows //= 2
        await pause()


def _converted(
    noted: RuleCallers, domain: str, bodies: Mapping[bytes, tuple[bytes, int]]
) -> RuleStretch:
    """What decisions have noted of a rule, with keys and limits that JSON can say."""
    stretch = RuleStretch(MOST_RULES)
    pairs = zip(CallerOrder, (noted.over, noted.near, noted.hits), strict=True)
    for order, sketch in pairs:
        sketch.purge()
        own = stretch.sketches[order]
        own.total, own.error = sketch.total, sketch.error
        own.counts = {_text(key): times for key, times in sketch.counts.items()}
    noted.forget()
    for key, seen in noted.notes.items():
        stretch.standing[_text(key)] = _standing(key, seen, domain, bodies)
    return stretch


def _text(key: bytes) -> str:
    return key.decode("latin-1")


def _standing(
    key: bytes, seen: CallerStanding, domain: str, bodies: Mapping[bytes, tuple[bytes, int]]
) -> Standing:
    entries = entries_of(key, domain)
    if entries is None and key in bodies:
        entries = _asked(*bodies[key])
    cut = None if entries is None else [(_cut(name), _cut(value)) for name, value in entries]
    return Standing(_limit_text(seen.limit), seen.capacity, seen.remaining, cut)


def _asked(body: bytes, place: int) -> list[tuple[str, str]] | None:
    """The entries of a request's descriptor."""
    try:
        return [(key, value) for key, value in wire.decode_request(body).descriptors[place].entries]
    except (BadRequestError, IndexError):
        return None


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


_limit_text = lru_cache(1024)(limit_text)
