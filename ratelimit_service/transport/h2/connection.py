"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events out; answers in, bytes out.

RFC 9113 and gRPC's PROTOCOL-HTTP2.md. This is the half that hears; `sending` is the half that
speaks, `account` says what a client may cost. What must not live here: sockets, timers, tasks, and
what a call means. Everything that a client can make grow is bounded by `limits`.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.service import Headers
from ratelimit_service.transport.h2 import frames, runs
from ratelimit_service.transport.h2.account import ConnectionFaultError, Memory
from ratelimit_service.transport.h2.costs import (
    CALL_HEADERS_US,
    FRAME_US,
    HEADERS_US,
    PART_US,
    PIECE_US,
    RESET_US,
    RUN_BYTES,
    SETTING_US,
)
from ratelimit_service.transport.h2.fields import MAX_LIST_BYTES
from ratelimit_service.transport.h2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SET_FRAME_SIZE,
    SET_PUSH,
    SET_TABLE,
    SET_WINDOW,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.transport.h2.headers import BlockError, Head, HeaderReader, literal
from ratelimit_service.transport.h2.limits import (
    ACK_SECONDS,
    BODY_SECONDS,
    CONNECTION_WINDOW,
    FRAME_SECONDS,
    IDLE_STREAM_SECONDS,
    MAX_BLOCK_BYTES,
    MAX_CONTINUATIONS,
    MAX_MESSAGE_BYTES,
    MAX_STREAMS,
    STREAM_BYTES,
    STREAM_WINDOW,
)
from ratelimit_service.transport.h2.messages import PREFIX_BYTES, first_message, only_message
from ratelimit_service.transport.h2.overload import Haste
from ratelimit_service.transport.h2.sending import OK_HEADERS, Sending
from ratelimit_service.transport.h2.streams import (
    Calls,
    Cancelled,
    Ended,
    Event,
    Message,
    Methods,
    Readable,
    Stream,
)

__all__ = ["Calls", "Cancelled", "Connection", "Ended", "Event", "Message", "Methods"]

_SMALL_PART_BYTES: Final = 256
_PING: Final = b"are you?"
_WRONG_TYPE: Final = b"this port speaks gRPC: content-type must be application/grpc\n"

_FRAME: Final = struct.Struct(">BHBBI")
_frame_head: Final = _FRAME.unpack_from
"""A frame's first 9 bytes. Its length of 3 bytes is read as one high byte and a low pair."""

_SETTING: Final = struct.Struct(">HI")

_MESSAGE_FRAME: Final = struct.Struct(">BHBBIBI")
_message_head: Final = _MESSAGE_FRAME.unpack_from
_MESSAGE_HEAD_BYTES: Final = 14
"""The same of a DATA frame that starts with a message's prefix."""


