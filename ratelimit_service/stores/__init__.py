"""Where counters live. A store settles whether requests pass, atomically, and counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ratelimit_service.model import Hit, Outcome

__all__ = ["Outcomes", "Store"]

Outcomes = Sequence[Outcome | None]
"""One for each hit of a request, in order; None where the store gave no answer in time."""


class Store(Protocol):
    """The seam between deciding and counting."""

    async def start(self) -> None:
        """Tries the store once, in bounded time, and keeps it connected from then on.

        Never raises for a store that is away: that is a fault to live with, seen in health.
        """

    async def charge(self, requests: Sequence[Sequence[Hit]]) -> list[Outcomes]:
        """Settles each request, each atomically by itself, and answers in their order.

        Never raises for a store that fails and never waits beyond the store's timeout: hits
        without an answer have the outcome None, and may or may not have been counted.
        """

    async def close(self) -> None:
        """Lets go of connections; nothing may be charged afterwards."""
