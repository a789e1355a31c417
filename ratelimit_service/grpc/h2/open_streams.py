"""Which streams of a connection are open, and how each one ends.

A stream is open from its HEADERS until its answer is sent or it is reset (RFC 9113, section 5.1).
What must not live here: what a stream carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.account import Account, Memory
from ratelimit_service.grpc.h2.costs import HEADERS_US, RESET_US
from ratelimit_service.grpc.h2.frames import ErrorCode, SettingId
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.life import Leaving, Life, Opening
from ratelimit_service.grpc.h2.limits import STREAM_BYTES
from ratelimit_service.grpc.h2.streams import Methods, Stream

__all__ = ["OpenStreams"]

_CLOSED_REMEMBERED: Final = 256


class OpenStreams(Account):
    """The open streams of one connection, and the last ones that were closed."""

    def __init__(self, methods: Methods, memory: Memory) -> None:
        super().__init__(memory)
        self._methods = methods
        self._life = Life()
        self._streams: dict[int, Stream | None] = {}
        """Open streams. None stands for a whole unary call without a record: its window is that of
        all new streams."""
        self._widened: dict[int, int] = {}
        """How much wider the windows of such calls are; also of some that are over."""
        self._unfinished: dict[int, Stream] = {}
        """Streams that the client has not ended on its side."""
        self._finished: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        """Closed streams that both sides had ended."""
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_CLOSED_REMEMBERED)
        """The lowest and the highest of streams that the client left out, where it was noticed."""
        self._withdrawn: list[int] = []
        """Streams that we have ended; whoever works on their answers must still be told."""
        self._blocked: dict[int, Stream] = {}
        """Streams with answers that wait for the connection's window, the longest waiting first."""
        self._shut: dict[int, Stream] = {}
        """Streams with answers that wait for their own window."""
        self.latest_stream = 0
        """The highest stream that the client has opened; 0 if there is none."""
        self._unacknowledged = 1
        """How many SETTINGS of ours the client has to acknowledge; the first go out at once."""
        self._output: list[bytes] = []
        self.reason = ""
        """Why the connection was ended, in a word."""

    @property
    def open_streams(self) -> int:
        """How many calls are not answered in full."""
        return len(self._streams)

    @property
    def closing(self) -> bool:
        """Whether the socket is to be closed once the output is written."""
        return self._life.closing

    def close(self) -> None:
        """Ends the connection without a word, as when its socket is gone."""
        if not self._life.closing:
            self._life.enter(Leaving.CLOSING)

    def abandon(self, code: ErrorCode, text: str, reason: str = "") -> None:
        """Ends the connection, and tells the client why."""
        if not self._life.closing:
            self._life.enter(Leaving.CLOSING)
            self.reason = reason
            self._output.append(frames.goaway(self.latest_stream, code, text))

    def is_open(self, stream_id: int) -> bool:
        """Whether the client still waits for this answer."""
        return stream_id in self._streams and not self._life.closing

    def awaits(self, stream_ids: Sequence[int], place: int) -> bool:
        """The same of the stream at that place of these."""
        return stream_ids[place] in self._streams and not self._life.closing

    def forget(self) -> None:
        """Ends the record of a connection that is gone: answers that still come are not kept."""
        self._streams.clear()
        self._widened.clear()
        for waiting in (self._unfinished, self._blocked, self._shut):
            waiting.clear()
        super().forget()

    def take_output(self) -> bytes:
        """Takes the bytes to write, which are then forgotten here."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def _stream(self, stream_id: int) -> Stream | None:
        """The record of an open stream. A whole call gets one only when it is needed."""
        stream = self._streams.get(stream_id)
        if stream is None and stream_id in self._streams:
            stream = Stream(Head(), self._methods)
            stream.ended = True
            stream.cost_us = HEADERS_US
            stream.credit = self._widened.pop(stream_id, 0)
            self._keep(stream, STREAM_BYTES)
            self._streams[stream_id] = stream
        return stream

    def _was_opened(self, stream_id: int) -> bool:
        """Whether the client may send on a stream, or may have sent before it heard of its end."""
        return 0 < stream_id <= self.latest_stream and stream_id % 2 == 1

    def _opens(self, stream_id: int) -> None:
        """Notes that the client opens a stream: then those that it leaves out cannot be opened."""
        if stream_id - 2 > self.latest_stream:
            self._skipped.append((self.latest_stream + 1, stream_id - 1))
        self.latest_stream = stream_id

    def _opens_all(self, stream_ids: Sequence[int]) -> None:
        """The same of several."""
        first, last = stream_ids[0], stream_ids[-1]
        if first - 2 > self.latest_stream or last - first != 2 * (len(stream_ids) - 1):
            for stream_id in stream_ids:
                self._opens(stream_id)
        self.latest_stream = last

    def _was_skipped(self, stream_id: int) -> bool:
        return any(first <= stream_id <= last for first, last in self._skipped)

    def _keep(self, stream: Stream, size: int) -> None:
        stream.held += size
        self._hold(size)

    def _reset(self, stream_id: int, code: ErrorCode, cost_us: int = RESET_US) -> None:
        """Ends one stream with an error. Raises ConnectionFaultError if that is done too often."""
        self._output.append(frames.rst_stream(stream_id, code))
        stream = self._stream(stream_id)
        if stream is not None:
            cost_us += stream.cost_us
            self._close(stream_id, stream, told=True)
            self._withdrawn.append(stream_id)
        self._spend(cost_us, "resets")

    def _close(self, stream_id: int, stream: Stream, *, told: bool = False) -> None:
        """Forgets a stream that was answered or given up.

        A client that may still send on it is told to stop, unless it was `told`.
        """
        del self._streams[stream_id]
        self._unfinished.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        self._shut.pop(stream_id, None)
        self._hold(-stream.held)
        if not (stream.ended or told):
            # It was answered before the client had sent all, so it may stop (RFC 9113, 8.1).
            self._output.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        if stream.ended:
            self._finished.append(stream_id)
        if self._life.opening is Opening.FIRST_CALL:
            # Only now, because a client that makes a single call should not need another SETTINGS.
            self._life.enter(Opening.OPEN)
            self._unacknowledged += 1
            self._output.append(frames.settings({SettingId.HEADER_TABLE_SIZE: 0}))
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Ends a connection that is left once its last stream is closed."""
        if not self._streams and self._life.leaving is Leaving.DRAINING:
            self._life.enter(Leaving.CLOSING)
