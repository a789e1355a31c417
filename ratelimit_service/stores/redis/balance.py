"""What a process holds of leased limits, and what one request takes of it.

What must not live here: when it is spent, asked for and handed back (`advances`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ratelimit_service.model import CounterSpec, Hit, Outcome
from ratelimit_service.stores import NEVER, Outcomes

__all__ = ["Balance", "Name", "Taken", "name_of", "payable"]

Name = tuple[bytes, int]
"""What a balance is known by: its counter, and what its limit leaves to others of a pool."""


class Balance:
    """What this process holds of one limit of one counter, and how fast it is used.

    All times but `at_us` and `until_us` are this process's, and those two are the server's.
    """

    __slots__ = (
        "asking",
        "at_us",
        "end_us",
        "gone",
        "hit",
        "hits",
        "idle_us",
        "left",
        "low",
        "resets_us",
        "returns_us",
        "since_us",
        "specs",
        "spent",
        "unspent",
        "until_us",
        "used_us",
        "window",
    )

    def __init__(self, hit: Hit, now_us: int) -> None:
        self.hit = hit
        self.unspent = 0
        self.spent = 0
        """Of what was given in this window; so many can be given back."""
        self.low = 0
        """From here on the next advance is asked for."""
        self.left = hit.spec.limit
        """What the server had left when it was last heard of."""
        self.at_us = 0
        """When the last advance was charged."""
        self.until_us = 0
        """When the counter is as new."""
        self.window = 0
        """Names the window that the hits lie in: its end; in a bucket, when they were counted."""
        self.end_us = 0
        """From then on nothing is spent."""
        self.returns_us = NEVER
        """From then on what will not be spent is handed back, since it counts beyond its end."""
        self.resets_us = 0
        self.asking = False
        self.gone = False
        """Whether the table has let go of it."""
        self.hits = 0
        """How many hits came since then, paid from here or not."""
        self.since_us = now_us
        self.used_us = now_us
        self.idle_us = 0
        """Unused for so long, it is handed back."""
        self.specs: Collection[CounterSpec] | None = None
        """The limits that there were when it was last looked whether its own is among them."""

    def pays(self, hit: Hit, now_us: int) -> bool:
        """Whether it can pay all of a hit, which is on this counter by whichever rules."""
        if self.unspent < hit.addend or now_us >= self.end_us:
            return False
        return self.hit.spec is hit.spec or self.hit.spec == hit.spec

    def put_back(self, addend: int) -> None:
        """Takes back what was spent."""
        self.unspent += addend
        self.spent -= addend

    def refunded(self, hit: Hit, now_us: int) -> Outcome | None:
        """Takes a caller's refund, if as much was spent of what is not over; else None."""
        if hit.receipt is not None or self.spent < hit.addend or now_us >= self.end_us:
            return None
        self.put_back(hit.addend)
        resets_us = max(0, self.resets_us - now_us)
        return Outcome(False, self.left + self.unspent, resets_us, hit.addend)

    def needed(self, now_us: int) -> int:
        """How much will be spent until it ends, at the pace of late."""
        left_us, lasted_us = self.end_us - now_us, now_us - self.since_us
        return self.hits * left_us // max(1, lasted_us)


class Taken:
    """What one request has taken of balances, for its hits at `ats`, and what is charged plainly.

    `windows` are those that the hits were taken from.
    """

    __slots__ = ("ats", "balances", "hits", "outcomes", "rest", "windows")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self.ats: list[int] = []
        self.balances: list[Balance] = []
        self.windows: list[int] = []
        self.outcomes: Outcomes = [None] * len(hits)
        self.rest: list[int] = []


def name_of(hit: Hit) -> Name:
    """What the balance is known by that may pay a hit."""
    return hit[0], hit[1].reserved


def payable(hit: Hit) -> bool:
    """Whether a hit may be paid from what is held; others have to be charged plainly."""
    if not hit.spec.advances or not hit.addend:
        return False
    return not (hit.mode or hit.count_denied or hit.refund or hit.receipt)
