"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events out; answers in, bytes out.

RFC 9113 and gRPC's PROTOCOL-HTTP2.md. What must not live here: sockets, timers, tasks, and
what a call means. Everything that a client can make grow is bounded here, or by the
announced settings.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import quote

from ratelimit_service.errors import StatusCode
from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.fields import MAX_LIST_BYTES
from ratelimit_service.transport.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITY,
    ErrorCode,
    FrameType,
    Setting,
)
from ratelimit_service.transport.h2.headers import (
    ENCODINGS,
    BlockError,
    Head,
    HeaderReader,
    literal,
)

__all__ = ["Calls", "Cancelled", "Connection", "Ended", "Event", "Message", "Methods"]

MAX_STREAMS: Final = 1_000
"""Calls in flight on one connection; announced."""

MAX_MESSAGE_BYTES: Final = 65_536
"""A message above this is refused as gRPC's RESOURCE_EXHAUSTED."""

_STREAM_WINDOW: Final = 131_072
_CONNECTION_WINDOW: Final = 16_777_216
_DEFAULT_WINDOW: Final = 65_535
_DEFAULT_TABLE_BYTES: Final = 4_096
_PREFIX_BYTES: Final = 5
_MAX_BLOCK_BYTES: Final = 65_536
"""A header block that is coded in more bytes ends the connection; its call alone is refused if its
list is above what is announced."""

_MAX_CONTINUATIONS: Final = 32
_MAX_UNREQUITED: Final = 2_000
"""Frames that cost us and bring nothing (PING, SETTINGS, RST_STREAM, empty DATA, …), less what
was answered: above it a client is told to calm down."""

_CALLS_WORTH: Final = 10
"""How many of them an answered call makes up for: grpcio says some three with each."""

_CLOSED_REMEMBERED: Final = 256

_GZIP: Final = 31
"""zlib's word for a gzip header and trailer around deflated bytes."""

_PING: Final = b"are you?"
_LAST_CALL: Final = b"lastcall"
_LAST_ROUND: Final = b"all over"

_OK_HEADERS: Final = b"\x88" + literal(b"content-type", b"application/grpc")
_OK_TRAILERS: Final = literal(b"grpc-status", b"0")
_NO_TABLE: Final = b"\x20"
"""Begins a header block and says that we use no dynamic table (RFC 7541, section 6.3)."""
_WRONG_TYPE: Final = b"this port speaks gRPC: content-type must be application/grpc\n"

_FRAME: Final = struct.Struct(">BHBBI")
_frame_head: Final = _FRAME.unpack_from
"""A frame's first 9 bytes; its 3 bytes of length as a high one and a low pair."""

_MESSAGE_FRAME: Final = struct.Struct(">BHBBIBI")
_message_head: Final = _MESSAGE_FRAME.unpack_from
_MESSAGE_HEAD_BYTES: Final = 14
"""The same of a DATA frame that starts with a message's prefix."""

_HEADERS_HEAD: Final = struct.pack(">xHBB", len(_OK_HEADERS), FrameType.HEADERS, END_HEADERS)
_TRAILERS_HEAD: Final = struct.pack(
    ">xHBB", len(_OK_TRAILERS), FrameType.HEADERS, END_HEADERS | END_STREAM
)
_answer_head: Final = struct.Struct(f">5sI{len(_OK_HEADERS)}sxHxxIxI").pack
"""An answer's HEADERS frame and what comes before its message: a DATA frame's size, type and flags
0, its stream, and the message's prefix."""

_answer_end: Final = struct.Struct(f">5sI{len(_OK_TRAILERS)}s").pack


@dataclass(frozen=True, slots=True)
class Methods:
    """The paths that are served. Calls of streaming methods give each message as it comes."""

    unary: frozenset[bytes] = frozenset()
    streaming: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Calls:
    """Complete unary calls with the same headers: their one message has come, no more will."""

    head: Head
    stream_ids: list[int]
    messages: list[bytes]


class Message(NamedTuple):
    """One message of a call on a streaming path."""

    stream_id: int
    path: bytes
    message: bytes


class Ended(NamedTuple):
    """The client sends no more messages on a streaming path."""

    stream_id: int


