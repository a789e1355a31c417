"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events out; answers in, bytes out.

RFC 9113 and gRPC's PROTOCOL-HTTP2.md. Each part of a connection builds on the one before:

    account        what the client costs, and what we keep for it
    open_streams   which streams are open, and how they end; `life` has the connection's states
    sending        answers, as the client's windows allow
    control        SETTINGS, PING, windows, and how the connection is left
    incoming       calls, as frames bring them
    hurrying       calls that there is no time for, and resets, many at once
    connection     here: frames in the bytes, and the short ways of calls that come whole

What must not live here: sockets, timers, tasks, and what a call means. Everything that a client can
make grow is bounded by `limits`.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from ratelimit_service.grpc.h2 import ordering, runs
from ratelimit_service.grpc.h2.account import ConnectionFaultError, Memory
from ratelimit_service.grpc.h2.costs import (
    DESCRIPTORS_BYTES,
    LARGE_BYTES,
    PIECE_US,
    RECORD_US,
    RUN_BYTES,
    USUAL_BYTES,
)
from ratelimit_service.grpc.h2.events import Calls, Cancelled, Ended, Event, Message
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PREFACE,
    RST_STREAM,
    WINDOW_UPDATE,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.hurrying import Hurrying
from ratelimit_service.grpc.h2.life import Opening
from ratelimit_service.grpc.h2.limits import (
    ACK_SECONDS,
    FRAME_SECONDS,
    MAX_STREAMS,
    STREAM_BYTES,
)
from ratelimit_service.grpc.h2.messages import PREFIX_BYTES
from ratelimit_service.grpc.h2.streams import Methods
from ratelimit_service.service import CallOrigin

__all__ = ["Calls", "Cancelled", "Connection", "Ended", "Event", "Message", "Methods"]

_FRAME: Final = struct.Struct(">BHBBI")
_frame_head: Final = _FRAME.unpack_from
"""A frame's first 9 bytes. Its length of 3 bytes is read as one high byte and a low pair."""

_MESSAGE_FRAME: Final = struct.Struct(">BHBBIBI")
_message_head: Final = _MESSAGE_FRAME.unpack_from
_MESSAGE_HEAD_BYTES: Final = 14
"""The same of a DATA frame that starts with a message's prefix."""


