"""The half of a connection that speaks: answers as the client's windows allow, and ends of streams.

What must not live here: how frames of the client are read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from ratelimit_service.transport.h2 import frames, runs
from ratelimit_service.transport.h2.account import Account, ConnectionFaultError, Memory
from ratelimit_service.transport.h2.costs import (
    ANSWERED_US,
    HEADERS_US,
    RESET_US,
    SAVED_US,
    VISIT_US,
)
from ratelimit_service.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.transport.h2.headers import Head, literal
from ratelimit_service.transport.h2.limits import (
    MAX_TEXT_BYTES,
    STREAM_BYTES,
)
from ratelimit_service.transport.h2.messages import PREFIX_BYTES
from ratelimit_service.transport.h2.overload import Haste
from ratelimit_service.transport.h2.streams import Methods, Stream

__all__ = ["OK_HEADERS", "Sending"]


_DEFAULT_TABLE_BYTES: Final = 4_096
_CLOSED_REMEMBERED: Final = 256
_LAST_CALL: Final = b"lastcall"
_LAST_ROUND: Final = b"all over"

OK_HEADERS: Final = b"\x88" + literal(b"content-type", b"application/grpc")
_OK_TRAILERS: Final = literal(b"grpc-status", b"0")
_NO_TABLE: Final = b"\x20"
"""Begins a header block and says that we use no dynamic table (RFC 7541, section 6.3)."""

_HEADERS_HEAD: Final = struct.pack(">xHBB", len(OK_HEADERS), FrameType.HEADERS, END_HEADERS)
_TRAILERS_HEAD: Final = struct.pack(
    ">xHBB", len(_OK_TRAILERS), FrameType.HEADERS, END_HEADERS | END_STREAM
)
_answer_head: Final = struct.Struct(f">5sI{len(OK_HEADERS)}sxHxxIxI").pack
"""An answer's HEADERS frame and what comes before its message: a DATA frame's size, type and flags
0, its stream, and the message's prefix."""

_answer_end: Final = struct.Struct(f">5sI{len(_OK_TRAILERS)}s").pack


