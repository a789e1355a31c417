"""Calls as a client's frames bring them: header blocks, bodies, trailers and resets.

What must not live here: where frames begin and end, and how calls are answered.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.account import ConnectionFaultError, Memory, expect
from ratelimit_service.grpc.h2.control import Control
from ratelimit_service.grpc.h2.costs import (
    FRAME_US,
    HEADERS_US,
    PART_US,
    RESET_US,
    SMALL_PART_BYTES,
    UNPACK_US,
    USUAL_BYTES,
)
from ratelimit_service.grpc.h2.events import Calls, Cancelled, Ended, Event, Message
from ratelimit_service.grpc.h2.fields import MAX_LIST_BYTES, BlockError
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    PADDED,
    PRIORITY,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.grpc.h2.limits import (
    BODY_SECONDS,
    CONNECTION_WINDOW,
    IDLE_STREAM_SECONDS,
    MAX_BLOCK_BYTES,
    MAX_CONTINUATIONS,
    MAX_MESSAGE_BYTES,
    MAX_STREAMS,
    STREAM_BYTES,
    STREAM_WINDOW,
)
from ratelimit_service.grpc.h2.messages import (
    PACKED,
    PREFIX_BYTES,
    first_message,
    only_message,
)
from ratelimit_service.grpc.h2.sending import OK_HEADERS
from ratelimit_service.grpc.h2.streams import Methods, Readable, Stream
from ratelimit_service.service import CallOrigin

__all__ = ["Incoming"]

_ENDED_AT_ONCE: Final = 100
"""So many calls that have taken too long are ended at once; the next ones a second later."""

_WRONG_TYPE: Final = b"this port speaks gRPC: content-type must be application/grpc\n"


class Incoming(Control):
    """The half of a connection that makes calls of frames."""

    def __init__(self, methods: Methods, memory: Memory) -> None:
        super().__init__(methods, memory)
        self.wants_origins = False
        """Whether somebody asks who makes calls."""
        self.unusual = False
        """Whether the last piece has brought a message that is no usual call's."""
        self._nobody = CallOrigin()
        """Who makes the calls that tell nothing but the peer's address."""
        self._latest_block = b""
        self._latest_origin = CallOrigin()
        """A header block that was recalled, and who made that call. Clients that trace nothing send
        the same block with every call."""
        self.peer = ""
        """The address of the client; "" for a Unix socket."""
        self._second = 0
        """How often `tick` was called."""
        self._block: list[bytes] | None = None
        """The parts of a header block that is not complete."""
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_is_faulty = False
        """Whether its stream is to be reset once the block is read."""
        self._block_bytes = 0
        self._block_since = 0
        self._consumed = 0
        """Bytes of DATA for which the connection's window was not opened again yet."""

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
                self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._block = [payload]
            self._block_stream_id, self._block_flags = stream_id, flags
            self._block_bytes = len(payload)
            self._block_is_faulty = depends_on_itself
            self._block_since = self._second
            self._hold(len(payload))

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
            if self._block_is_faulty:
                self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _open(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        caller: CallOrigin | None = None
        try:
            if self.wants_origins:
                head, headers = self._headers.read_with_caller(block)
                caller = CallOrigin(self.peer, headers)
            else:
                head = self._headers.read(block)
        except BlockError as error:
            raise ConnectionFaultError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        cost_us = HEADERS_US + self._headers.cost_us
        self._worked_us += cost_us
        stream = self._stream(stream_id)
        if stream is not None:
            stream.cost_us += cost_us
            self._trailers(stream_id, stream, head, flags, events)
            return
        if stream_id <= self.latest_stream:
            self._spend(cost_us, "headers")
            if stream_id in self._finished:
                text = "HEADERS on a stream that was open before"
                raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, text)
            expect(not self._was_skipped(stream_id), "HEADERS on an older stream")
            # Else we have given it up, or not taken it. These may have been on their way when the
            # client heard of that (RFC 9113, sections 5.1 and 6.8).
            return
        self._opens(stream_id)
        if stream_id > self._last_accepted:
            self._spend(cost_us, "headers")
        elif len(self._streams) >= MAX_STREAMS:
            self._reset(stream_id, ErrorCode.REFUSED_STREAM, FRAME_US + cost_us)
        elif head.malformed or head.trailers:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR, RESET_US + cost_us)
        else:
            stream = Stream(head, self._methods)
            stream.cost_us, stream.caller = cost_us, caller
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
            self._spend(stream.cost_us, "headers")
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

    # Bodies

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
            elif len(payload) < SMALL_PART_BYTES:
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

    def _not_open(self, stream_id: int) -> None:
        """Takes DATA on a stream that is not open: it never was, we gave it up, or it is over."""
        expect(self._was_opened(stream_id), "DATA on an idle stream")
        self._spend(FRAME_US, "frames")
        if stream_id in self._finished:
            self._output.append(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))

    def _consume(self, size: int) -> None:
        """Opens the connection's window again for DATA that has come."""
        self._consumed += size
        if self._consumed > CONNECTION_WINDOW // 2:
            self._output.append(frames.window_update(0, self._consumed))
            self._consumed = 0

    def _more(self, stream_id: int, stream: Stream, events: list[Event]) -> None:
        """Takes a part of a body of which more is to come."""
        if stream.readable is Readable.ENOUGH:
            return
        if stream.readable is not Readable.YES:
            if stream.receive_window < STREAM_WINDOW // 2:
                self._refuse(stream_id, stream)
        elif stream.streaming:
            self._next_message(stream_id, stream, events)
        elif len(stream.body) > MAX_MESSAGE_BYTES + PREFIX_BYTES:
            # Too much already: it is handed on to be refused and counted, and the rest is not read.
            message = bytes(stream.body[PREFIX_BYTES:])
            stream.readable = Readable.ENOUGH
            self._let_go(stream)
            self.unusual = True
            self._call(stream.head, stream_id, message, events, stream.caller)
        else:
            self._open_window(stream_id, stream)

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
        if stream.body[:1] == PACKED:
            self._worked_us += UNPACK_US
        try:
            message = only_message(stream.body, stream.head.encoding)
        except BadRequestError as error:
            self.finish(stream_id, error.code, str(error))
            return
        self._let_go(stream)
        if len(message) > USUAL_BYTES:
            self.unusual = True
        self._call(stream.head, stream_id, message, events, stream.caller)

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
        self._open_window(stream_id, stream)

    def _open_window(self, stream_id: int, stream: Stream) -> None:
        """Opens a stream's window again for what is not kept: messages handed on, and padding."""
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

    def _call(
        self,
        head: Head,
        stream_id: int,
        message: bytes,
        events: list[Event],
        caller: CallOrigin | None,
    ) -> None:
        """Hands on a complete unary call, together with those just before it if it can be."""
        last = events[-1] if events else None
        if isinstance(last, Calls) and last.head is head:
            if caller is None and last.origins is None:
                last.stream_ids.append(stream_id)
                last.messages.append(message)
                return
            if caller is not None and last.origins is not None:
                last.stream_ids.append(stream_id)
                last.messages.append(message)
                last.origins.append(caller)
                return
        origins = None if caller is None else [caller]
        events.append(Calls(head, [stream_id], [message], origins))

    def _origin(self, block: bytes) -> CallOrigin:
        """Who made a call with this header block, which has been recalled."""
        if block == self._latest_block:
            return self._latest_origin
        if self._headers.is_nameless(block):
            if self._nobody.peer != self.peer:
                self._nobody = CallOrigin(self.peer)
            return self._nobody
        origin = CallOrigin(self.peer, (), block, self._headers.caller_headers)
        self._latest_block, self._latest_origin = block, origin
        return origin

    # Ends

    def _refuse(self, stream_id: int, stream: Stream) -> None:
        """Answers a request that is not a gRPC call that we can read."""
        self._spend(stream.cost_us, "headers")
        if stream.readable is Readable.NO_GRPC:
            stream.readable = Readable.ENOUGH
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
        self._spend(RESET_US + stream.cost_us, "memory")
        text = "too much of this connection's calls waits to be finished"
        self.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)

    def _rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        expect(self._was_opened(stream_id), "RST_STREAM on an idle stream")
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

    def _end_slow_calls(self, second: int) -> None:
        """Ends calls that take too long, but so many at once that it takes little time."""
        ended = 0
        for stream_id, stream in list(self._unfinished.items()):
            most = IDLE_STREAM_SECONDS if stream.streaming else BODY_SECONDS
            refused = stream.readable is Readable.ENOUGH
            if second - stream.since > most and not (stream.asking or refused):
                ended += 1
                if ended > _ENDED_AT_ONCE:
                    break
                stream.readable = Readable.ENOUGH
                text = f"the client has sent nothing whole for {most} s"
                self.finish(stream_id, StatusCode.DEADLINE_EXCEEDED, text)
                self._withdrawn.append(stream_id)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
