"""Where counters live. A store settles whether requests pass, atomically, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ratelimit_service.model import Hit, Outcome

__all__ = ["AT_ONCE", "FAILED", "NEVER", "Outcomes", "Store", "Wanted", "always", "wanted_at"]

Outcomes = Sequence[Outcome | None]
"""One for each hit of a request, in order; None where the store gave no answer in time.

Empty for a request that was not charged, since its caller did not want it any more. `FAILED` for
one that the store could not settle.
"""

FAILED: Final[Outcomes] = []
"""In place of a request's outcomes: a fault of the store's own, which is in the log. Nothing of the
request was counted, and no failure policy applies to it. It is known by its identity.
"""

Wanted = Callable[[int], bool]
"""Whether the caller still waits for the answer to a request, by its place among those charged."""


NEVER: Final = 1 << 62
"""The deadline of what has none."""

AT_ONCE: Final = 0
"""The deadline of what there is no time for: a store that would have to wait is not asked."""


def always(_place: int) -> bool:
    """A caller that waits for as long as it takes."""
    return True


def wanted_at(wanted: Wanted, places: Sequence[int], place: int) -> bool:
    """`wanted` of some of a batch, which had these places in it."""
    return wanted(places[place])


class Store(Protocol):
    """The seam between deciding and counting."""

    @property
    def waits(self) -> bool:
        """Whether it must wait for somebody else to count; not what is asked `AT_ONCE`."""

    async def start(self) -> None:
        """Tries the store once, in bounded time, and keeps it connected from then on.

        Never raises for a store that is away: that is a fault to live with, seen in health.
        """

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        """Settles each request, each atomically by itself; `done` gets the answers in order.

        A store in which requests wait asks `wanted` before it sends one, and else drops it.
        Nothing is charged after the deadline, which is by `clock.elapsed_us`.

        `done` is called exactly once, before this returns or later, at the latest when the
        store's timeout or the deadline is over. A store that fails raises nothing: hits without
        an answer have the outcome None, and may or may not have been counted.
        """

    async def close(self) -> None:
        """Lets go of connections; nothing may be charged afterwards."""