class Connection(Sending):
    """The server's side of one connection.

    `receive` takes what the socket gave and returns events; the answers' bytes, and what the
    protocol itself has to say, are collected until `take_output`. After `closing` is set and
    the output is written, the socket is to be closed.
    """

    def __init__(self, methods: Methods, memory: Memory | None = None) -> None:
        """Calls of any other method are refused. `memory` is what all connections share."""
        super().__init__(methods, memory or Memory())
        self._unary = methods.unary
        self._headers = HeaderReader()
        self._data = b""
        self._at = 0
        """The offset in the data at which the first unhandled frame begins."""
        self._greeted = False
        self._settled = False
        self._second = 0
        """How often `tick` was called."""
        self._moved = 0
        """When the last frame was handled."""
        self._asked_to_settle = 0
        """Since when the client has had SETTINGS of ours to acknowledge."""
        self._block: list[bytes] | None = None
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_bytes = 0
        self._block_since = 0
        self._consumed = 0
        self._output = [
            frames.settings(
                {
                    SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    SettingId.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    SettingId.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
                }
            ),
            frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW),
        ]
        self._cut_short = False
        """Whether complete frames wait for the next call of `receive`."""
        self.traced = False
        """Whether somebody asks to which traces calls belong."""
        self.congested = False
        """Whether the client reads too slowly. Then streaming calls hand on no messages."""

    @property
    def has_more(self) -> bool:
        """Whether complete frames, or messages, wait for the next call of `receive`."""
        return self._cut_short or (bool(self._resumable) and not self.congested)

    @property
    def greeted(self) -> bool:
        """Whether the client has begun to speak HTTP/2."""
        return self._settled

    def ping(self) -> None:
        """Asks the client for a sign of life. Any bytes are one."""
        self._output.append(frames.ping(_PING, ack=False))

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
        if not self._settled:
            return
        if second - self._asked_to_settle > ACK_SECONDS:
            self.abandon(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS not acknowledged", "timeout")
        elif self._block is not None and second - self._block_since > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end", "timeout")
        elif not self._data or self._cut_short or self.congested:
            self._moved = second
        elif second - self._moved > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a frame without end", "timeout")

    def _end_slow_calls(self, second: int) -> None:
        for stream_id, stream in list(self._unfinished.items()):
            most = IDLE_STREAM_SECONDS if stream.streaming else BODY_SECONDS
            if second - stream.since > most and not stream.asking:
                stream.readable = Readable.ENOUGH
                text = f"the client has sent nothing whole for {most} s"
                self.finish(stream_id, StatusCode.DEADLINE_EXCEEDED, text)
                self._withdrawn.append(stream_id)

    # What we hear

    def receive(self, data: bytes, most: int = sys.maxsize) -> list[Event]:
        """Takes bytes from the socket; returns what they mean, in order.

        It stops after `most` calls or frames, or frames that cost as much. Then `has_more` says
        that another call, with or without new bytes, goes on.
        """
        events: list[Event] = []
        if self.closing:
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
            if self._resumable and not self.congested:
                self._resume(events)
            at = self._read(data, start, most, events)
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
        return events

    def _read(self, data: bytes, at: int, most: int, events: list[Event]) -> int:
        """Handles complete frames; returns where the first one that is left begins."""
        end = len(data)
        if not self._greeted:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(PREFACE):
                return 0
            self._greeted = True
            at = len(PREFACE)
        while end - at >= 9:
            if most <= 0:
                self._cut_short = True
                break
            # With its type the tuple is no object to a compiler.
            head: tuple[int, int, int, int, int] = _frame_head(data, at)
            high, length, kind, flags, stream_id = head
            if high or length > MAX_FRAME_SIZE:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame above 16384 bytes")
            start = at + 9
            at = start + length
            if at > end:
                return start - 9
            most -= 1
            after = 0
            if kind == HEADERS and flags == END_HEADERS:
                after = self._whole_call(data, stream_id, start, at, events)
                if not after and self._steady and self._block is None and _ends_within(data, at):
                    return start - 9  # once it is there, the call is a usual one
            elif kind == RST_STREAM and self._settled and self._block is None:
                after = self._reset_run(data, start - 9, events)
            if after:
                most -= (after - at) // RUN_BYTES
                at = after
                continue
            spent = self._spent_us
            self._handle(kind, flags, stream_id & MAX_WINDOW, data[start:at], events)
            most -= max(0, self._spent_us - spent) // PIECE_US
        return at

    def _whole_call(
        self, data: bytes, stream_id: int, start: int, stop: int, events: list[Event]
    ) -> int:
        """Takes a call that comes in one HEADERS and one DATA frame at once, as nearly all do.

        The header block is `data[start:stop]`. Returns where the call ends, or where a run of
        refused calls ends. Returns 0, and has taken nothing, if anything about the call is unusual.
        """
        haste = self.haste
        if haste is not None and haste.refusing:
            after = self._refuse_run(haste, data, start, stop)
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
            or not self._last_stream_id < stream_id <= self._last_accepted
            or not stream_id & 1
            or not self._steady
            or self._block is not None
            or len(self._streams) >= MAX_STREAMS
        ):
            return 0
        head = self._headers.recall(data[start:stop])
        if head is None or not head.plain or head.path not in self._unary:
            return 0
        message = data[stop + 9 + PREFIX_BYTES : end]
        if haste is not None and self._done_in_haste(haste, head, stream_id, message):
            self._last_stream_id = stream_id
            self._consume(length)
            return end
        self._last_stream_id = stream_id
        self._streams[stream_id] = None
        self._consume(length)
        trace = self._headers.traces(data[start:stop]) if self.traced else None
        self._call(head, stream_id, message, events, trace)
        return end

    def _refuse_run(self, haste: Haste, data: bytes, start: int, stop: int) -> int:
        """Refuses a run of calls that there is no time for.

        The header block of the first is `data[start:stop]`. Returns where the last one ends.
        Returns 0, and has taken nothing, if there is none.
        """
        block = data[start:stop]
        if not self._steady or self._block is not None:
            return 0
        head = self._headers.recall(block)
        if head is None or not haste.concerns(head):
            return 0
        first = start - 9
        end, streams = runs.calls(data, first, block, self._last_stream_id)
        if not streams:
            return 0
        self._last_stream_id = streams[-1]
        self._consume(end - first - len(streams) * (18 + len(block)))
        self._turn_away(streams)
        haste.refused += len(streams)
        return end

    def _reset_run(self, data: bytes, start: int, events: list[Event]) -> int:
        """Handles a run of resets.

        Returns where the last one ends. Returns 0, and has done nothing, if the first is unusual.
        """
        end, stream_ids = runs.resets(data, start)
        if not stream_ids:
            return 0
        _expect(
            min(stream_ids) > 0 and max(stream_ids) <= self._last_stream_id,
            "RST_STREAM on an idle stream",
        )
        cost_us = FRAME_US * len(stream_ids)
        if not self._streams.keys().isdisjoint(stream_ids):
            for stream_id in stream_ids:
                cost_us += self._withdraw(stream_id, events)
        self._spend(cost_us, "resets")
        return end

    def _done_in_haste(self, haste: Haste, head: Head, stream_id: int, message: bytes) -> bool:
        """Ends a call that there is no time for, if its answer is at hand."""
        if not haste.concerns(head):
            return False
        ready = haste.answers.get(message)
        if ready is None or not self._answer_new(stream_id, ready.message):
            return False
        ready.times += 1
        haste.given += 1
        return True

    def _call(
        self,
        head: Head,
        stream_id: int,
        message: bytes,
        events: list[Event],
        trace: Headers | None,
    ) -> None:
        """Hands on a complete unary call, together with those just before it if it can be."""
        last = events[-1] if events else None
        if isinstance(last, Calls) and last.head is head and trace is None and last.traces is None:
            last.stream_ids.append(stream_id)
            last.messages.append(message)
        elif trace is None:
            events.append(Calls(head, [stream_id], [message]))
        elif isinstance(last, Calls) and last.head is head and last.traces is not None:
            last.stream_ids.append(stream_id)
            last.messages.append(message)
            last.traces.append(trace)
        else:
            events.append(Calls(head, [stream_id], [message], [trace]))

    def _consume(self, size: int) -> None:
        """Opens the connection's window again for DATA that has come."""
        self._consumed += size
        if self._consumed > CONNECTION_WINDOW // 2:
            self._output.append(frames.window_update(0, self._consumed))
            self._consumed = 0

    def _handle(
        self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if not self._settled and (kind != FrameType.SETTINGS or flags & ACK):
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

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles a frame that carries no part of a call."""
        if kind == FrameType.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == FrameType.PING:
            self._ping(flags, stream_id, payload)
        elif kind == FrameType.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == FrameType.PRIORITY:
            self._priority(stream_id, payload)
        elif kind == FrameType.PUSH_PROMISE:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "clients do not push")
        else:  # GOAWAY asks nothing of us, and unknown types are to be ignored
            _expect(kind != FrameType.GOAWAY or stream_id == 0, "GOAWAY on a stream")
            self._spend(FRAME_US, "frames")

    # Calls

    def _headers_frame(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        _expect(stream_id % 2 == 1, "HEADERS on a stream that clients cannot open")
        if flags & PADDED:
            payload = _unpadded(payload)
        depends_on_itself = False
        if flags & PRIORITY:
            if len(payload) < 5:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is cut short")
            depends_on_itself = int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(stream_id, flags, payload, events)
        else:
            self._block = [payload]
            self._block_stream_id, self._block_flags = stream_id, flags
            self._block_bytes = len(payload)
            self._block_since = self._second
            self._hold(len(payload))
        if depends_on_itself:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _continuation(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        block = self._block
        if block is None or stream_id != self._block_stream_id:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > MAX_BLOCK_BYTES or len(block) > MAX_CONTINUATIONS:
            text = "a header block without end"
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text, "flood_headers")
        self._hold(len(payload))
        if flags & END_HEADERS:
            self._block = None
            self._hold(-self._block_bytes)
            self._open(stream_id, self._block_flags, b"".join(block), events)

    def _open(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        trace: Headers | None = None
        try:
            if self.traced:
                head, trace = self._headers.read_traced(block)
            else:
                head = self._headers.read(block)
        except BlockError as error:
            raise ConnectionFaultError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        cost_us = HEADERS_US + self._headers.cost_us
        if cost_us > CALL_HEADERS_US:
            self._spend(cost_us - CALL_HEADERS_US, "headers")
            cost_us = CALL_HEADERS_US
        stream = self._stream(stream_id)
        if stream is not None:
            stream.cost_us += cost_us
            self._trailers(stream_id, stream, head, flags, events)
            return
        if stream_id <= self._last_stream_id:
            code = ErrorCode.PROTOCOL_ERROR
            if stream_id in self._over or stream_id in self._given_up:
                code = ErrorCode.STREAM_CLOSED
            raise ConnectionFaultError(code, "HEADERS on a stream that was open before")
        self._last_stream_id = stream_id
        if stream_id > self._last_accepted:
            self._spend(cost_us, "headers")
        elif len(self._streams) >= MAX_STREAMS:
            self._reset(stream_id, ErrorCode.REFUSED_STREAM, FRAME_US + cost_us)
        elif head.malformed or head.trailers:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR, RESET_US + cost_us)
        else:
            stream = Stream(head, self._methods)
            stream.cost_us, stream.trace = cost_us, trace
            self._begin(stream_id, stream, flags, head, events)

    def _begin(
        self, stream_id: int, stream: Stream, flags: int, head: Head, events: list[Event]
    ) -> None:
        """Opens a stream for a new call."""
        stream.since = self._second
        stream.ended = flags & END_STREAM != 0
        self._streams[stream_id] = stream
        self._keep(stream, STREAM_BYTES)
        if not stream.ended:
            self._unfinished[stream_id] = stream
        if head.oversized:
            stream.readable = Readable.ENOUGH
            text = f"the call has more headers than the {MAX_LIST_BYTES} bytes that are announced"
            self.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
        elif self._holds_too_much:
            self._refuse_for_memory(stream_id, stream)
        elif stream.ended:
            self._end(stream_id, stream, events)
        elif stream.readable is Readable.UNKNOWN:
            # At once: a streaming client may say nothing more before it has an answer.
            self._refuse(stream_id, stream)

    def _trailers(
        self, stream_id: int, stream: Stream, head: Head, flags: int, events: list[Event]
    ) -> None:
        """Takes the client's second header block, which must end the stream and name no path."""
        if stream.ended:
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif not flags & END_STREAM or not head.trailers or head.malformed:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end(stream_id, stream, events)

    def _data_frame(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._consume(size)
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self._stream(stream_id)
        if stream is None:
            self._not_open(stream_id)
            return
        if stream.ended:
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if not flags & END_STREAM:
            if not payload:
                self._spend(FRAME_US, "frames")
            elif len(payload) < _SMALL_PART_BYTES:
                self._spend(PART_US, "parts")
        stream.received += len(payload)
        if stream.readable is Readable.YES:
            stream.body += payload
            self._keep(stream, len(payload))
            if self._holds_too_much and not flags & END_STREAM:
                self._refuse_for_memory(stream_id, stream)
                return
        if flags & END_STREAM:
            self._end(stream_id, stream, events)
        else:
            self._more(stream_id, stream, events)

    def _more(self, stream_id: int, stream: Stream, events: list[Event]) -> None:
        """Takes a part of a body of which more is to come."""
        if stream.readable is not Readable.YES:
            if stream.receive_window < STREAM_WINDOW // 2 and not stream.answered:
                self._refuse(stream_id, stream)
        elif stream.streaming:
            self._next_message(stream_id, stream, events)
        elif len(stream.body) > MAX_MESSAGE_BYTES + PREFIX_BYTES:
            # Too much already: it is handed on to be refused and counted, and the rest is not read.
            message = bytes(stream.body[PREFIX_BYTES:])
            stream.readable = Readable.ENOUGH
            self._let_go(stream)
            self._call(stream.head, stream_id, message, events, stream.trace)

    def _end(self, stream_id: int, stream: Stream, events: list[Event]) -> None:
        """Hands on a unary call, or the end of a stream's messages: the client has sent all."""
        stream.ended = True
        self._unfinished.pop(stream_id, None)
        length = stream.head.content_length
        if length is not None and length != stream.received:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if stream.readable is not Readable.YES:
            if stream.readable is not Readable.ENOUGH:
                self._refuse(stream_id, stream)
            return
        if stream.streaming:
            self._next_message(stream_id, stream, events)
            return
        try:
            message = only_message(stream.body, stream.head.encoding)
        except BadRequestError as error:
            self.finish(stream_id, error.code, str(error))
            return
        self._let_go(stream)
        self._call(stream.head, stream_id, message, events, stream.trace)

    def _let_go(self, stream: Stream) -> None:
        """Forgets a body that is handed on."""
        self._keep(stream, -len(stream.body))
        stream.body = bytearray()

    def _next_message(self, stream_id: int, stream: Stream, events: list[Event]) -> None:
        """Hands on a streaming call's next message, or its end.

        It waits until the last message's answer is on its way, so that no client can cause more
        answers than it takes. Meanwhile the stream's window bounds what the client may send.
        """
        if stream.asking or stream.waiting:
            return
        before = len(stream.body)
        try:
            message = first_message(stream.body, stream.head.encoding)
        except BadRequestError as error:
            stream.readable = Readable.ENOUGH
            self.finish(stream_id, error.code, str(error))
            return
        self._keep(stream, len(stream.body) - before)
        if message is None:
            if stream.ended:
                events.append(Ended(stream_id))
                return
        else:
            stream.since = self._second
            stream.asking = True
            events.append(Message(stream_id, stream.head.path, message))
        room = stream.receive_window + len(stream.body)
        if room < STREAM_WINDOW // 2 and not stream.ended:
            stream.receive_window += STREAM_WINDOW - room
            self._output.append(frames.window_update(stream_id, STREAM_WINDOW - room))

    def _resume(self, events: list[Event]) -> None:
        """Goes on with a streaming call whose last message is answered."""
        stream_id = self._resumable.popleft()
        stream = self._streams.get(stream_id)
        if stream is not None and stream.readable is Readable.YES:
            self._next_message(stream_id, stream, events)

    def _refuse(self, stream_id: int, stream: Stream) -> None:
        """Answers a request that is not a gRPC call that we can read."""
        if stream.readable is Readable.NO_GRPC:
            block = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
            stream.answered = True
            self._header_block(0, stream_id, block)
            self._queue(stream_id, stream, FrameType.DATA, _WRONG_TYPE, last=True)
        elif stream.readable is Readable.UNKNOWN:
            stream.readable = Readable.ENOUGH
            text = f"unknown method {stream.head.path.decode('latin-1')}"
            self.finish(stream_id, StatusCode.UNIMPLEMENTED, text)
        else:
            block = literal(b"grpc-accept-encoding", b"identity,gzip")
            stream.answered = True
            self._header_block(0, stream_id, OK_HEADERS + block)
            encoding = stream.head.encoding.decode("latin-1")
            text = f"grpc-encoding {encoding} is not supported"
            self.finish(stream_id, StatusCode.UNIMPLEMENTED, text)

    def _refuse_for_memory(self, stream_id: int, stream: Stream) -> None:
        stream.readable = Readable.ENOUGH
        self._let_go(stream)
        self._spend(RESET_US, "memory")
        text = "too much of this connection's calls waits to be finished"
        self.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)

    # What carries no call

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        self._spend(FRAME_US, "windows")
        if stream_id == 0:
            _expect(increment > 0, "a window update of nothing")
            self._widen(increment)
            return
        stream = self._stream(stream_id)
        if stream is None:
            _expect(stream_id <= self._last_stream_id, "WINDOW_UPDATE on an idle stream")
        elif increment == 0:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._widen_stream(stream_id, stream, increment)

    def _rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        _expect(0 < stream_id <= self._last_stream_id, "RST_STREAM on an idle stream")
        self._spend(FRAME_US + self._withdraw(stream_id, events), "resets")

    def _withdraw(self, stream_id: int, events: list[Event]) -> int:
        """Takes a reset of a stream by the client; returns what its call has cost us."""
        stream = self._stream(stream_id)
        if stream is None:
            return 0
        stream.ended = True
        self._close(stream_id, stream)
        events.append(Cancelled(stream_id))
        return stream.cost_us

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _expect(stream_id == 0, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._spend(FRAME_US, "frames")
        if not flags & ACK:
            self._output.append(frames.ping(payload, ack=True))
        else:
            self._heard_again(payload)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _expect(stream_id == 0, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "an ACK has no settings")
            self._unacknowledged -= 1
            _expect(self._unacknowledged >= 0, "an ACK of nothing")
            if self._tableless and not self._unacknowledged:
                self._headers.without_table()
            return
        if len(payload) % 6:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a setting has 6 bytes")
        self._spend(FRAME_US + len(payload) // 6 * SETTING_US, "settings")
        window = self._initial_send_window
        for key, value in _SETTING.iter_unpack(payload):
            if key == SET_TABLE:
                self._allow_table(value)
            elif key == SET_PUSH:
                _expect(value <= 1, "ENABLE_PUSH is 0 or 1")
            elif key == SET_FRAME_SIZE:
                _expect(MAX_FRAME_SIZE <= value < 1 << 24, "MAX_FRAME_SIZE is 2^14 to 2^24-1")
                self._max_send_frame = value
            elif key == SET_WINDOW:
                if value > MAX_WINDOW:
                    text = "a window above 2^31-1"
                    raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, text)
                window = value
        self._settled = True
        self._output.append(frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        if window != self._initial_send_window:
            self._start_windows(window)

    def _priority(self, stream_id: int, payload: bytes) -> None:
        _expect(stream_id != 0, "PRIORITY without a stream")
        self._spend(FRAME_US, "frames")
        if len(payload) != 5:
            self._reset(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _not_open(self, stream_id: int) -> None:
        """Takes DATA on a stream that is not open: it never was, we gave it up, or it is over."""
        _expect(0 < stream_id <= self._last_stream_id, "DATA on an idle stream")
        self._spend(FRAME_US, "frames")
        if stream_id in self._over:
            self._output.append(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))


def _expect(condition: bool, text: str) -> None:
    if not condition:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, text)


def _ends_within(data: bytes, at: int) -> bool:
    """Whether the data ends in the middle of the frame that begins there."""
    rest = len(data) - at
    if rest < 9:
        return rest > 0
    length = int.from_bytes(data[at : at + 3], "big")
    return rest < 9 + length and length <= MAX_FRAME_SIZE


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
