"""A batch that asks a server for an advance: no caller waits for it, and a late reply counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import SECOND_US, Hit, Outcome
from ratelimit_service.stores.redis.batch import Background, Batch, Urgency

__all__ = ["AdvanceAsked"]

_PATIENCE_US: Final = SECOND_US
"""What the server has not charged by then, it need not charge any more."""


class AdvanceAsked(Background):
    """One advance. `heard` is told its outcome and the server's time, or None if there is none."""

    __slots__ = ("_heard",)

    def __init__(
        self, hit: Hit, heard: Callable[[Outcome | None, int], None], priority: int
    ) -> None:
        by = Urgency(elapsed_us() + _PATIENCE_US, priority=priority)
        super().__init__([[hit]], urgency=by)
        self._heard = heard

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], at_us: int, _within: bool
    ) -> None:
        """Tells the outcome."""
        for _ in indexes:
            self._heard(next(found), at_us)

    def failed(self, indexes: Sequence[int], _reason: str) -> None:
        """Tells that there is none."""
        for _ in indexes:
            self._heard(None, 0)

    def divided_by_slot(self, indexes: Sequence[int]) -> list[Batch] | None:
        """It is asked once more, apart from what it was sent with."""
        return [
            AdvanceAsked(self.requests[index][0], self._heard, self.urgency.priority)
            for index in indexes
        ]
