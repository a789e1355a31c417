"""What somebody who traces calls is asked and told. Off, nothing of it is made.

What must not live here: what a trace is, and who gets it (`telemetry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ratelimit_service.service.records import DecisionRecord

__all__ = ["TRACE_HEADERS", "Headers", "Traced", "Tracer"]

Headers = Sequence[tuple[bytes, bytes]]
"""Those headers of a call that say to which trace it belongs: names in small letters, and values.
"""

TRACE_HEADERS: Final = frozenset(
    {
        b"traceparent",
        b"tracestate",
        b"b3",
        b"x-b3-traceid",
        b"x-b3-spanid",
        b"x-b3-sampled",
        b"x-b3-flags",
    }
)
"""W3C's Trace Context, and B3 with one header or several."""


class Traced(NamedTuple):
    """A call that becomes a span: its place in its batch, and what its tracer keeps of it."""

    place: int
    parent: object


class Tracer(Protocol):
    """Makes a span of some calls."""

    @property
    def open(self) -> bool:
        """Whether it may want a call just now; else nobody need read headers for it."""

    def choose(self, headers: Sequence[Headers]) -> Sequence[Traced]:
        """Which calls of a batch, by their headers, become spans."""

    def decided(self, traced: Traced, record: DecisionRecord, took_us: int) -> None:
        """Hears of one of them after it was answered, which took so long. It must not wait."""