class Sending(Account):
    """The half of a connection that speaks."""

    def __init__(self, methods: Methods, memory: Memory) -> None:
        super().__init__(memory)
        self._methods = methods
        self.haste: Haste | None = None
        """What may be done with the calls of the next piece if there is no time for them."""
        self._steady = False
        """Whether calls come and go, and nothing begins or ends the connection."""
        self._tableless = False
        """Whether the client was told to use no table."""
        self._streams: dict[int, Stream | None] = {}
        """Open streams. None stands for a whole unary call without a record: its window is that of
        all new streams."""
        self._unfinished: dict[int, Stream] = {}
        """Streams that the client has not ended on its side."""
        self._over: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        self._given_up: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        self._last_stream_id = 0
        self._send_window = frames.DEFAULT_WINDOW
        self._initial_send_window = frames.DEFAULT_WINDOW
        self._highest_credit = 0
        """The highest `credit` that any stream can have."""
        self._max_send_frame = MAX_FRAME_SIZE
        self._table_given_up = False
        """Whether the client knows that our header blocks use no dynamic table."""
        self._must_give_up_table = False
        """Whether our next header block must say so, because the client allows a smaller table."""
        self._unacknowledged = 1
        self._going_away = False
        self._last_accepted = MAX_WINDOW
        self._blocked: dict[int, Stream] = {}
        """Streams with answers that wait for the connection's window, the longest waiting first."""
        self._shut: dict[int, Stream] = {}
        """Streams with answers that wait for their own window."""
        self._resumable: deque[int] = deque()
        """Streaming calls whose last message is answered, so that the next may be handed on."""
        self._withdrawn: list[int] = []
        """Streams that we have ended; whoever works on their answers must still be told."""
        self._output: list[bytes] = []
        self.closing = False
        self.reason = ""
        """Why the connection was ended, in a word."""
        self.delivered = 0
        """Bytes of answers that windows have let through."""

    @property
    def open_streams(self) -> int:
        """How many calls are not answered in full."""
        return len(self._streams)

    @property
    def blocked(self) -> bool:
        """Whether flow control holds an answer back."""
        return bool(self._blocked or self._shut)

    def forget(self) -> None:
        """Ends the record of a connection that is gone: answers that still come are not kept."""
        self._streams.clear()
        for waiting in (self._unfinished, self._blocked, self._shut):
            waiting.clear()
        super().forget()

    def take_output(self) -> bytes:
        """Takes the bytes to write, which are then forgotten here."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    # Answers

    def answer(self, stream_id: int, message: bytes) -> None:
        """Answers a unary call and ends it; does nothing for a call that is gone."""
        if self._streams.get(stream_id, self) is None and self._answer_new(stream_id, message):
            del self._streams[stream_id]
        else:
            self.send(stream_id, message)
            self.finish(stream_id)

    def _answer_new(self, stream_id: int, message: bytes) -> bool:
        """Answers a whole call without a record in one go; False if that is not possible."""
        size = PREFIX_BYTES + len(message)
        window = self._send_window
        if (
            not self._steady
            or size > window
            or size > self._initial_send_window
            or size > MAX_FRAME_SIZE
        ):
            return False
        self._over.append(stream_id)
        self._send_window = window - size
        if self._spent_us > -SAVED_US:
            self._spent_us -= ANSWERED_US
        output = self._output
        output.append(
            _answer_head(_HEADERS_HEAD, stream_id, OK_HEADERS, size, stream_id, len(message))
        )
        output.append(message)
        output.append(_answer_end(_TRAILERS_HEAD, stream_id, _OK_TRAILERS))
        return True

    def refuse(self, stream_ids: Sequence[int]) -> None:
        """Refuses calls at once, because there is no time for them."""
        for stream_id in stream_ids:
            stream = self._stream(stream_id)
            if stream is not None:
                stream.ended = True
                self._close(stream_id, stream)
                self._turn_away([stream_id])

    def _turn_away(self, streams: Sequence[int]) -> None:
        """Resets streams that have no record any more.

        The fault is ours, so later frames of the client on these streams cost it as little as if
        they had been answered.
        """
        self._output.append(runs.refusals(streams))
        self._credit(len(streams))

    def is_open(self, stream_id: int) -> bool:
        """Whether the client still waits for this answer."""
        return stream_id in self._streams and not self.closing

    def send(self, stream_id: int, message: bytes) -> None:
        """Sends one message of an answer; the answer stays open."""
        stream = self._stream(stream_id)
        if stream is None:
            return
        if not stream.answered:
            stream.answered = True
            self._header_block(0, stream_id, OK_HEADERS)
        payload = b"\x00" + len(message).to_bytes(4, "big") + message
        self._queue(stream_id, stream, FrameType.DATA, payload)

    def finish(self, stream_id: int, code: int = 0, text: str = "") -> None:
        """Ends an answer with its gRPC status. A text that is too long is cut."""
        stream = self._stream(stream_id)
        if stream is None:
            return
        block = literal(b"grpc-status", b"%d" % code)
        if text:
            said = text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
            block += literal(
                b"grpc-message", quote(said, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode()
            )
        if not stream.answered:
            block = OK_HEADERS + block
        self._queue(stream_id, stream, FrameType.HEADERS, block, last=True)

    def _queue(
        self,
        stream_id: int,
        stream: Stream,
        kind: FrameType,
        payload: bytes,
        *,
        last: bool = False,
    ) -> None:
        """Sends a part of an answer when its turn comes."""
        stream.waiting.append((kind, payload, last))
        self._keep(stream, len(payload))
        self._flush(stream_id, stream)
        if stream.waiting and self._holds_too_much:
            self.abandon(
                ErrorCode.ENHANCE_YOUR_CALM, "too many answers wait for the client", "memory"
            )

    def _flush(self, stream_id: int, stream: Stream) -> None:
        """Sends as much of an answer as the windows let through."""
        waiting = stream.waiting
        while waiting:
            kind, payload, last = waiting[0]
            end = END_STREAM if last else 0
            if kind is FrameType.HEADERS:
                self._header_block(end, stream_id, payload)
                sent = len(payload)
            else:
                own = self._initial_send_window + stream.credit
                if own <= 0:
                    self._blocked.pop(stream_id, None)
                    self._shut[stream_id] = stream
                    return
                room = min(self._send_window, own, self._max_send_frame)
                if room <= 0:
                    self._shut.pop(stream_id, None)
                    self._blocked[stream_id] = stream
                    return
                part, rest = payload[:room], payload[room:]
                sent = len(part)
                self._send_window -= sent
                self.delivered += sent
                stream.credit -= sent
                self._frame(kind, 0 if rest else end, stream_id, part)
                if rest:
                    self._keep(stream, -sent)
                    waiting[0] = (kind, rest, last)
                    continue
            self._keep(stream, -sent)
            waiting.popleft()
            if last:
                self._credit()
                self._close(stream_id, stream)
                return
        self._blocked.pop(stream_id, None)
        self._shut.pop(stream_id, None)
        if stream.asking:
            stream.asking = False
            self._resumable.append(stream_id)

    def _header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Sends a header block, in the order in which the client reads them.

        Our header blocks fit into the smallest frame size that a client must take, so there is no
        CONTINUATION.
        """
        if self._must_give_up_table:
            self._must_give_up_table = False
            self._table_given_up = True
            self._settle_down()
            block = _NO_TABLE + block
        self._frame(FrameType.HEADERS, END_HEADERS | flags, stream_id, block)

    def _frame(self, kind: FrameType, flags: int, stream_id: int, payload: bytes) -> None:
        self._output.append(frames.frame(kind, flags, stream_id, payload))

    # Windows, and what the client wants

    def _widen(self, increment: int) -> None:
        """Takes a wider window of the connection: answers that have waited longest come first."""
        self._send_window += increment
        if self._send_window > MAX_WINDOW:
            raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
        while self._blocked and self._send_window > 0:
            stream_id, stream = next(iter(self._blocked.items()))
            self._flush(stream_id, stream)

    def _widen_stream(self, stream_id: int, stream: Stream, increment: int) -> None:
        """Takes a wider window of one stream."""
        stream.credit += increment
        self._highest_credit = max(self._highest_credit, stream.credit)
        if self._initial_send_window + stream.credit > MAX_WINDOW:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.waiting:
            self._flush(stream_id, stream)

    def _start_windows(self, size: int) -> None:
        """Takes the first window of all streams; it also changes that of open ones."""
        wider = size > self._initial_send_window
        self._initial_send_window = size
        if size + self._highest_credit > MAX_WINDOW:
            known = [stream.credit for stream in self._streams.values() if stream is not None]
            self._spend(VISIT_US * len(known), "windows")
            self._highest_credit = max(known, default=0)
            if size + self._highest_credit > MAX_WINDOW:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
        if wider and self._shut:
            self._spend(VISIT_US * len(self._shut), "windows")
            for stream_id, stream in list(self._shut.items()):
                self._flush(stream_id, stream)

    def _allow_table(self, size: int) -> None:
        """Takes how large a table our header blocks may use; we use none.

        The smallest value counts, whatever follows (RFC 7541, section 4.2). It is enough to
        announce our empty table once: no later value is smaller.
        """
        if size < _DEFAULT_TABLE_BYTES and not self._table_given_up:
            self._must_give_up_table = True
            self._settle_down()

    # The connection's end

    def shut_down(self) -> None:
        """Tells the client to open no more streams here; those that are open are finished.

        In steps (RFC 9113, section 6.8): streams that were under way when the first notice went
        out are still served. The answer to a ping says that the client has the notice. Some clients
        have streams in a queue of their own then (tonic), so a second round follows before the
        connection takes no more.
        """
        if not self._going_away:
            self._going_away = True
            self._settle_down()
            self._output.append(frames.goaway(MAX_WINDOW, ErrorCode.NO_ERROR))
            self._output.append(frames.ping(_LAST_CALL, ack=False))

    def _heard_again(self, payload: bytes) -> None:
        """The next step of `shut_down`, if this is the answer to its last ping."""
        if not self._going_away:
            return
        if payload == _LAST_CALL:
            self._output.append(frames.ping(_LAST_ROUND, ack=False))
        elif payload == _LAST_ROUND:
            self._last_accepted = self._last_stream_id
            self._output.append(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR))
            self._close_if_done()

    def abandon(self, code: ErrorCode, text: str, reason: str = "") -> None:
        """Ends the connection, and tells the client why."""
        if not self.closing:
            self.closing = True
            self.reason = reason
            self._output.append(frames.goaway(self._last_stream_id, code, text))

    # Streams

    def _stream(self, stream_id: int) -> Stream | None:
        """The record of an open stream. A whole call gets one only when it is needed."""
        stream = self._streams.get(stream_id)
        if stream is None and stream_id in self._streams:
            stream = Stream(Head(), self._methods)
            stream.ended = True
            stream.cost_us = HEADERS_US
            self._keep(stream, STREAM_BYTES)
            self._streams[stream_id] = stream
        return stream

    def _keep(self, stream: Stream, size: int) -> None:
        stream.held += size
        self._hold(size)

    def _reset(self, stream_id: int, code: ErrorCode, cost_us: int = RESET_US) -> None:
        """Ends one stream with an error. Raises ConnectionFaultError if that is done too often."""
        self._output.append(frames.rst_stream(stream_id, code))
        stream = self._stream(stream_id)
        if stream is not None:
            cost_us += stream.cost_us
            stream.ended = True
            self._close(stream_id, stream)
            self._withdrawn.append(stream_id)
        elif stream_id % 2:
            self._given_up.append(stream_id)
        self._spend(cost_us, "resets")

    def _close(self, stream_id: int, stream: Stream) -> None:
        """Forgets a stream that was answered or given up."""
        del self._streams[stream_id]
        self._unfinished.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        self._shut.pop(stream_id, None)
        self._hold(-stream.held)
        if not stream.ended:
            # It was answered before the client had sent all, so it may stop (RFC 9113, 8.1).
            self._output.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        (self._over if stream.ended else self._given_up).append(stream_id)
        if not self._tableless:
            # Only now, because a client that makes a single call should not need another SETTINGS.
            self._tableless = True
            self._settle_down()
            self._unacknowledged += 1
            self._output.append(frames.settings({SettingId.HEADER_TABLE_SIZE: 0}))
        if self._going_away:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._streams and self._last_accepted != MAX_WINDOW:
            self.closing = True

    def _settle_down(self) -> None:
        """Finds out whether calls only come and go, and nothing begins or ends the connection."""
        self._steady = self._tableless and not self._going_away and not self._must_give_up_table
