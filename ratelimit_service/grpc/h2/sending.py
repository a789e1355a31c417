"""Answers, as the client's windows allow (RFC 9113, section 5.2).

What must not live here: how frames of the client are read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final
from urllib.parse import quote

from ratelimit_service.grpc.h2 import frames, runs
from ratelimit_service.grpc.h2.budget import Budget, ConnectionFaultError
from ratelimit_service.grpc.h2.costs import RUN_BYTES, VISIT_US
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.grpc.h2.life import Leaving, Life, NoTable
from ratelimit_service.grpc.h2.limits import MAX_TEXT_BYTES
from ratelimit_service.grpc.h2.messages import PREFIX_BYTES
from ratelimit_service.grpc.h2.open_streams import OpenStreams
from ratelimit_service.grpc.h2.streams import Stream
from ratelimit_service.model.refusal import Answer

__all__ = ["OK_HEADERS", "Sender"]

_FLUSHED_AT_ONCE: Final = 16

OK_HEADERS: Final = b"\x88" + literal(b"content-type", b"application/grpc")
_OK_TRAILERS: Final = literal(b"grpc-status", b"0")
_NO_TABLE: Final = b"\x20"
"""Begins a header block and says that we use no dynamic table (RFC 7541, section 6.3)."""

_HEADERS_HEAD: Final = struct.pack(">xHBB", len(OK_HEADERS), FrameType.HEADERS, END_HEADERS)
_TRAILERS_HEAD: Final = struct.pack(
    ">xHBB", len(_OK_TRAILERS), FrameType.HEADERS, END_HEADERS | END_STREAM
)
_MOST_PACKED: Final = 512
_packers: Final[list[Callable[..., bytes] | None]] = [None] * _MOST_PACKED
"""What writes a whole answer, by the size of its message."""


def _packer(size: int) -> Callable[..., bytes]:
    """Writes HEADERS, a DATA frame with the message and its prefix, and HEADERS of trailers."""
    pack = struct.Struct(f">5sI{len(OK_HEADERS)}sxHxxIxI{size}s5sI{len(_OK_TRAILERS)}s").pack
    if size < _MOST_PACKED:
        _packers[size] = pack
    return pack


_MOST_OVER: Final = 256
"""Wider windows are remembered for the open calls, and for so many calls that are over."""


class Sender:
    """The half of a connection that answers."""

    def __init__(
        self, streams: OpenStreams, life: Life, budget: Budget, output: list[bytes]
    ) -> None:
        self._streams = streams
        self._life = life
        self._budget = budget
        self.output = output
        """What is to be written."""
        self.window = frames.DEFAULT_WINDOW
        """How much the client's window for the whole connection lets through."""
        self.first_window = frames.DEFAULT_WINDOW
        """The window of each new stream."""
        self._highest_credit = 0
        """The highest `credit` that any stream can have."""
        self.max_frame = MAX_FRAME_SIZE
        """The largest frame that the client takes."""
        self.opened: deque[int] = deque()
        """Streams that were shut when all windows opened, and were not looked at since."""
        self.resumable: deque[int] = deque()
        """Streaming calls whose last message is answered, so that the next may be handed on."""
        self.delivered = 0
        """Bytes of answers that windows have let through."""

    @property
    def blocked(self) -> bool:
        """Whether flow control holds an answer back."""
        return bool(self._streams.blocked or self._streams.shut)

    def abandon(self, code: ErrorCode, text: str, reason: str) -> None:
        """Ends the connection, and tells the client why. It is counted under the `reason`."""
        if not self._life.closing:
            self._life.enter(Leaving.CLOSING)
            self._life.reason = reason
            self.output.append(frames.goaway(self._streams.latest, code, text))

    # Answers

    def answer(self, stream_id: int, message: bytes) -> None:
        """Answers a unary call and ends it; does nothing for a call that is gone."""
        if not self.answer_whole([stream_id], [message]):
            self.send(stream_id, message)
            self.finish(stream_id)

    def answer_whole(self, stream_ids: list[int], answers: list[Answer], start: int = 0) -> int:
        """Answers whole calls without a record, each in one go, as long as windows allow.

        `answers[place]` is the answer to the first one. Returns how many were answered. The next
        one, if there is one, is to be answered by itself: it has a record, is too large or is gone,
        or its answer is no message.
        """
        if not self._life.steady or self._streams.blocked:  # what has waited comes first
            return 0
        streams, window, done = self._streams.open, self.window, 0
        most = min(self.first_window, MAX_FRAME_SIZE)
        try:
            for stream_id in stream_ids:
                message = answers[start + done]
                if not isinstance(message, bytes) or streams.get(stream_id, self) is not None:
                    break
                length = len(message)
                size = PREFIX_BYTES + length
                if size > most or size > window:
                    break
                pack = (_packers[length] if length < _MOST_PACKED else None) or _packer(length)
                self.output.append(
                    pack(
                        _HEADERS_HEAD,
                        stream_id,
                        OK_HEADERS,
                        size,
                        stream_id,
                        length,
                        message,
                        _TRAILERS_HEAD,
                        stream_id,
                        _OK_TRAILERS,
                    )
                )
                window -= size
                del streams[stream_id]
                done += 1
        finally:  # a fault with one of them must not cost those before it their answers
            self.window = window
            self._streams.finished.extend(stream_ids[:done])
            self._budget.credit(done)
        return done

    def refuse(self, stream_ids: Sequence[int]) -> None:
        """Refuses calls at once, because there is no time for them.

        The fault is ours, so later frames of the client on these streams cost it as little as if
        they had been answered.
        """
        streams, steady = self._streams, self._life.steady
        refused = [stream_id for stream_id in stream_ids if stream_id in streams.open]
        if not refused:
            return
        self.output.append(runs.refusals(refused))
        self._budget.credit(len(refused))
        for stream_id in refused:
            if steady and streams.open[stream_id] is None:
                del streams.open[stream_id]
                continue
            stream = streams.record(stream_id)
            if stream is not None:
                streams.close(stream_id, stream, reset_known=True)

    def send(self, stream_id: int, message: bytes) -> None:
        """Sends one message of an answer; the answer stays open."""
        stream = self._streams.record(stream_id)
        if stream is None:
            return
        if not stream.answered:
            stream.answered = True
            self.header_block(0, stream_id, OK_HEADERS)
        payload = b"\x00" + len(message).to_bytes(4, "big") + message
        self.queue(stream_id, stream, FrameType.DATA, payload)

    def finish(self, stream_id: int, code: int = 0, text: str = "") -> None:
        """Ends an answer with its gRPC status. A text that is too long is cut."""
        stream = self._streams.record(stream_id)
        if stream is None:
            return
        block = literal(b"grpc-status", b"%d" % code)
        if text:
            shortened = text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
            block += literal(
                b"grpc-message", quote(shortened, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode()
            )
        if not stream.answered:
            block = OK_HEADERS + block
        self.queue(stream_id, stream, FrameType.HEADERS, block, last=True)

    def queue(
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
        self._streams.keep(stream, len(payload))
        opened = bool(self._streams.blocked) and self.window > 0
        if not opened or stream.waiting[0][0] is not FrameType.DATA:
            self._flush(stream_id, stream)
        elif stream_id not in self._streams.shut:
            self._streams.blocked[stream_id] = stream  # behind those that have waited for longer
        if stream.waiting and self._budget.holds_too_much:
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
                self.header_block(end, stream_id, payload)
                sent = len(payload)
            else:
                own = self.first_window + stream.credit
                if own <= 0:
                    self._streams.blocked.pop(stream_id, None)
                    self._streams.shut[stream_id] = stream
                    return
                room = min(self.window, own, self.max_frame)
                if room <= 0:
                    self._streams.shut.pop(stream_id, None)
                    self._streams.blocked[stream_id] = stream
                    return
                part, rest = payload[:room], payload[room:]
                sent = len(part)
                self.window -= sent
                self.delivered += sent
                stream.credit -= sent
                self._frame(kind, 0 if rest else end, stream_id, part)
                if rest:
                    self._streams.keep(stream, -sent)
                    waiting[0] = (kind, rest, last)
                    continue
            self._streams.keep(stream, -sent)
            waiting.popleft()
            if last:
                self._budget.credit()
                self._streams.close(stream_id, stream)
                return
        self._streams.blocked.pop(stream_id, None)
        self._streams.shut.pop(stream_id, None)
        if stream.asking:
            stream.asking = False
            self.resumable.append(stream_id)

    def header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Sends a header block, in the order in which the client reads them.

        Our header blocks fit into the smallest frame size that a client must take, so there is no
        CONTINUATION.
        """
        if self._life.no_table is NoTable.DUE:
            self._life.enter(NoTable.SAID)
            block = _NO_TABLE + block
        self._frame(FrameType.HEADERS, END_HEADERS | flags, stream_id, block)

    def _frame(self, kind: FrameType, flags: int, stream_id: int, payload: bytes) -> None:
        self.output.append(frames.frame(kind, flags, stream_id, payload))

    # Windows

    def widen(self, increment: int) -> None:
        """Takes a wider window of the connection; `let_through` sends what has waited for it."""
        self.window += increment
        if self.window > MAX_WINDOW:
            raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")

    def widen_stream(self, stream_id: int, increment: int) -> None:
        """Takes a wider window of an open stream; those without a record need none for it."""
        streams, widened = self._streams, self._streams.widened
        stream = streams.open.get(stream_id)
        if stream is None:
            credit = widened[stream_id] = widened.get(stream_id, 0) + increment
            if len(widened) > _MOST_OVER + 2 * len(streams):
                streams.widened = dict(self._credits())
        else:
            stream.credit += increment
            credit = stream.credit
        self._highest_credit = max(self._highest_credit, credit)
        if self.first_window + credit > MAX_WINDOW:
            streams.reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream is not None and stream.waiting:
            self._flush(stream_id, stream)

    def _credits(self) -> Iterator[tuple[int, int]]:
        """How much wider the windows are of open streams without a record."""
        streams = self._streams
        for stream_id, credit in streams.widened.items():
            if stream_id in streams.open or stream_id in streams.begun:
                yield stream_id, credit

    def start_windows(self, size: int) -> None:
        """Takes the first window of all streams; it also changes that of open ones."""
        streams, wider = self._streams, size > self.first_window
        self.first_window = size
        if size + self._highest_credit > MAX_WINDOW:
            known = [stream.credit for stream in streams.open.values() if stream is not None]
            known += [credit for _, credit in self._credits()]
            self._budget.spend(VISIT_US * len(known), "windows")
            self._highest_credit = max(known, default=0)
            if size + self._highest_credit > MAX_WINDOW:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
        if wider and streams.shut:
            self._budget.spend(VISIT_US * len(streams.shut), "windows")
            self.opened = deque(streams.shut)

    def let_through(self, most: int) -> int:
        """Sends answers whose windows have opened; those that have waited longest come first.

        Each takes one of `most`, and long ones more. Returns how much of it is left.
        """
        opened, shut, blocked = self.opened, self._streams.shut, self._streams.blocked
        while opened and most > 0:
            stream_id = opened.popleft()
            most -= self._visit(stream_id, shut.get(stream_id))
        while blocked and self.window > 0 and most > 0:
            # A few at a time: to find a dictionary's first item again and again takes ever longer.
            for stream_id, stream in list(islice(blocked.items(), _FLUSHED_AT_ONCE)):
                if self.window <= 0 or most <= 0:
                    break
                most -= self._visit(stream_id, stream)
        return most

    def _visit(self, stream_id: int, stream: Stream | None) -> int:
        """Looks at an answer that has waited; returns how many frames that counts as."""
        before = self.delivered
        if stream is not None:
            self._flush(stream_id, stream)
        return 1 + (self.delivered - before) // RUN_BYTES
