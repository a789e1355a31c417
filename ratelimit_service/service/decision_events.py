"""Tells of decisions after they were answered: all to who listens, some to who traces.

What fails here costs nobody an answer. What must not live here: what a record says (`records`), and
what becomes of it (`decision_log`, `telemetry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.errors import StatusCode
from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.model.refusal import Refusal
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.records import DecidedBatch, DecisionRecord, Listener
from ratelimit_service.service.tracer import Traced, Tracer

__all__ = ["DecisionEvents"]

_NO_TIME: Final = Refusal(
    StatusCode.RESOURCE_EXHAUSTED, "there is no time: more calls come than can be counted"
)


class DecisionEvents:
    """Who hears of the decisions of a service."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.listeners: tuple[Listener, ...] = ()
        self.tracer: Tracer | None = None
        """Who makes spans of calls, if anybody does."""

    @property
    def wants_origins(self) -> bool:
        """Whether somebody wants to know just now who makes calls."""
        try:
            return bool(self.listeners) or (self.tracer is not None and self.tracer.open)
        except Exception as error:
            self._faults.note("a tracer cannot say whether it is open", error)
            return bool(self.listeners)

    def add(self, listener: Listener) -> None:
        """Has it hear of all decisions from now on."""
        self.listeners = (*self.listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Has it hear no more."""
        self.listeners = tuple([each for each in self.listeners if each is not listener])

    def choose(self, origins: Sequence[CallOrigin] | None) -> Sequence[Traced]:
        """Which calls of a batch become spans."""
        tracer = self.tracer
        if origins is None or tracer is None or not tracer.open:
            return ()
        try:
            return tracer.choose(origins)
        except Exception as error:
            self._faults.note("spans of calls could not be made", error)
            return ()

    def tell(self, decided: DecidedBatch, traced: Sequence[Traced] = ()) -> None:
        """Tells of decisions, and of those that were chosen to become spans."""
        for listener in self.listeners:
            try:
                listener.hear(decided)
            except Exception as error:
                self._faults.note("a listener failed with decisions", error)
        self._trace(decided, traced)

    def turned_away(self, calls: Sequence[tuple[bytes, CallOrigin]], others: int) -> None:
        """Tells of calls refused for lack of time, and only the number of so many `others`."""
        if others:
            for listener in self.listeners:
                try:
                    listener.missed(others)
                except Exception as error:
                    self._faults.note("a listener failed with calls that were refused", error)
        if not calls:
            return
        records = [
            DecisionRecord(body, _NO_TIME, None, DecidedBy.NOTHING, caller=origin)
            for body, origin in calls
        ]
        self.tell(DecidedBatch.of(records), self.choose([origin for _, origin in calls]))

    def _trace(self, decided: DecidedBatch, traced: Sequence[Traced]) -> None:
        tracer = self.tracer
        if not traced or tracer is None:
            return
        try:
            for each in traced:
                tracer.decided(each, decided.record(each.place))
        except Exception as error:
            self._faults.note("spans of calls could not be made", error)