class Connection(Hurrying):
    """The server's side of one connection.

    `receive` takes what the socket gave and returns events; the answers' bytes, and what the
    protocol itself has to say, are collected until `take_output`. Once it is `closing` and
    the output is written, the socket is to be closed.
    """

    def __init__(self, methods: Methods, memory: Memory | None = None) -> None:
        """Calls of any other method are refused. `memory` is what all connections share."""
        super().__init__(methods, memory or Memory())
        self._unary = methods.unary
        self._data = b""
        self._at = 0
        """The offset in the data at which the first unhandled frame begins."""
        self._moved = 0
        """When the last frame was handled."""
        self._asked_to_settle = 0
        """Since when the client has had SETTINGS of ours to acknowledge."""
        self._cut_short = False
        """Whether complete frames wait for the next call of `receive`."""
        self._followed = self._parted = False
        """Whether others follow the bytes in hand, and calls wait for these."""
        self._orderly_until = 0
        """Up to where the frames of each call stand together as far as they can."""
        self.may_be_dear = False
        """Whether the next bytes may make a large message whole, which takes long to decide."""
        self.congested = False
        """Whether the client reads too slowly. Then streaming calls hand on no messages."""

    @property
    def has_more(self) -> bool:
        """Whether complete frames, messages or answers wait for the next call of `receive`."""
        if self._life.closing:
            return False
        if self._opened or (self._blocked and self._send_window > 0):
            return True
        return self._cut_short or (bool(self._resumable) and not self.congested)

    @property
    def greeted(self) -> bool:
        """Whether the client has begun to speak HTTP/2."""
        return self._life.settled

    def tick(self) -> None:
        """To be called about once a second: forgets what was spent, and ends what takes too long.

        The waits are those of `limits`.
        """
        self._forgive()
        self._second += 1
        second = self._second
        if not self._unacknowledged:
            self._asked_to_settle = second
        if self._unfinished:
            self._end_slow_calls(second)
        self._refuse_unanswered()
        if not self._life.settled:
            return
        if second - self._asked_to_settle > ACK_SECONDS:
            self.abandon(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS not acknowledged", "timeout")
        elif self._block is not None and second - self._block_since > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end", "timeout")
        elif not self._data or self._cut_short or self.congested:
            self._moved = second
        elif second - self._moved > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a frame without end", "timeout")

    def charge_records(self, number: int) -> None:
        """Charges for TLS records of which nothing came, such as those that change the keys."""
        try:
            self._spend(RECORD_US * number, "records")
        except ConnectionFaultError as error:
            self.abandon(error.code, str(error), error.reason)

    # Frames

    def receive(
        self, data: bytes, most: int = sys.maxsize, *, followed: bool = False
    ) -> list[Event]:
        """Takes bytes from the socket; returns what they mean, in order.

        If they are `followed` by others that were read, calls at their end may wait for those.
        It stops after `most` calls, frames or answers that were held back, or frames that cost as
        much. Then `has_more` says that another call, with or without new bytes, goes on.
        """
        events: list[Event] = []
        self.unusual, self._followed, self._parted = False, followed, False
        if self._life.closing:
            self._cut_short = False
            self._resumable.clear()
            return events
        start = 0
        if self._data:
            if data:
                data = self._data[self._at :] + data
            else:
                data, start = self._data, self._at
        self._cut_short = False
        try:
            if self._resumable or self._opened or self._blocked:
                most = self._go_on(most, events)
            data, at = self._read(data, start, most, events)
        except ConnectionFaultError as error:
            at = len(data)
            self._cut_short = False
            self._resumable.clear()
            self.abandon(error.code, str(error), error.reason)
        if self._withdrawn:
            events += map(Cancelled, self._withdrawn)
            self._withdrawn.clear()
        if at == len(data):
            if self._data:
                self._data, self._at = b"", 0
        elif self._cut_short:
            self._data, self._at = data, at
        else:
            if at > start:
                self._moved = self._second
            self._data, self._at = data[at:], 0
        self.may_be_dear = (
            len(self._data) > LARGE_BYTES and not (self._cut_short or self._parted)
        ) or (
            self.held > LARGE_BYTES and self.held - STREAM_BYTES * len(self._streams) > LARGE_BYTES
        )
        return events

    def _go_on(self, most: int, events: list[Event]) -> int:
        """Goes on with what has waited; returns how much of `most` is left."""
        if self._resumable and not self.congested:
            self._resume(events)
        return self._let_through(most)

    def _read(self, data: bytes, at: int, most: int, events: list[Event]) -> tuple[bytes, int]:
        """Handles complete frames; returns the data, and where in it the first one left begins."""
        if not self._life.settled and self._life.opening is Opening.PREFACE:
            at = self._read_preface(data)
            if not at:
                return data, 0
        end, self._orderly_until = len(data), 0
        while end - at >= 9:
            if most <= 0:
                self._cut_short = True
                break
            # The type lets mypyc keep the tuple out of the heap.
            head: tuple[int, int, int, int, int] = _frame_head(data, at)
            high, length, kind, flags, stream_id = head
            if high or length > MAX_FRAME_SIZE:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame above 16384 bytes")
            start = at + 9
            at = start + length
            if at > end:
                return data, start - 9
            most -= 1
            after, self._worked_us = 0, 0
            if kind == HEADERS and flags == END_HEADERS:
                after = self._whole_call(data, stream_id, start, at, events)
                if after - at > USUAL_BYTES:
                    most -= self._note_unusual(after - at)
                if not after and self._life.steady and self._block is None:
                    in_order = self._in_order(data, start - 9, at)
                    if in_order is not None:
                        data, at, end = in_order
                        most += 1  # nothing is done yet
                        continue
            elif self._life.settled and self._block is None:
                after = self._run_of(kind, data, start - 9, events)
            if after:
                most -= (after - at) // RUN_BYTES + self._worked_us // PIECE_US
                more = (after, 0) if after == end else self._more_calls(data, after, most, events)
                at, most = more[0], most - more[1]
                continue
            spent = self._spent_us
            self._handle(kind, flags, stream_id & MAX_WINDOW, data[start:at], events)
            most -= (max(0, self._spent_us - spent) + self._worked_us) // PIECE_US
            most = self._let_through(most)  # before what the client says next
        return data, at

    def _run_of(self, kind: int, data: bytes, at: int, events: list[Event]) -> int:
        """Handles a run of frames of that kind; returns where it ends, 0 if nothing is done."""
        if kind == RST_STREAM:
            return self._reset_run(data, at, events)
        return self._update_run(data, at) if kind == WINDOW_UPDATE else 0

    def _in_order(self, data: bytes, at: int, stop: int) -> tuple[bytes, int, int] | None:
        """What to read instead of calls that are not whole, of which the first begins `at`.

        Its HEADERS end at `stop`. Returns the data with the frames of each call put together, and
        where to read on, and up to where. None if that changes nothing.
        """
        if ordering.ends_within(data, stop):
            return data, at, at  # once it is there, the call is a usual one
        if at < self._orderly_until:
            return None
        calls = ordering.in_order(data, at, self.latest_stream, followed=self._followed)
        if not calls.said:
            self._orderly_until = calls.until
            return None
        rest = data[calls.until :]
        unfinished = calls.ready < len(calls.said)
        self._parted = unfinished and (not rest or ordering.ends_within(rest, 0))
        self._orderly_until, data = calls.ready, calls.said + rest
        return data, 0, calls.ready if self._parted else len(data)

    def _read_preface(self, data: bytes) -> int:
        """Where the preface ends; 0 if it is not complete."""
        end = len(data)
        if data[: len(PREFACE)] != PREFACE[:end]:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
        if end < len(PREFACE):
            return 0
        self._life.enter(Opening.SETTINGS)
        return len(PREFACE)

    def _handle(
        self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if not self._life.settled and (kind != FrameType.SETTINGS or flags & ACK):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        if self._block is not None and kind != FrameType.CONTINUATION:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a header block is not finished")
        if kind == FrameType.DATA:
            self._data_frame(flags, stream_id, payload, events)
        elif kind == FrameType.HEADERS:
            self._headers_frame(flags, stream_id, payload, events)
        elif kind == FrameType.CONTINUATION:
            self._continuation(flags, stream_id, payload, events)
        elif kind == FrameType.RST_STREAM:
            self._rst_stream(stream_id, payload, events)
        else:
            self._control(kind, flags, stream_id, payload)

    # Short ways

    def _whole_call(
        self, data: bytes, stream_id: int, start: int, stop: int, events: list[Event]
    ) -> int:
        """Takes a call that comes in one HEADERS and one DATA frame at once, as nearly all do.

        The header block is `data[start:stop]`. Returns where the call ends, or where a run of
        refused calls ends. Returns 0, and has taken nothing, if anything about the call is unusual.
        """
        haste = self.haste
        if haste is not None and haste.refusing:
            after = self._refuse_run(haste, data, start, stop, events)
            if after:
                return after
        if len(data) < stop + _MESSAGE_HEAD_BYTES:
            return 0
        numbers: tuple[int, int, int, int, int, int, int] = _message_head(data, stop)
        high, length, kind, flags, its_id, packed, size = numbers
        end = stop + 9 + length
        if (
            flags != END_STREAM
            or kind
            or its_id != stream_id
            or packed
            or size != length - PREFIX_BYTES
            or high
            or end > len(data)
            or length > MAX_FRAME_SIZE
            or not self.latest_stream < stream_id <= MAX_WINDOW
            or not stream_id & 1
            or not self._life.steady
            or self._block is not None
            or len(self._streams) >= MAX_STREAMS
        ):
            return 0
        block = data[start:stop]
        if block and block == self._usual_block:
            head = self._usual_head
        else:
            known = self._headers.recall(block)
            if known is None or not known.plain or known.path not in self._unary:
                return 0
            head = known
            self._usual_block, self._usual_head = block, head
        message = data[stop + 9 + PREFIX_BYTES : end]
        if (
            haste is not None
            and not haste.refusing  # else there is not even time for that
            and self._done_in_haste(haste, head, stream_id, message, block)
        ):
            self._opens(stream_id)
            self._consume(length)
            return end
        self._opens(stream_id)
        self._streams[stream_id] = None
        self._consume(length)
        caller: CallOrigin | None = None
        if self.wants_origins:
            caller = self._origin(block)
        self._call(head, stream_id, message, events, caller)
        return end

    def _more_calls(self, data: bytes, at: int, most: int, events: list[Event]) -> tuple[int, int]:
        """Takes usual calls that follow a whole one and have its headers, at most so many.

        Returns where they end, and how many there were.
        """
        if not data.startswith(self._usual_block, at + 9):
            return at, 0  # as always where callers trace: no two blocks are alike
        last = events[-1] if events else None
        if not isinstance(last, Calls) or last.head is not self._usual_head:
            return at, 0
        origins = last.origins
        if not self._life.steady or self.haste is not None:
            return at, 0
        if self.wants_origins is (origins is None):
            return at, 0
        block, most = self._usual_block, min(most, MAX_STREAMS - len(self._streams))
        end, stream_ids, messages = runs.usual_calls(data, at, block, self.latest_stream, most)
        count = len(stream_ids)
        if count:
            self._opens_all(stream_ids)
            self._streams.update(dict.fromkeys(stream_ids))
            self._consume(end - at - count * (18 + len(block)))
            last.stream_ids.extend(stream_ids)
            last.messages.extend(messages)
            if origins is not None:
                origins.extend([self._origin(block)] * count)
        return end, count

    def _note_unusual(self, size: int) -> int:
        """Notes that a call has a large message; returns for how many frames more it counts."""
        self.unusual = True
        return 0 if self.haste is not None else size // DESCRIPTORS_BYTES
