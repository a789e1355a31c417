"""The interface between deciding and counting: what every store does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from ratelimit_service.model import Hit, Outcome, State
from ratelimit_service.stores.settled import Settled

__all__ = [
    "NEVER",
    "PRIORITIES",
    "Done",
    "HoldingNow",
    "KnownOver",
    "Look",
    "LookAt",
    "Pay",
    "ShardState",
    "Store",
    "Wanted",
    "always",
    "unknown",
    "wanted_at",
]

Done = Callable[[list[Settled]], None]
"""Takes the results of a batch of requests, in their order."""

Wanted = Callable[[int], bool]
"""Whether the caller still waits for the answer to a request, by its place among those charged."""


NEVER: Final = 1 << 62
"""The deadline of a charge that has none."""

PRIORITIES: Final = 8
"""Priorities are numbers below this. Where requests wait, those of priority 0 are sent first."""


def always(_index: int) -> bool:
    """A caller that waits for as long as it takes."""
    return True


def unknown(_hits: Sequence[Hit]) -> Settled | None:
    """Of no request it is known that it is over."""
    return None


def wanted_at(wanted: Wanted, indexes: Sequence[int], index: int) -> bool:
    """`wanted` for a part of a batch; `indexes` are the places of this part in the whole."""
    return wanted(indexes[index])


class HoldingNow(NamedTuple):
    """Hits that a reservation holds beside a counter, until it is settled or ends."""

    ends_us: int
    id: bytes
    hits: int


class Look(NamedTuple):
    """A counter as it stands: the outcome of a peek, and the state where that holds a list.

    `at_us` is the time of the clock that counts. Of the hits on it, this process holds as many as
    `held`: they are counted, and not spent. It is None where no process ever holds any. `holds` are
    those of reservations, the first to end first; None where nobody can say.
    """

    outcome: Outcome
    state: State | None
    at_us: int
    held: int | None = None
    holds: Sequence[HoldingNow] | None = ()


class ShardState(NamedTuple):
    """A server of a store, as this process sees it now.

    `kind` is what it is among the others, and `address` is where it is connected, empty while it is
    away. While the breaker is open the server is sick, and left alone until it answers pings.
    `round_trip_us` is of the last heartbeat, None before the first. `under_way` are calls without a
    reply, and `waiting` are batches that are not sent yet. So many `processes` count there.
    """

    name: str
    kind: str
    address: str
    breaker_open: bool
    round_trip_us: int | None
    under_way: int
    waiting: int
    processes: int


KnownOver = Callable[[Sequence[Hit]], Settled | None]
"""What becomes of a request that is known to be over its limits, without counting anything; None if
that is not known. For when there is no time to count."""

Pay = Callable[[Sequence[Sequence[Hit]], int], list[Settled | None]]
"""Settles those requests of a priority that need no store; None for those that are to be charged,
of which nothing is noted."""

LookAt = Callable[[Sequence[Hit]], Awaitable[list[Look | None]]]
"""Tells how the counters of peeks stand, without changing them; None if nobody can say. This is
for people: it may wait for some time, and each counter is read by itself."""


class Store(Protocol):
    """Counts hits, and settles requests."""

    @property
    def waits(self) -> bool:
        """Whether it must wait for another process to count."""

    def wait_us(self, priority: int) -> int:
        """How long a new request of this priority would wait, as far as is known."""

    async def start(self) -> None:
        """Tries the store once, in bounded time, and keeps it connected from then on.

        Never raises for a store that is away: that is a fault to live with, seen in health.
        """

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Settles each request, each atomically by itself; `done` hears in order.

        A store in which requests wait asks `wanted` before it sends one, and else drops it.
        Nothing is charged after the deadline, which is by `clock.elapsed_us`. Those of a lower
        `priority` are sent first, so that a client with much under way keeps nobody else waiting.

        `done` is called exactly once, before this returns or later, at the latest when the
        store's timeout or the deadline is over. A store that fails raises nothing: hits without
        an answer have the outcome None, and may or may not have been counted. A request that is
        dropped, or met a fault of the store's own, was not counted.
        """

    async def close(self) -> None:
        """Lets go of connections; nothing may be charged afterwards."""
