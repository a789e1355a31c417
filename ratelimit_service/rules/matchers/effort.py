"""What searching for patterns, regular expressions and overrides may cost in one turn of the loop.

A value can take some milliseconds in the worst case, and a request can have many values. So who
plans requests bounds the effort (`begin`), and goes on in a later turn where it is spent; what was
found until then is kept meanwhile. Who asks for one value only is not bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["EFFORT", "Effort", "EffortSpentError", "Searches"]

_MOST_AT_ONCE: Final = 200_000
"""Instructions times bytes. When so much is spent no other search begins; the last one may take
twice as much."""

Searches = dict[tuple[object, object], Sequence[Any]]
"""What searches found: by who searched, who knows what it finds, and for what."""


class EffortSpentError(Exception):
    """The rest is to be searched in another turn."""


class Effort:
    """How much may be spent still, and what was found."""

    __slots__ = ("bounded", "rest", "results")

    def __init__(self) -> None:
        self.bounded = False
        """Whether it matters now."""
        self.rest = _MOST_AT_ONCE
        """What costs little for one value, and is known only afterwards, is just taken from it."""
        self.results: Searches = {}

    def begin(self, results: Searches) -> None:
        """Bounds what is spent until `end`. What was found in turns before is in `results`.

        What is found now goes there, too.
        """
        self.bounded, self.rest, self.results = True, _MOST_AT_ONCE, results

    def end(self) -> None:
        """Bounds nothing any more, and forgets what was found."""
        self.bounded, self.results = False, {}

    def spend(self, work: int) -> None:
        """Takes so much. Raises EffortSpentError if all is spent already."""
        if self.rest <= 0:
            raise EffortSpentError
        self.rest -= work


EFFORT: Final = Effort()
"""That of the event loop: requests are planned in one thread."""
