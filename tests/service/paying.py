"""Limits that pay in turn: three pots, and what the documents say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ratelimit_service.model import Decision
from tests.stores.cases import HOUR, MINUTE, SECOND

ANN = "org=o,team=t,user=ann"
TTL = 40
"""Seconds for which a reservation holds."""

MARKED_US = 660 * SECOND
"""So long a settled id is known: the longest reservation, and a minute more."""


def paid(decision: Decision) -> list[object]:
    """What the metadata say has paid."""
    listed = (decision.metadata or {}).get("paid", [])
    assert isinstance(listed, list)
    return [each["limit"] for each in listed]


def left(decision: Decision) -> list[object]:
    """What remains of each limit."""
    listed = (decision.metadata or {})["limits"]
    assert isinstance(listed, list)
    return [each["remaining"] for each in listed]


class Pot(NamedTuple):
    """One limit of the model: its size, and without the soft part, and its window."""

    name: str
    size: int
    hard: int
    window_us: int
    keys: int
    """How many of the entries org, team and user it counts by."""
    largest: int = 100
    """The part of it that one reservation may hold, in percent."""


POTS = [
    Pot("tier", 7, 5, MINUTE, 3, 60),
    Pot("reserve", 7, 7, HOUR, 2),
    Pot("credits", 20, 20, 30 * 24 * HOUR, 1),
]
_Counter = tuple[str, ...]


class Model:
    """What the documents say, in a few lines: nothing of the service is used.

    Where an id holds, or was settled, is asked alone; else all of them are, soft parts last.
    """

    def __init__(self) -> None:
        self.used: Counter[tuple[_Counter, int]] = Counter()
        self.holds: dict[tuple[_Counter, str], tuple[int, int]] = {}
        """For each counter and id what is held, and when it ends; -1 of one that was settled."""

    def counter(self, pot: Pot, who: Sequence[str]) -> _Counter:
        return pot.name, *who[: pot.keys]

    def room(self, pot: Pot, size: int, who: Sequence[str], now: int, own: str = "") -> int:
        """What is left of a size beside what is counted and held, but for one's own hold."""
        counter = self.counter(pot, who)
        held = sum(
            max(0, hits)
            for (where, hold_id), (hits, _) in self.holds.items()
            if where == counter and hold_id != own
        )
        return size - self.used[counter, now // pot.window_us] - held

    def asked(self, who: Sequence[str], hold_id: str = "") -> Iterator[tuple[Pot, int]]:
        """The limits in the order in which they are asked, each with its size."""
        known = [pot for pot in POTS if (self.counter(pot, who), hold_id) in self.holds]
        for soft in (False, True):
            for pot in known or POTS:
                if pot.size > pot.hard or not soft:
                    yield pot, pot.size if soft else pot.hard

    def left(self, who: Sequence[str], now: int) -> list[int]:
        """What remains of each limit."""
        return [max(0, self.room(pot, pot.hard, who, now)) for pot in POTS]

    def payer(self, who: Sequence[str], hits: int, now: int) -> Pot | None:
        """The first with room for all hits."""
        for pot, size in self.asked(who):
            if self.room(pot, size, who, now) >= hits:
                return pot
        return None

    def charge(self, pot: Pot, who: Sequence[str], hits: int, now: int) -> None:
        self.used[self.counter(pot, who), now // pot.window_us] += hits

    def give_back(self, who: Sequence[str], name: str, hits: int, now: int) -> None:
        for pot in POTS:
            if pot.name == name:
                self.charge(
                    pot, who, -min(hits, pot.size - self.room(pot, pot.size, who, now)), now
                )

    def reserve(self, who: Sequence[str], hold_id: str, hits: int, now: int) -> bool:
        for pot, size in self.asked(who, hold_id):
            place = self.counter(pot, who), hold_id
            fits = hits * 100 <= size * pot.largest
            if fits and self.room(pot, size, who, now, hold_id) >= hits:
                if self.holds.get(place, (0, 0))[0] < 0:
                    return False
                self.holds[place] = hits, now + TTL * SECOND
                return True
        return False

    def settle(self, who: Sequence[str], hold_id: str, hits: int, now: int) -> bool:
        """Whether anything was held."""
        for pot, size in self.asked(who, hold_id):
            counter = self.counter(pot, who)
            held, _ = self.holds.get((counter, hold_id), (0, 0))
            if held < 0:
                return False
            if held or self.room(pot, size, who, now) >= hits:
                self.charge(pot, who, hits, now)
                self.holds[counter, hold_id] = -1, now + MARKED_US
                return held > 0
        return False

    def end(self, now: int) -> None:
        self.holds = {place: each for place, each in self.holds.items() if each[1] > now}
