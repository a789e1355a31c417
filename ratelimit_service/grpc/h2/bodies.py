"""Bodies of calls that did not come whole: what is kept of them, and when they are complete.

What must not live here: frames and header blocks (`receiving`), and how calls are answered.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Budget
from ratelimit_service.grpc.h2.costs import (
    FRAME_US,
    PART_US,
    REFLECT_US,
    RESET_US,
    SMALL_PART_BYTES,
    UNPACK_US,
)
from ratelimit_service.grpc.h2.events import Ended, Event, Message, add_calls
from ratelimit_service.grpc.h2.fields import MAX_LIST_BYTES
from ratelimit_service.grpc.h2.frames import (
    END_STREAM,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.head import Head
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.grpc.h2.life import Life
from ratelimit_service.grpc.h2.limits import (
    BODY_SECONDS,
    IDLE_STREAM_SECONDS,
    MAX_MESSAGE_BYTES,
    STREAM_BYTES,
    STREAM_WINDOW,
)
from ratelimit_service.grpc.h2.messages import (
    PACKED,
    PREFIX_BYTES,
    first_message,
    only_message,
)
from ratelimit_service.grpc.h2.open_streams import OpenStreams
from ratelimit_service.grpc.h2.sending import OK_HEADERS, Sender
from ratelimit_service.grpc.h2.streams import Readable, Stream

__all__ = ["Bodies"]

_ENDED_AT_ONCE: Final = 100
"""So many calls that have taken too long are ended at once; the next ones a second later."""

_WRONG_TYPE: Final = b"this port speaks gRPC: content-type must be application/grpc\n"


class Bodies:
    """What a client's calls carry that did not come whole at once."""

    def __init__(
        self,
        sender: Sender,
        streams: OpenStreams,
        life: Life,
        budget: Budget,
    ) -> None:
        self._sender = sender
        self._output = sender.output
        self._streams = streams
        self._life = life
        self._budget = budget

    def begin(
        self, stream_id: int, stream: Stream, flags: int, head: Head, events: list[Event]
    ) -> None:
        """Opens a stream for a new call."""
        stream.since = self._life.second
        stream.ended = flags & END_STREAM != 0
        self._streams.open[stream_id] = stream
        self._streams.keep(stream, STREAM_BYTES)
        if not stream.ended:
            self._streams.unfinished[stream_id] = stream
        if head.oversized:
            stream.readable = Readable.ENOUGH
            self._budget.spend(stream.cost_us, "headers")
            text = f"the call has more headers than the {MAX_LIST_BYTES} bytes that are announced"
            self._sender.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)
        elif self._budget.holds_too_much:
            self._refuse_for_memory(stream_id, stream)
        elif stream.ended:
            self.end(stream_id, stream, events)
        elif stream.readable is Readable.UNKNOWN:
            # At once: a streaming client may say nothing more before it has an answer.
            self._refuse(stream_id, stream)

    def take(
        self,
        stream_id: int,
        stream: Stream,
        payload: bytes,
        size: int,
        flags: int,
        events: list[Event],
    ) -> None:
        """Takes a DATA frame, which is `size` bytes with its padding."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._streams.reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if not flags & END_STREAM:
            if not payload:
                self._budget.spend(FRAME_US, "frames")
            elif len(payload) < SMALL_PART_BYTES:
                self._budget.spend(PART_US, "parts")
        stream.received += len(payload)
        if stream.readable is Readable.YES:
            stream.body += payload
            self._streams.keep(stream, len(payload))
            if self._budget.holds_too_much and not flags & END_STREAM:
                self._refuse_for_memory(stream_id, stream)
                return
        if flags & END_STREAM:
            self.end(stream_id, stream, events)
        else:
            self._more(stream_id, stream, events)

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
            add_calls(events, stream.head, [stream_id], [message], stream.origins())
        else:
            self._open_window(stream_id, stream)

    def end(self, stream_id: int, stream: Stream, events: list[Event]) -> None:
        """Hands on a unary call, or the end of a stream's messages: the client has sent all."""
        stream.ended = True
        self._streams.unfinished.pop(stream_id, None)
        length = stream.head.content_length
        if length is not None and length != stream.received:
            self._streams.reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if stream.readable is not Readable.YES:
            if stream.readable is not Readable.ENOUGH:
                self._refuse(stream_id, stream)
            return
        if stream.streaming:
            self._next_message(stream_id, stream, events)
            return
        if stream.body[:1] == PACKED:
            self._budget.worked_us += UNPACK_US
        try:
            message = only_message(stream.body, stream.head.encoding)
        except BadRequestError as error:
            self._sender.finish(stream_id, error.code, str(error))
            return
        self._let_go(stream)
        add_calls(events, stream.head, [stream_id], [message], stream.origins())

    def _let_go(self, stream: Stream) -> None:
        """Forgets a body that is handed on."""
        self._streams.keep(stream, -len(stream.body))
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
            self._sender.finish(stream_id, error.code, str(error))
            return
        self._streams.keep(stream, len(stream.body) - before)
        if message is None:
            if stream.ended:
                events.append(Ended(stream_id))
                return
        else:
            stream.since = self._life.second
            stream.asking = True
            self._budget.worked_us += REFLECT_US
            events.append(Message(stream_id, stream.head.path, message))
        self._open_window(stream_id, stream)

    def _open_window(self, stream_id: int, stream: Stream) -> None:
        """Opens a stream's window again for what is not kept: messages handed on, and padding."""
        room = stream.receive_window + len(stream.body)
        if room < STREAM_WINDOW // 2 and not stream.ended:
            stream.receive_window += STREAM_WINDOW - room
            self._output.append(frames.window_update(stream_id, STREAM_WINDOW - room))

    def resume(self, events: list[Event]) -> None:
        """Goes on with a streaming call whose last message is answered."""
        stream_id = self._sender.resumable.popleft()
        stream = self._streams.open.get(stream_id)
        if stream is not None and stream.readable is Readable.YES:
            self._next_message(stream_id, stream, events)

    def _refuse(self, stream_id: int, stream: Stream) -> None:
        """Answers a request that is not a gRPC call that we can read."""
        self._budget.spend(stream.cost_us, "headers")
        if stream.readable is Readable.NO_GRPC:
            stream.readable = Readable.ENOUGH
            block = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
            stream.answered = True
            self._sender.header_block(0, stream_id, block)
            self._sender.queue(stream_id, stream, FrameType.DATA, _WRONG_TYPE, last=True)
        elif stream.readable is Readable.UNKNOWN:
            stream.readable = Readable.ENOUGH
            text = f"unknown method {stream.head.path.decode('latin-1')}"
            self._sender.finish(stream_id, StatusCode.UNIMPLEMENTED, text)
        else:
            block = literal(b"grpc-accept-encoding", b"identity,gzip")
            stream.answered = True
            self._sender.header_block(0, stream_id, OK_HEADERS + block)
            encoding = stream.head.encoding.decode("latin-1")
            text = f"grpc-encoding {encoding} is not supported"
            self._sender.finish(stream_id, StatusCode.UNIMPLEMENTED, text)

    def _refuse_for_memory(self, stream_id: int, stream: Stream) -> None:
        stream.readable = Readable.ENOUGH
        self._let_go(stream)
        self._budget.spend(RESET_US + stream.cost_us, "memory")
        text = "too much of this connection's calls waits to be finished"
        self._sender.finish(stream_id, StatusCode.RESOURCE_EXHAUSTED, text)

    def end_slow_calls(self, second: int) -> None:
        """Ends calls that take too long, but so many at once that it takes little time."""
        ended = 0
        for stream_id, stream in list(self._streams.unfinished.items()):
            most = IDLE_STREAM_SECONDS if stream.streaming else BODY_SECONDS
            refused = stream.readable is Readable.ENOUGH
            if second - stream.since > most and not (stream.asking or refused):
                ended += 1
                if ended > _ENDED_AT_ONCE:
                    break
                stream.readable = Readable.ENOUGH
                text = f"the client has sent nothing whole for {most} s"
                self._sender.finish(stream_id, StatusCode.DEADLINE_EXCEEDED, text)
                self._streams.withdrawn.append(stream_id)
