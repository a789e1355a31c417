"""What is held beside a counter, by the documents: hits that are reserved, each until its end."""

from __future__ import annotations

from typing import NamedTuple

SETTLED = 0
"""In the place of the hits of an id that was settled, which is remembered."""


class Hold(NamedTuple):
    hits: int
    end: int


class Holds:
    """The holds beside one counter, by their ids."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}
        self._gone = 0
        """The end of the last one that was let go of."""

    def copy(self) -> Holds:
        copied = Holds()
        copied._holds, copied._gone = dict(self._holds), self._gone
        return copied

    def __bool__(self) -> bool:
        return bool(self._holds)

    def __repr__(self) -> str:
        return repr(self._holds)

    def look(self, now: int) -> None:
        """Rule: "A hold ends at its own time, not with the window"."""
        ended = {name: hold for name, hold in self._holds.items() if hold.end <= now}
        for name, hold in ended.items():
            self._gone = max(self._gone, hold.end)
            del self._holds[name]

    def total(self, but: str) -> int:
        """What all ids hold but one."""
        return sum(hold.hits for name, hold in self._holds.items() if name != but)

    def of(self, name: str) -> Hold | None:
        return self._holds.get(name)

    def put(self, name: str, hold: Hold) -> None:
        """Rule: "the new reservation takes the place of the old one"."""
        self._holds[name] = hold

    @property
    def ends(self) -> list[int]:
        return [hold.end for hold in self._holds.values()]

    def unclear(self, now: int, latest: int) -> bool:
        """Whether the clock steps back to before an end: what has ended may be gone by then."""
        return any(now < end <= latest for end in [self._gone, *self.ends])
