"""Which streams of a connection are open, and how each one ends.

A stream is open from its HEADERS until its answer is sent or it is reset (RFC 9113, section 5.1).
What must not live here: what a stream carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Budget
from ratelimit_service.grpc.h2.costs import HEADERS_US, RESET_US
from ratelimit_service.grpc.h2.frames import ErrorCode, SettingId
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.life import Leaving, Life, Opening
from ratelimit_service.grpc.h2.limits import STREAM_BYTES
from ratelimit_service.grpc.h2.streams import Methods, Stream
from ratelimit_service.model.call_origin import CallOrigin

__all__ = ["OpenStreams"]

_CLOSED_REMEMBERED: Final = 256


class OpenStreams:
    """The open streams of one connection, and the last ones that were closed.

    Most calls come whole, or nearly so. These need no record: `begun` or None stands for them.
    """

    def __init__(self, methods: Methods, life: Life, budget: Budget, output: list[bytes]) -> None:
        self._methods = methods
        self._life = life
        self._budget = budget
        self._output = output
        self.open: dict[int, Stream | None] = {}
        """None stands for a unary call that was handed on: its window is that of all new streams,
        or as much wider as `widened` says."""
        self.begun: dict[int, tuple[Head, CallOrigin | None, bytes]] = {}
        """Usual calls that are not whole: their headers, who makes them, if somebody asks, and what
        has come of the body."""
        self.widened: dict[int, int] = {}
        """How much wider the windows of calls without a record are; also of some that are over."""
        self.unfinished: dict[int, Stream] = {}
        """Records of streams that the client has not ended on its side."""
        self.finished: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        """Closed streams that both sides had ended."""
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_CLOSED_REMEMBERED)
        """The lowest and the highest of streams that the client left out, where it was noticed."""
        self.withdrawn: list[int] = []
        """Streams that we have ended; whoever works on their answers must still be told."""
        self.blocked: dict[int, Stream] = {}
        """Streams with answers that wait for the connection's window, the longest waiting first."""
        self.shut: dict[int, Stream] = {}
        """Streams with answers that wait for their own window."""
        self.latest = 0
        """The highest stream that the client has opened; 0 if there is none."""

    def __len__(self) -> int:
        return len(self.open) + len(self.begun)

    def record(self, stream_id: int) -> Stream | None:
        """The record of an open stream, which is made if it has none; None if it is not open."""
        stream = self.open.get(stream_id)
        if stream is not None:
            return stream
        begun = self.begun.pop(stream_id, None)
        if begun is not None:
            head, caller, body = begun
            stream = Stream(head, self._methods)
            stream.caller, stream.since = caller, self._life.second
            stream.body += body
            stream.received = len(body)
            stream.receive_window -= len(body)
            self.unfinished[stream_id] = stream
        elif stream_id in self.open:
            stream = Stream(Head(), self._methods)
            stream.ended = True
        else:
            return None
        stream.cost_us = HEADERS_US
        stream.credit = self.widened.pop(stream_id, 0)
        self.keep(stream, STREAM_BYTES + len(stream.body))
        self.open[stream_id] = stream
        return stream

    def was_opened(self, stream_id: int) -> bool:
        """Whether the client may send on a stream, or may have sent before it heard of its end."""
        return 0 < stream_id <= self.latest and stream_id % 2 == 1

    def opens(self, stream_id: int) -> None:
        """Notes that the client opens a stream: then those that it leaves out cannot be opened."""
        if stream_id - 2 > self.latest:
            self._skipped.append((self.latest + 1, stream_id - 1))
        self.latest = stream_id

    def hand_on(self, stream_ids: Sequence[int]) -> None:
        """Opens new streams whose calls have come whole, in this order."""
        last = stream_ids[-1]
        if last - self.latest > 2 * len(stream_ids):  # some are left out
            for stream_id in stream_ids:
                self.opens(stream_id)
        self.latest = last
        self.open.update(dict.fromkeys(stream_ids))

    def was_skipped(self, stream_id: int) -> bool:
        """Whether the client has left this stream out."""
        return any(first <= stream_id <= last for first, last in self._skipped)

    def keep(self, stream: Stream, size: int) -> None:
        """Counts so many more bytes as kept for a stream."""
        stream.held += size
        self._budget.hold(size)

    def reset(self, stream_id: int, code: ErrorCode, cost_us: int = RESET_US) -> None:
        """Ends one stream with an error. Raises ConnectionFaultError if that is done too often."""
        self._output.append(frames.rst_stream(stream_id, code))
        stream = self.record(stream_id)
        if stream is not None:
            cost_us += stream.cost_us
            self.close(stream_id, stream, reset_known=True)
            self.withdrawn.append(stream_id)
        self._budget.spend(cost_us, "resets")

    def close(self, stream_id: int, stream: Stream, *, reset_known: bool = False) -> None:
        """Forgets a stream that was answered or given up.

        A client that may still send on it is told to stop, unless `reset_known`.
        """
        del self.open[stream_id]
        self.unfinished.pop(stream_id, None)
        self.blocked.pop(stream_id, None)
        self.shut.pop(stream_id, None)
        self._budget.hold(-stream.held)
        if not (stream.ended or reset_known):
            # It was answered before the client had sent all, so it may stop (RFC 9113, 8.1).
            self._output.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        if stream.ended:
            self.finished.append(stream_id)
        if self._life.opening is Opening.FIRST_CALL:
            # Only now, because a client that makes a single call should not need another SETTINGS.
            self._life.enter(Opening.OPEN)
            self._life.unacknowledged += 1
            self._output.append(frames.settings({SettingId.HEADER_TABLE_SIZE: 0}))
        self.close_if_done()

    def close_if_done(self) -> None:
        """Ends a connection that is left once its last stream is closed."""
        if not (self.open or self.begun) and self._life.leaving is Leaving.DRAINING:
            self._life.enter(Leaving.CLOSING)

    def forget(self) -> None:
        """Ends the record of a connection that is gone: answers that still come are not kept."""
        for kept in (self.open, self.begun, self.widened):
            kept.clear()
        for waiting in (self.unfinished, self.blocked, self.shut):
            waiting.clear()
