"""What a client sends: frames in its bytes, and the calls that these bring.

One walk over the frames. Calls that come whole, or nearly so, are taken at once; all else has a
record of its stream. What must not live here: how calls are answered.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ratelimit_service.grpc.h2 import frames, runs
from ratelimit_service.grpc.h2.bodies import Bodies
from ratelimit_service.grpc.h2.budget import Budget, ConnectionFaultError, expect
from ratelimit_service.grpc.h2.callers import Callers
from ratelimit_service.grpc.h2.control import Control
from ratelimit_service.grpc.h2.costs import (
    DESCRIPTORS_BYTES,
    FRAME_US,
    HEADERS_US,
    PIECE_US,
    RESET_US,
    RUN_FRAME_US,
    USUAL_BYTES,
)
from ratelimit_service.grpc.h2.events import Calls, Cancelled, Event, add_calls
from ratelimit_service.grpc.h2.fields import BlockError
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PADDED,
    PRIORITY,
    RESET,
    RST_STREAM_BYTES,
    UPDATE,
    WHOLE_HEADERS,
    ErrorCode,
    FrameType,
    split_head,
)
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.grpc.h2.life import Life
from ratelimit_service.grpc.h2.limits import (
    CONNECTION_WINDOW,
    MAX_BLOCK_BYTES,
    MAX_CONTINUATIONS,
    MAX_STREAMS,
)
from ratelimit_service.grpc.h2.messages import (
    PREFIX_BYTES,
)
from ratelimit_service.grpc.h2.open_streams import OpenStreams
from ratelimit_service.grpc.h2.sending import Sender
from ratelimit_service.grpc.h2.streams import Methods, Stream
from ratelimit_service.model.call_origin import CallOrigin

__all__ = ["Receiver"]

_MESSAGE_FOLLOWS: Final = bytes((FrameType.DATA, END_STREAM))
"""Type and flags of the frame behind HEADERS, where a call comes whole."""


class _Block(NamedTuple):
    """A header block that is not complete."""

    stream_id: int
    flags: int
    faulty: bool
    """Whether its stream is to be reset once the block is read."""
    since: int
    parts: list[bytes]


class Receiver:
    """The half of a connection that makes calls of frames."""

    def __init__(
        self,
        methods: Methods,
        sender: Sender,
        streams: OpenStreams,
        control: Control,
        headers: HeaderReader,
        callers: Callers,
        life: Life,
        budget: Budget,
        bodies: Bodies,
    ) -> None:
        self._methods = methods
        self._sender = sender
        self._output = sender.output
        self._streams = streams
        self._control = control
        self._headers = headers
        self._callers = callers
        self._life = life
        self._budget = budget
        self._bodies = bodies
        self._usual_block = b""
        self._usual_head: Head | None = None
        """The latest header block of a usual call, and its head: a client's calls have the same
        headers nearly always, and comparing a block takes less time than looking it up."""
        self._block: _Block | None = None
        self._consumed = 0
        """Bytes of DATA for which the connection's window was not opened again yet."""

    def walk(self, data: bytes, at: int, most: int, events: list[Event]) -> tuple[int, bool]:
        """Takes complete frames; adds what they mean to the events, in order.

        Returns where the first frame begins that is left, and whether it is complete: it stops
        after work that is worth about `most` usual calls. Raises ConnectionFaultError.
        """
        life = self._life
        end, left_us = len(data), most * PIECE_US
        while end - at >= FRAME_HEAD_BYTES:
            # The type lets mypyc keep the tuple out of the heap.
            numbers: tuple[int, int, int, int] = split_head(data, at)
            high, length, kind_and_flags, stream_id = numbers
            if high or length > MAX_FRAME_SIZE:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame above 16384 bytes")
            stop = at + FRAME_HEAD_BYTES + length
            if stop > end:
                break
            if left_us <= 0:
                return at, True
            if life.steady and self._block is None:
                if kind_and_flags == WHOLE_HEADERS:
                    after, cost_us = self._calls(data, at, stop, stream_id, left_us, events)
                else:
                    payload = data[at + FRAME_HEAD_BYTES : stop]
                    after, cost_us = self._between(kind_and_flags, stream_id, payload, stop, events)
                if after:
                    at, left_us = after, left_us - cost_us
                    continue
            payload, before_us = data[at + FRAME_HEAD_BYTES : stop], self._budget.worked_us
            self._take(kind_and_flags, stream_id & MAX_WINDOW, payload, events)
            left_us -= PIECE_US + self._budget.worked_us - before_us
            if self._sender.blocked:  # before what the client says next
                left_us = self._sender.let_through(left_us // PIECE_US) * PIECE_US
            at = stop
        return at, False

    def _calls(
        self, data: bytes, at: int, stop: int, stream_id: int, left_us: int, events: list[Event]
    ) -> tuple[int, int]:
        """Takes usual calls, of which the first one's HEADERS are `data[at:stop]`.

        Those that have come whole and have the same headers are taken together. Returns where they
        end, and what they have cost; 0 and 0 if nothing was taken, because something is not usual.
        """
        streams, block = self._streams, data[at + FRAME_HEAD_BYTES : stop]
        usual = block == self._usual_block
        head = self._usual_head if usual else self._head_of(block)
        if head is None:
            return 0, 0
        room = MAX_STREAMS - len(streams.open) - len(streams.begun)
        caller = self._callers.of(block) if self._callers.wanted else None
        if data.startswith(_MESSAGE_FOLLOWS, stop + 3):
            most = min(room, left_us // PIECE_US or 1)
            if usual:
                end, stream_ids, messages = runs.usual_calls(
                    data, at, self._usual_block, streams.latest, most
                )
                origins = None if caller is None else [caller] * len(stream_ids)
            else:
                recall = self._headers.recall
                end, stream_ids, messages, blocks = runs.varied_calls(
                    data, at, recall, head, streams.latest, most
                )
                origins = None if caller is None else [self._callers.of(each) for each in blocks]
            count = len(stream_ids)
            if count:
                streams.hand_on(stream_ids)
                self._consume(sum(map(len, messages)) + count * PREFIX_BYTES)
                if events:
                    add_calls(events, head, stream_ids, messages, origins)
                else:
                    events.append(Calls(head, stream_ids, messages, origins))
                return end, count * PIECE_US
        new = stream_id & 1 and streams.latest < stream_id <= MAX_WINDOW
        if not new or room <= 0 or self._budget.holds_too_much:
            return 0, 0  # so a call that may never be whole is refused
        streams.opens(stream_id)
        streams.begun[stream_id] = head, caller, b""
        return stop, PIECE_US

    def _between(
        self,
        kind_and_flags: int,
        stream_id: int,
        payload: bytes,
        stop: int,
        events: list[Event],
    ) -> tuple[int, int]:
        """Takes what comes between usual calls, or is the body of one. Returns as `_calls`."""
        if kind_and_flags <= END_STREAM:
            begun = stream_id in self._streams.begun
            if begun and self._body(payload, stream_id, kind_and_flags, events):
                large = len(payload) > USUAL_BYTES  # it may have many descriptors
                return stop, len(payload) // DESCRIPTORS_BYTES * PIECE_US if large else 0
        elif kind_and_flags == UPDATE:
            if not self._sender.blocked:  # else these are sent as far as each lets them through
                self._control.window_update(stream_id & MAX_WINDOW, payload)
                return stop, RUN_FRAME_US
        elif kind_and_flags == RESET:
            self._rst_stream(stream_id & MAX_WINDOW, payload, events)
            return stop, RUN_FRAME_US
        return 0, 0

    def _head_of(self, block: bytes) -> Head | None:
        """The head of a usual call's header block; None if it is not known to be one."""
        head = self._headers.recall(block)
        if head is None or not head.plain or head.path not in self._methods.unary:
            return None
        self._usual_block, self._usual_head = block, head
        return head

    def _body(self, payload: bytes, stream_id: int, flags: int, events: list[Event]) -> bool:
        """Takes the body of a call that has begun, or all of it but its end.

        Returns whether it could: else the stream needs a record, and nothing is taken.
        """
        streams = self._streams
        head, caller, before = streams.begun[stream_id]
        length = len(payload)
        if before:
            payload = before + payload
        size = len(payload) - PREFIX_BYTES
        if not flags:
            if before or not payload or size > USUAL_BYTES:
                return False
            streams.begun[stream_id] = head, caller, payload
            self._consume(length)
            return True
        if size < 0 or payload[0] or int.from_bytes(payload[1:PREFIX_BYTES], "big") != size:
            return False
        del streams.begun[stream_id]
        streams.open[stream_id] = None
        self._consume(length)
        origins = None if caller is None else [caller]
        add_calls(events, head, [stream_id], [payload[PREFIX_BYTES:]], origins)
        return True

    def _take(
        self, kind_and_flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        """Takes a frame that is no part of a usual call."""
        kind, flags = kind_and_flags >> 8, kind_and_flags & 0xFF
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
            self._control.take(kind, flags, stream_id, payload)

    # Header blocks

    def _headers_frame(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        expect(stream_id % 2 == 1, "HEADERS on a stream that clients cannot open")
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
            if depends_on_itself:
                self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            second = self._life.second
            self._block = _Block(stream_id, flags, depends_on_itself, second, [payload])
            self._budget.hold(len(payload))

    def _continuation(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        block = self._block
        if block is None or stream_id != block.stream_id:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.parts.append(payload)
        self._budget.hold(len(payload))
        size = sum(map(len, block.parts))
        if size > MAX_BLOCK_BYTES or len(block.parts) > MAX_CONTINUATIONS:
            text = "a header block without end"
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text, "flood_headers")
        if flags & END_HEADERS:
            self._block = None
            self._budget.hold(-size)
            self._open(stream_id, block.flags, b"".join(block.parts), events)
            if block.faulty:
                self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    @property
    def block_since(self) -> int | None:
        """In which second a header block began that is not complete; None if there is none."""
        return None if self._block is None else self._block.since

    def _open(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        caller: CallOrigin | None = None
        try:
            if self._callers.wanted:
                head, headers = self._headers.read_with_caller(block)
                caller = CallOrigin(self._callers.peer, headers)
            else:
                head = self._headers.read(block)
        except BlockError as error:
            raise ConnectionFaultError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        cost_us = HEADERS_US + self._headers.cost_us
        self._budget.worked_us += cost_us
        stream = self._streams.record(stream_id)
        if stream is not None:
            stream.cost_us += cost_us
            self._trailers(stream_id, stream, head, flags, events)
            return
        if stream_id <= self._streams.latest:
            self._budget.spend(cost_us, "headers")
            if stream_id in self._streams.finished:
                text = "HEADERS on a stream that was open before"
                raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, text)
            expect(not self._streams.was_skipped(stream_id), "HEADERS on an older stream")
            # Else we have given it up, or not taken it. These may have been on their way when the
            # client heard of that (RFC 9113, sections 5.1 and 6.8).
            return
        self._streams.opens(stream_id)
        if stream_id > self._control.last_accepted:
            self._budget.spend(cost_us, "headers")
        elif len(self._streams) >= MAX_STREAMS:
            self._streams.reset(stream_id, ErrorCode.REFUSED_STREAM, FRAME_US + cost_us)
        elif head.malformed or head.trailers:
            self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR, RESET_US + cost_us)
        else:
            stream = Stream(head, self._methods)
            stream.cost_us, stream.caller = cost_us, caller
            self._bodies.begin(stream_id, stream, flags, head, events)

    def _trailers(
        self, stream_id: int, stream: Stream, head: Head, flags: int, events: list[Event]
    ) -> None:
        """Takes the client's second header block, which must end the stream and name no path."""
        if stream.ended:
            self._streams.reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif not flags & END_STREAM or not head.trailers or head.malformed:
            self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._bodies.end(stream_id, stream, events)

    # Bodies

    def _data_frame(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._consume(size)
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self._streams.record(stream_id)
        if stream is None:
            self._not_open(stream_id)
            return
        if stream.ended:
            self._streams.reset(stream_id, ErrorCode.STREAM_CLOSED)
            return
        self._bodies.take(stream_id, stream, payload, size, flags, events)

    def _not_open(self, stream_id: int) -> None:
        """Takes DATA on a stream that is not open: it never was, we gave it up, or it is over."""
        expect(self._streams.was_opened(stream_id), "DATA on an idle stream")
        self._budget.spend(FRAME_US, "frames")
        if stream_id in self._streams.finished:
            self._output.append(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))

    def _consume(self, size: int) -> None:
        """Opens the connection's window again for DATA that has come."""
        self._consumed += size
        if self._consumed > CONNECTION_WINDOW // 2:
            self._output.append(frames.window_update(0, self._consumed))
            self._consumed = 0

    # Ends

    def _rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        """Takes a reset. Callers that have waited in vain take back many calls at once."""
        if len(payload) != RST_STREAM_BYTES:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        streams, cost_us = self._streams, FRAME_US + HEADERS_US
        if streams.begun.pop(stream_id, None) is not None:
            streams.finished.append(stream_id)
            streams.close_if_done()
        elif stream_id in streams.open:
            if self._life.steady and streams.open[stream_id] is None:
                del streams.open[stream_id]
                streams.finished.append(stream_id)
            else:
                cost_us = FRAME_US + self._close(stream_id)
            events.append(Cancelled(stream_id))
        else:
            expect(streams.was_opened(stream_id), "RST_STREAM on an idle stream")
            cost_us = FRAME_US
        self._budget.spend(cost_us, "resets")

    def _close(self, stream_id: int) -> int:
        """Closes a stream that the client has reset; returns what its call has cost us."""
        stream = self._streams.record(stream_id)
        if stream is None:
            return 0
        stream.ended = True
        self._streams.close(stream_id, stream)
        return stream.cost_us


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
