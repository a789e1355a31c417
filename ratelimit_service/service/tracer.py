"""What somebody who traces calls is asked and told. Off, nothing of it is made.

What must not live here: what a trace is, and who gets it (`telemetry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.service.records import DecisionRecord

__all__ = ["Traced", "Tracer"]


class Traced(NamedTuple):
    """A call that becomes a span: its place in its batch, and what its tracer keeps of it."""

    place: int
    parent: object


class Tracer(Protocol):
    """Makes a span of some calls."""

    @property
    def open(self) -> bool:
        """Whether it may want a call just now; else nobody need look who makes calls."""

    def choose(self, origins: Sequence[CallOrigin]) -> Sequence[Traced]:
        """Which calls of a batch, by their callers' headers, become spans."""

    def decided(self, traced: Traced, record: DecisionRecord) -> None:
        """Hears of one of them after it was answered. It must not wait."""