class Cancelled(NamedTuple):
    """The client does not want the answer any more."""

    stream_id: int


Event = Calls | Message | Ended | Cancelled


class _ConnectionError(Exception):
    """Ends the connection with GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Readable(Enum):
    """Whether a request is a gRPC call that we can read."""

    YES = auto()
    NO_GRPC = auto()
    ENCODING = auto()
    UNKNOWN = auto()
    """It calls a method that is not served."""
    ENOUGH = auto()
    """It has been handed on or answered as it is."""


def _readable(head: Head, methods: Methods) -> _Readable:
    if head.method != b"POST" or not head.content_type.startswith(b"application/grpc"):
        return _Readable.NO_GRPC
    if head.encoding not in ENCODINGS:
        return _Readable.ENCODING
    if head.path not in methods.unary and head.path not in methods.streaming:
        return _Readable.UNKNOWN
    return _Readable.YES


class _Stream:
    """What is known of one open stream."""

    __slots__ = (
        "answered",
        "body",
        "ended",
        "head",
        "readable",
        "receive_window",
        "received",
        "send_window",
        "streaming",
        "waiting",
    )

    def __init__(self, head: Head, send_window: int, methods: Methods) -> None:
        self.head = head
        self.body = b""
        self.received = 0
        self.ended = False
        self.answered = False
        self.streaming = head.path in methods.streaming
        self.readable = _readable(head, methods)
        self.send_window = send_window
        self.receive_window = _STREAM_WINDOW
        self.waiting: deque[tuple[FrameType, bytes, bool]] = deque()
        """What flow control holds back: type, payload and whether the stream ends with it."""


class Connection:
    """The server's side of one connection.

    `receive` takes what the socket gave and returns events; the answers' bytes, and what the
    protocol itself has to say, are collected until `take_output`. After `closing` is set and
    the output is written, the socket is to be closed.
    """

    def __init__(self, methods: Methods) -> None:
        """Calls of any other method are refused."""
        self._methods = methods
        self._unary = methods.unary
        self._headers = HeaderReader()
        self._rest = b""
        self._greeted = False
        self._settled = False
        self._unacknowledged = 1
        self._tableless = False
        self._steady = False
        """Whether calls come and go, and nothing begins or ends the connection."""
        self._streams: dict[int, _Stream | None] = {}
        """Open streams. None stands for a whole unary call of which nothing more is known: its
        window is the one that all new streams have."""
        self._over: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        self._given_up: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        self._last_stream_id = 0
        self._block: list[bytes] | None = None
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_bytes = 0
        self._send_window = _DEFAULT_WINDOW
        self._initial_send_window = _DEFAULT_WINDOW
        self._max_send_frame = MAX_FRAME_SIZE
        self._table_given_up = False
        """Whether the client knows that our header blocks use no dynamic table."""
        self._must_give_up_table = False
        """Whether our next header block must say so: the client allows less than the default."""
        self._consumed = 0
        self._unrequited = 0
        self._going_away = False
        self._last_accepted = MAX_WINDOW
        self._blocked: dict[int, _Stream] = {}
        self._output: list[bytes] = [
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
                }
            ),
            frames.window_update(0, _CONNECTION_WINDOW - _DEFAULT_WINDOW),
        ]
        self.closing = False
        self.has_more = False
        """Whether complete frames wait for the next call of `receive`."""
        self.pongs = 0
        """How many of our pings were answered."""

    @property
    def greeted(self) -> bool:
        """Whether the client has spoken HTTP/2 to us."""
        return self._settled

    @property
    def open_streams(self) -> int:
        """Calls that have not been answered in full."""
        return len(self._streams)

    @property
    def blocked(self) -> bool:
        """Whether flow control holds an answer back."""
        return bool(self._blocked)

    def take_output(self) -> bytes:
        """The bytes to write, which are then forgotten here."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    # What we say

    def answer(self, stream_id: int, message: bytes) -> None:
        """Answers a unary call and ends it; does nothing for a call that is gone."""
        size = _PREFIX_BYTES + len(message)
        window = self._send_window
        if (
            self._streams.get(stream_id, self) is not None
            or not self._steady
            or size > window
            or size > self._initial_send_window
            or size > MAX_FRAME_SIZE
        ):
            self.send(stream_id, message)
            self.finish(stream_id)
            return
        del self._streams[stream_id]
        self._over.append(stream_id)
        self._send_window = window - size
        if self._unrequited:
            self._unrequited = max(0, self._unrequited - _CALLS_WORTH)
        output = self._output
        output.append(
            _answer_head(_HEADERS_HEAD, stream_id, _OK_HEADERS, size, stream_id, len(message))
        )
        output.append(message)
        output.append(_answer_end(_TRAILERS_HEAD, stream_id, _OK_TRAILERS))

    def leave_unanswered(self, stream_ids: Sequence[int]) -> None:
        """Forgets calls whose callers are about to give up.

        That is our fault: what clients say of these streams costs them as little as if they had
        been answered.
        """
        for stream_id in stream_ids:
            stream = self._stream(stream_id)
            if stream is not None:
                self._unrequited = max(0, self._unrequited - _CALLS_WORTH)
                self._close(stream_id, stream)

    def is_open(self, stream_id: int) -> bool:
        """Whether the client still waits for this answer."""
        return stream_id in self._streams and not self.closing

    def send(self, stream_id: int, message: bytes) -> None:
        """Sends one message of an answer, which stays open."""
        stream = self._stream(stream_id)
        if stream is None:
            return
        if not stream.answered:
            stream.answered = True
            self._header_block(0, stream_id, _OK_HEADERS)
        payload = b"\x00" + len(message).to_bytes(4, "big") + message
        stream.waiting.append((FrameType.DATA, payload, False))
        self._flush(stream_id, stream)

    def finish(self, stream_id: int, code: int = 0, text: str = "") -> None:
        """Ends an answer with its gRPC status."""
        stream = self._stream(stream_id)
        if stream is None:
            return
        block = literal(b"grpc-status", b"%d" % code)
        if text:
            block += literal(
                b"grpc-message", quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode()
            )
        if not stream.answered:
            block = _OK_HEADERS + block
        stream.waiting.append((FrameType.HEADERS, block, True))
        self._flush(stream_id, stream)

    def ping(self) -> None:
        """Asks the client whether it is still there; `pongs` counts its answers."""
        self._output.append(frames.ping(_PING, ack=False))

    def calm(self) -> None:
        """Forgets what the client has cost so far; to be called about once a second."""
        self._unrequited = 0

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

    def abandon(self, code: ErrorCode, text: str) -> None:
        """Ends the connection for a reason that the client is told."""
        if not self.closing:
            self.closing = True
            self._output.append(frames.goaway(self._last_stream_id, code, text))

    # What we hear

    def receive(self, data: bytes, most: int = sys.maxsize) -> list[Event]:
        """Takes bytes from the socket; returns what they mean, in order.

        After so many calls or frames it stops, and `has_more` says that it goes on with the next
        bytes, or with none.
        """
        events: list[Event] = []
        self.has_more = False
        if self.closing:
            return events
        if self._rest:
            data = self._rest + data
        try:
            self._rest = data[self._read(data, most, events) :]
        except _ConnectionError as error:
            self.abandon(error.code, str(error))
        return events

    def _read(self, data: bytes, most: int, events: list[Event]) -> int:
        """Handles complete frames; returns how many bytes they had."""
        at, end = 0, len(data)
        if not self._greeted:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(PREFACE):
                return 0
            self._greeted = True
            at = len(PREFACE)
        while end - at >= 9:
            if not most:
                self.has_more = True
                break
            most -= 1
            # With its type the tuple is no object to a compiler.
            head: tuple[int, int, int, int, int] = _frame_head(data, at)
            high, length, kind, flags, stream_id = head
            if high or length > MAX_FRAME_SIZE:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a frame above 16384 bytes")
            start = at + 9
            at = start + length
            if at > end:
                return start - 9
            if kind == HEADERS and flags == END_HEADERS:
                after = self._whole_call(data, stream_id, start, at, events)
                if after:
                    at = after
                    continue
            self._handle(kind, flags, stream_id & MAX_WINDOW, data[start:at], events)
        return at

    def _whole_call(
        self, data: bytes, stream_id: int, start: int, stop: int, events: list[Event]
    ) -> int:
        """Takes a call that comes, as nearly all do, in a HEADERS and a DATA frame at once.

        The header block is `data[start:stop]`. Returns where the call ends; 0 if it is not of
        that kind, or anything about it is unusual: then nothing has been taken.
        """
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
            or size != length - _PREFIX_BYTES
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
        self._last_stream_id = stream_id
        self._streams[stream_id] = None
        self._consume(length)
        self._call(head, stream_id, data[stop + 9 + _PREFIX_BYTES : end], events)
        return end

    def _call(self, head: Head, stream_id: int, message: bytes, events: list[Event]) -> None:
        """Hands on a complete unary call, together with those just before it if it can be."""
        last = events[-1] if events else None
        if isinstance(last, Calls) and last.head is head:
            last.stream_ids.append(stream_id)
            last.messages.append(message)
        else:
            events.append(Calls(head, [stream_id], [message]))

    def _stream(self, stream_id: int) -> _Stream | None:
        """An open stream; a whole call has a record only once something is to be said of it."""
        stream = self._streams.get(stream_id)
        if stream is None and stream_id in self._streams:
            stream = _Stream(Head(), self._initial_send_window, self._methods)
            stream.ended = True
            self._streams[stream_id] = stream
        return stream

    def _consume(self, size: int) -> None:
        """Opens the connection's window again for DATA that has come."""
        self._consumed += size
        if self._consumed > _CONNECTION_WINDOW // 2:
            self._output.append(frames.window_update(0, self._consumed))
            self._consumed = 0

    def _handle(
        self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if not self._settled and (kind != FrameType.SETTINGS or flags & ACK):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        if self._block is not None and kind != FrameType.CONTINUATION:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is not finished")
        if kind == FrameType.DATA:
            self._data(flags, stream_id, payload, events)
        elif kind == FrameType.HEADERS:
            self._headers_frame(flags, stream_id, payload, events)
        elif kind == FrameType.CONTINUATION:
            self._continuation(flags, stream_id, payload, events)
        elif kind == FrameType.RST_STREAM:
            self._rst_stream(stream_id, payload, events)
        else:
            self._control(kind, flags, stream_id, payload)

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Frames that carry no part of a call."""
        if kind == FrameType.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == FrameType.PING:
            self._ping(flags, stream_id, payload)
        elif kind == FrameType.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == FrameType.PRIORITY:
            self._priority(stream_id, payload)
        elif kind == FrameType.PUSH_PROMISE:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "clients do not push")
        else:  # GOAWAY asks nothing of us, and unknown types are to be ignored
            _expect(kind != FrameType.GOAWAY or stream_id == 0, "GOAWAY on a stream")
            self._requite()

    def _data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
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
            events.append(Cancelled(stream_id))
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if not payload and not flags & END_STREAM:
            self._requite()
        stream.received += len(payload)
        if stream.readable is _Readable.YES:
            stream.body = stream.body + payload if stream.body else payload
        if flags & END_STREAM:
            self._end(stream_id, stream, events)
        else:
            self._more(stream_id, stream, events)

    def _more(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        """A part of a body has come, and more will."""
        if stream.readable is not _Readable.YES:
            if stream.receive_window < _STREAM_WINDOW // 2 and not stream.answered:
                self._refuse(stream_id, stream)
        elif stream.streaming:
            self._messages(stream_id, stream, events)
            if stream.receive_window < _STREAM_WINDOW // 2:
                increment = _STREAM_WINDOW - stream.receive_window
                stream.receive_window = _STREAM_WINDOW
                self._output.append(frames.window_update(stream_id, increment))
        elif len(stream.body) > MAX_MESSAGE_BYTES + _PREFIX_BYTES:
            # Too much already: whoever decides is to refuse and count it, the rest is not read.
            self._call(stream.head, stream_id, stream.body[_PREFIX_BYTES:], events)
            stream.readable = _Readable.ENOUGH

    def _headers_frame(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        _expect(stream_id % 2 == 1, "HEADERS on a stream that clients cannot open")
        if flags & PADDED:
            payload = _unpadded(payload)
        depends_on_itself = False
        if flags & PRIORITY:
            if len(payload) < 5:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is cut short")
            depends_on_itself = int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(stream_id, flags, payload, events)
        else:
            self._block = [payload]
            self._block_stream_id, self._block_flags = stream_id, flags
            self._block_bytes = len(payload)
        if depends_on_itself:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _continuation(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        block = self._block
        if block is None or stream_id != self._block_stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > _MAX_BLOCK_BYTES or len(block) > _MAX_CONTINUATIONS:
            raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & END_HEADERS:
            self._block = None
            self._open(stream_id, self._block_flags, b"".join(block), events)

    def _open(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        try:
            head = self._headers.read(block)
        except BlockError as error:
            raise _ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        stream = self._stream(stream_id)
        if stream is not None:
            self._trailers(stream_id, stream, head, flags, events)
            return
        if stream_id <= self._last_stream_id:
            code = ErrorCode.PROTOCOL_ERROR
            if stream_id in self._over or stream_id in self._given_up:
                code = ErrorCode.STREAM_CLOSED
            raise _ConnectionError(code, "HEADERS on a stream that was open before")
        self._last_stream_id = stream_id
        if stream_id > self._last_accepted:
            return
        if len(self._streams) >= MAX_STREAMS:
            self._requite()
            self._reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        if head.oversized:
            stream = _Stream(head, self._initial_send_window, self._methods)
            stream.ended = flags & END_STREAM != 0
            stream.readable = _Readable.ENOUGH
            self._streams[stream_id] = stream
            text = f"the call has more headers than the {MAX_LIST_BYTES} bytes that are announced"
            self.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
            return
        if head.malformed or head.trailers:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream = _Stream(head, self._initial_send_window, self._methods)
        self._streams[stream_id] = stream
        if flags & END_STREAM:
            self._end(stream_id, stream, events)
        elif stream.readable is _Readable.UNKNOWN:
            # At once: a streaming client may say nothing more before it has an answer.
            self._refuse(stream_id, stream)

    def _refuse(self, stream_id: int, stream: _Stream) -> None:
        """Answers what is no gRPC call that can be read."""
        if stream.readable is _Readable.NO_GRPC:
            block = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
            stream.answered = True
            self._header_block(0, stream_id, block)
            stream.waiting.append((FrameType.DATA, _WRONG_TYPE, True))
            self._flush(stream_id, stream)
        elif stream.readable is _Readable.UNKNOWN:
            stream.readable = _Readable.ENOUGH
            text = f"unknown method {stream.head.path.decode('latin-1')}"
            self.finish(stream_id, StatusCode.UNIMPLEMENTED, text)
        else:
            block = literal(b"grpc-accept-encoding", b"identity,gzip")
            stream.answered = True
            self._header_block(0, stream_id, _OK_HEADERS + block)
            encoding = stream.head.encoding.decode("latin-1")
            text = f"grpc-encoding {encoding} is not supported"
            self.finish(stream_id, StatusCode.UNIMPLEMENTED, text)

    def _trailers(
        self, stream_id: int, stream: _Stream, head: Head, flags: int, events: list[Event]
    ) -> None:
        """The client's second header block: it must end the stream and name no path."""
        if stream.ended:
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif not flags & END_STREAM or not head.trailers or head.malformed:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end(stream_id, stream, events)

    def _end(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        """The client has said all: hands on a unary call, or the end of a stream's messages."""
        stream.ended = True
        length = stream.head.content_length
        if length is not None and length != stream.received:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if stream.readable is not _Readable.YES:
            if stream.readable is not _Readable.ENOUGH:
                self._refuse(stream_id, stream)
            return
        if stream.streaming:
            self._messages(stream_id, stream, events)
            if stream_id in self._streams:
                events.append(Ended(stream_id))
            return
        body = stream.body
        size = len(body) - _PREFIX_BYTES
        if size < 0 or int.from_bytes(body[1:_PREFIX_BYTES], "big") != size:
            self.finish(stream_id, StatusCode.INTERNAL, "a unary call has exactly one message")
            return
        message: bytes | None = body[_PREFIX_BYTES:]
        if body[0]:
            message = self._unpacked(stream_id, stream, body[_PREFIX_BYTES:])
        if message is not None:
            self._call(stream.head, stream_id, message, events)

    def _messages(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        """Hands on every complete message of a streaming call."""
        while len(stream.body) >= _PREFIX_BYTES:
            size = int.from_bytes(stream.body[1:_PREFIX_BYTES], "big")
            if size > MAX_MESSAGE_BYTES:
                text = f"a message has at most {MAX_MESSAGE_BYTES} bytes"
                self.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
                return
            stop = _PREFIX_BYTES + size
            if len(stream.body) < stop:
                break
            packed, message = stream.body[0], stream.body[_PREFIX_BYTES:stop]
            stream.body = stream.body[stop:]
            unpacked = self._unpacked(stream_id, stream, message) if packed else message
            if unpacked is None:
                return
            events.append(Message(stream_id, stream.head.path, unpacked))

    def _unpacked(self, stream_id: int, stream: _Stream, message: bytes) -> bytes | None:
        """A compressed message's content; None if it has none, which the client is told."""
        if stream.head.encoding != b"gzip":
            text = "a compressed message needs grpc-encoding gzip"
            self.finish(stream_id, StatusCode.INTERNAL, text)
            return None
        unzipping = zlib.decompressobj(_GZIP)
        try:
            # One byte more than is allowed is enough to be refused by whoever decides.
            unpacked = unzipping.decompress(message, MAX_MESSAGE_BYTES + 1)
        except zlib.error as error:
            self.finish(stream_id, StatusCode.INTERNAL, f"the message is no gzip: {error}")
            return None
        if len(unpacked) <= MAX_MESSAGE_BYTES:
            problem = ""
            if not unzipping.eof:
                problem = "the message's gzip is cut short"
            elif unzipping.unused_data:
                problem = "the message has bytes after its gzip"
            if problem:
                self.finish(stream_id, StatusCode.INTERNAL, problem)
                return None
        return unpacked

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        self._requite()
        if stream_id == 0:
            self._send_window += increment
            _expect(increment > 0, "a window update of nothing")
            if self._send_window > MAX_WINDOW:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
            self._flush_blocked()
            return
        stream = self._stream(stream_id)
        if stream is None:
            _expect(stream_id <= self._last_stream_id, "WINDOW_UPDATE on an idle stream")
            return
        stream.send_window += increment
        if increment == 0:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif stream.send_window > MAX_WINDOW:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.waiting:
            self._flush(stream_id, stream)

    def _rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        _expect(0 < stream_id <= self._last_stream_id, "RST_STREAM on an idle stream")
        self._requite()
        stream = self._stream(stream_id)
        if stream is not None:
            stream.ended = True
            self._close(stream_id, stream)
            events.append(Cancelled(stream_id))

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _expect(stream_id == 0, "PING on a stream")
        if len(payload) != 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._requite()
        if not flags & ACK:
            self._output.append(frames.ping(payload, ack=True))
        elif payload == _LAST_CALL and self._going_away:
            self._output.append(frames.ping(_LAST_ROUND, ack=False))
        elif payload == _LAST_ROUND and self._going_away:
            self._last_accepted = self._last_stream_id
            self._output.append(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR))
            self._close_if_done()
        else:
            self.pongs += 1

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _expect(stream_id == 0, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an ACK has no settings")
            self._unacknowledged -= 1
            _expect(self._unacknowledged >= 0, "an ACK of nothing")
            if self._tableless and not self._unacknowledged:
                self._headers.without_table()
            return
        if len(payload) % 6:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a setting has 6 bytes")
        self._requite()
        for at in range(0, len(payload), 6):
            key = int.from_bytes(payload[at : at + 2], "big")
            self._setting(key, int.from_bytes(payload[at + 2 : at + 6], "big"))
        self._settled = True
        self._output.append(frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        self._flush_blocked()

    def _setting(self, key: int, value: int) -> None:
        if key == Setting.HEADER_TABLE_SIZE:
            # The smallest value counts, whatever follows (RFC 7541, section 4.2). Once is enough:
            # no value is smaller than what we have then.
            if value < _DEFAULT_TABLE_BYTES and not self._table_given_up:
                self._must_give_up_table = True
                self._settle_down()
        elif key == Setting.ENABLE_PUSH:
            _expect(value <= 1, "ENABLE_PUSH is 0 or 1")
        elif key == Setting.MAX_FRAME_SIZE:
            _expect(MAX_FRAME_SIZE <= value < 1 << 24, "MAX_FRAME_SIZE is 2^14 to 2^24-1")
            self._max_send_frame = value
        elif key == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
            change = value - self._initial_send_window
            self._initial_send_window = value
            for stream in filter(None, self._streams.values()):
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")

    def _priority(self, stream_id: int, payload: bytes) -> None:
        _expect(stream_id != 0, "PRIORITY without a stream")
        self._requite()
        if len(payload) != 5:
            self._reset(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    # What both come to

    def _not_open(self, stream_id: int) -> None:
        """DATA on a stream that is not open: never was, was given up by us, or is over."""
        _expect(0 < stream_id <= self._last_stream_id, "DATA on an idle stream")
        self._requite()
        if stream_id in self._over:
            self._output.append(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))

    def _requite(self) -> None:
        """Counts a frame that costs us and brings nothing."""
        self._unrequited += 1
        if self._unrequited > _MAX_UNREQUITED:
            raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames for nothing")

    def _frame(self, kind: FrameType, flags: int, stream_id: int, payload: bytes) -> None:
        self._output.append(frames.frame(kind, flags, stream_id, payload))

    def _header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Sends a header block, in the order in which the client reads them."""
        if self._must_give_up_table:
            self._must_give_up_table = False
            self._table_given_up = True
            self._settle_down()
            block = _NO_TABLE + block
        self._frame(FrameType.HEADERS, END_HEADERS | flags, stream_id, block)

    def _settle_down(self) -> None:
        """From here on calls come and go, unless something begins or ends the connection."""
        self._steady = self._tableless and not self._going_away and not self._must_give_up_table

    def _flush_blocked(self) -> None:
        for stream_id, stream in list(self._blocked.items()):
            self._flush(stream_id, stream)

    def _flush(self, stream_id: int, stream: _Stream) -> None:
        """Sends of an answer what the windows let through."""
        while stream.waiting:
            kind, payload, last = stream.waiting[0]
            end = END_STREAM if last else 0
            if kind is FrameType.HEADERS:
                self._header_block(end, stream_id, payload)
            else:
                room = min(self._send_window, stream.send_window, self._max_send_frame)
                if room <= 0:
                    self._blocked[stream_id] = stream
                    return
                part, rest = payload[:room], payload[room:]
                self._send_window -= len(part)
                stream.send_window -= len(part)
                self._frame(kind, 0 if rest else end, stream_id, part)
                if rest:
                    stream.waiting[0] = (kind, rest, last)
                    continue
            stream.waiting.popleft()
            if last:
                self._unrequited = max(0, self._unrequited - _CALLS_WORTH)
                self._close(stream_id, stream)
        self._blocked.pop(stream_id, None)

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        """Ends one stream with an error."""
        self._output.append(frames.rst_stream(stream_id, code))
        stream = self._stream(stream_id)
        if stream is not None:
            stream.ended = True
            self._close(stream_id, stream)
        elif stream_id % 2:
            self._given_up.append(stream_id)

    def _close(self, stream_id: int, stream: _Stream) -> None:
        """Forgets a stream that is answered or given up."""
        del self._streams[stream_id]
        self._blocked.pop(stream_id, None)
        if not stream.ended:
            # Answered before the client has said all: it may stop (RFC 9113, section 8.1).
            self._output.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        (self._over if stream.ended else self._given_up).append(stream_id)
        if not self._tableless:
            # Only now, since a client that makes a single call need not settle anew.
            self._tableless = True
            self._settle_down()
            self._unacknowledged += 1
            self._output.append(frames.settings({Setting.HEADER_TABLE_SIZE: 0}))
        if self._going_away:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._streams and self._last_accepted != MAX_WINDOW:
            self.closing = True


def _expect(condition: bool, text: str) -> None:
    if not condition:
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, text)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
