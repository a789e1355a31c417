"""What frames mean, as Python's h2 sees it: the same calls, answers, resets and faults.

It is long because it is one test: what is sent, both ends, and where they may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import h2.events
import hpack
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.errors import BadRequestError
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls, Cancelled
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITY,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.limits import CONNECTION_WINDOW, MAX_STREAMS, STREAM_WINDOW
from ratelimit_service.grpc.h2.messages import only_message
from tests.examples import up_to
from tests.grpc.h2_client import HEADERS, Client

WIDER: Final = frames.window_update(0, 1 << 24)
"""The connection's window for answers is never short: who is first behind it is not compared."""

RESERVED: Final = 1 << 31
"""The bit of a stream's number that is to be ignored (RFC 9113, section 4.1)."""


def block(*extra: tuple[str, str]) -> bytes:
    """A header block that needs no table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return encoder.encode([*HEADERS, *extra])


USUAL: Final = block()
TRAILERS: Final = hpack.Encoder().encode([("x-end", "1")])
BLOCKS: Final = (
    USUAL,
    USUAL,
    block(("grpc-timeout", "20m")),
    block(("x-request-id", "4711")),
    block(("content-length", "9")),
    block(("grpc-encoding", "gzip")),
)

SIZES: Final = (0, 4, 4, 30, 117, 118, 119, 128, 129, 400)
"""Sizes of messages; some bounds of what is usual lie between them."""


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + bytes(size)


class Peer:
    """What both sides are asked after the same bytes of the client."""

    def __init__(self) -> None:
        self.calls: dict[int, bytes] = {}
        """The message of each call that was handed on."""
        self.cancelled: set[int] = set()
        self.sent: dict[int, int] = {}
        """How many bytes of DATA each answer has so far."""
        self.ended: set[int] = set()
        """Answers that are whole."""
        self.faulty = False
        """Whether the connection or a stream was ended for a fault of the client."""

    def state(self) -> tuple[object, ...]:
        """All of it but faults."""
        sent = {stream_id: size for stream_id, size in self.sent.items() if size}
        return self.calls, self.cancelled, sent, self.ended


class Theirs(Peer):
    """h2 as the server, which answers as ours does."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        its = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.HEADER_TABLE_SIZE: 0,
        }
        self.connection.local_settings = Settings(client=False, initial_values=its)
        self.connection.initiate_connection()
        self.connection.increment_flow_control_window(CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        self.bodies: dict[int, bytearray] = {}
        self.encodings: dict[int, bytes] = {}
        self.opened = {1, 3}
        self.sized: dict[int, int] = {}
        """How long calls are that say so."""
        self.waiting: dict[int, bytes] = {}
        """What is left to send of answers' messages."""
        self._settle()

    def _settle(self) -> None:
        """Comes to where our connection is after its first calls."""
        self.receive(PREFACE + frames.settings({}) + Client.ack())
        for stream_id in (1, 3):
            self.receive(frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, USUAL))
            self.receive(frames.frame(FrameType.DATA, END_STREAM, stream_id, message(0)))
            self.answer(stream_id, 0)
        self.receive(Client.ack() + WIDER)
        for found in (self.calls, self.ended, self.sent):
            found.clear()

    def unanswered(self) -> list[int]:
        """The calls that nobody has answered or given up."""
        return sorted(self.calls.keys() - self.ended - self.cancelled - self.waiting.keys())

    def receive_all(self, said: Sequence[bytes]) -> int:
        """Takes frames; returns how many there are before the first that is a fault."""
        for place, frame in enumerate(said):
            if stricter(frame, self):
                return place
            self.receive(frame)
            if self.faulty:
                return place
        return len(said)

    def receive(self, frame: bytes) -> None:
        self.connection.data_to_send()
        try:
            events = self.connection.receive_data(frame)
        except ProtocolError:
            self.faulty = True
            return
        said = parsed(self.connection.data_to_send() or b"")
        self.faulty = any(kind == FrameType.RST_STREAM for kind, *_ in said)
        if not self.faulty:
            for event in events:
                self._hear(event)
            self._flush()

    def _hear(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            assert event.stream_id is not None
            assert event.headers is not None
            self.bodies[event.stream_id] = bytearray()
            self.opened.add(event.stream_id)
            headers = {bytes(name): bytes(value) for name, value in event.headers}
            self.encodings[event.stream_id] = headers.get(b"grpc-encoding", b"")
            if b"content-length" in headers:
                self.sized[event.stream_id] = int(headers[b"content-length"])
        elif isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.bodies[event.stream_id] += event.data or b""
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            self._end(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None
            if event.stream_id in self.calls and event.stream_id not in self.ended:
                self.cancelled.add(event.stream_id)
            self.waiting.pop(event.stream_id, None)

    def _end(self, stream_id: int) -> None:
        body = self.bodies.pop(stream_id)
        try:
            self.calls[stream_id] = only_message(body, self.encodings[stream_id])
        except BadRequestError:
            self.connection.send_headers(stream_id, [(b":status", b"200")], end_stream=True)
            self.ended.add(stream_id)

    def answer(self, stream_id: int, size: int) -> None:
        self.connection.send_headers(stream_id, [(b":status", b"200")])
        self.waiting[stream_id] = message(size)
        self._flush()

    def _flush(self) -> None:
        for stream_id, rest in list(self.waiting.items()):
            part = rest[: max(0, self.connection.local_flow_control_window(stream_id))]
            self.connection.send_data(stream_id, part)
            self.sent[stream_id] = self.sent.get(stream_id, 0) + len(part)
            self.waiting[stream_id] = rest[len(part) :]
            if part == rest:
                del self.waiting[stream_id]
                self.connection.send_headers(stream_id, [(b"grpc-status", b"0")], end_stream=True)
                self.ended.add(stream_id)


class Ours(Peer):
    """Our connection."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.client = Client()
        self.client.settle()
        self.connection = self.client.connection
        self.most = most
        self.receive(WIDER)

    def receive(self, data: bytes) -> None:
        self._hear(data)
        while self.connection.has_more:
            self._hear(b"")
        self._listen()

    def _hear(self, data: bytes) -> None:
        for event in self.connection.receive(data, self.most):
            if isinstance(event, Calls):
                self.calls |= zip(event.stream_ids, event.messages, strict=True)
            elif isinstance(event, Cancelled) and event.stream_id in self.calls:
                self.cancelled.add(event.stream_id)

    def _listen(self) -> None:
        for kind, flags, stream_id, payload in self.client.said():
            if kind == FrameType.DATA:
                self.sent[stream_id] = self.sent.get(stream_id, 0) + len(payload)
            if kind in (FrameType.DATA, FrameType.HEADERS) and flags & END_STREAM:
                self.ended.add(stream_id)
            if kind in (FrameType.RST_STREAM, FrameType.GOAWAY):
                self.faulty = True

    def answer(self, stream_id: int, size: int) -> None:
        self.connection.sender.answer(stream_id, bytes(size))
        self._listen()


def parsed(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of each frame."""
    found = []
    while data:
        stop = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:stop]))
        data = data[stop:]
    return found


@dataclass
class Script:
    """A client's frames. It knows which streams it has begun, and may say wrong things of them."""

    stream_id: int = 3
    begun: list[int] = field(default_factory=list)
    """Streams with headers and no end."""
    said: list[bytes] = field(default_factory=list)
    """Frames, one by one."""

    def say(self, kind: FrameType, flags: int, stream_id: int, payload: bytes) -> None:
        self.said.append(frames.frame(kind, flags, stream_id, payload))

    def some(self, number: int) -> int:
        """A stream that is open, or was; of some numbers the next one."""
        return max(1, self.stream_id + 2 * (number == 47) - 2 * (number % 8))

    def one_begun(self, number: int) -> int:
        """A stream of a call that goes on, which is begun if there is none."""
        if not self.begun:
            self.headers(number, 0)
        return self.begun[number % len(self.begun)]

    def headers(self, number: int, size: int) -> None:
        self.stream_id += 2
        self.begun.append(self.stream_id)
        self.say(FrameType.HEADERS, END_HEADERS, self.stream_id, BLOCKS[number % len(BLOCKS)])

    def whole(self, number: int, size: int) -> None:
        self.headers(number, size)
        self.last(-1, size)

    def last(self, number: int, size: int) -> None:
        """The whole message of a call, or the rest of it."""
        stream_id = self.one_begun(number)
        self.say(FrameType.DATA, END_STREAM, stream_id, message(size))
        self._end(stream_id)

    def no_message(self, number: int, size: int) -> None:
        """A body that is no message: it is packed, or says another length."""
        stream_id, body = self.one_begun(number), bytearray(message(size))
        body[(0, 4)[number & 1]] ^= 1
        self.say(FrameType.DATA, END_STREAM, stream_id, bytes(body))
        self._end(stream_id)

    def narrow(self, number: int, size: int) -> None:
        """A call whose answer may be longer than its window, which is wider than others'."""
        self.first_window(number % 4, size)
        self.headers(0, size)
        stream_id = self.stream_id
        wider = frames.window_update(stream_id, 7 + number % 40)
        if number & 1:
            self.said.append(wider)
        self.last(-1, size)
        if not number & 1:
            self.said.append(wider)

    def _end(self, stream_id: int) -> None:
        if stream_id in self.begun:
            self.begun.remove(stream_id)

    def parts(self, number: int, size: int) -> None:
        """A message in two or three parts, the last of which may be empty."""
        stream_id, body = self.one_begun(number), message(size)
        at = number % (len(body) + 1)
        self.say(FrameType.DATA, 0, stream_id, body[:at])
        if number % 3:
            self.say(FrameType.DATA, END_STREAM, stream_id, body[at:])
        else:
            self.say(FrameType.DATA, 0, stream_id, body[at:])
            self.say(FrameType.DATA, END_STREAM, stream_id, b"")
        self._end(stream_id)

    def part(self, number: int, size: int) -> None:
        """A part of which no other part knows: bodies may be no messages."""
        self.say(FrameType.DATA, 0, self.one_begun(number), message(size)[: number % 11])

    def padded(self, number: int, size: int) -> None:
        stream_id, padding = self.one_begun(number), number % 7
        payload = bytes((padding,)) + message(size) + bytes(padding)
        flags = PADDED | (END_STREAM if number & 1 else 0)
        self.say(FrameType.DATA, flags, stream_id, payload)
        if number & 1:
            self._end(stream_id)

    def trailers(self, number: int, size: int) -> None:
        stream_id = self.one_begun(number)
        flags = END_HEADERS | (END_STREAM if number < 44 else 0)
        self.say(FrameType.HEADERS, flags, stream_id, TRAILERS)
        self._end(stream_id)

    def in_pieces(self, number: int, size: int) -> None:
        """HEADERS with what frames of headers may have, and CONTINUATION."""
        self.stream_id += 2
        stream_id, payload, flags = self.stream_id, USUAL, 0
        if number & 1:
            # On itself it may not depend.
            other = stream_id if number == 17 else 0
            payload, flags = other.to_bytes(4, "big") + b"\5" + payload, PRIORITY
        if number & 2:
            payload, flags = b"\3" + payload + bytes(3), flags | PADDED
        at = len(payload)
        if number & 4 and not number & 2:
            at = 6 + number % 20
        whole, ends = at == len(payload), END_STREAM if number & 8 else 0
        first = flags | ends | (END_HEADERS if whole else 0)
        self.say(FrameType.HEADERS, first, stream_id, payload[:at])
        if not whole:
            if number == 47:
                self.say(FrameType.PING, 0, 0, bytes(8))
            self.say(FrameType.CONTINUATION, 0, stream_id, payload[at : at + 4])
            self.say(FrameType.CONTINUATION, END_HEADERS, stream_id, payload[at + 4 :])
        if not ends:
            self.begun.append(stream_id)

    def skipped(self, number: int, size: int) -> None:
        """Leaves out some streams, and may open one of them or an even one all the same."""
        self.stream_id += 2 * (number % 3)
        before = self.stream_id
        self.whole(number, size)
        if number == 36:
            self.say(FrameType.HEADERS, END_HEADERS, before, USUAL)
        if number == 37:
            even = self.stream_id + 1
            self.say(FrameType.HEADERS, END_HEADERS, even, USUAL)
            self.say(FrameType.DATA, END_STREAM, even, message(size))

    def reset(self, number: int, size: int) -> None:
        stream_id = self.one_begun(number) if size & 1 else self.some(number)
        self.say(FrameType.RST_STREAM, 0, stream_id, ErrorCode.CANCEL.to_bytes(4, "big"))
        self._end(stream_id)

    def wider(self, number: int, size: int) -> None:
        stream_id = (0, self.some(number), self.one_begun(number))[number % 3]
        increment = {46: 0, 45: MAX_WINDOW, 44: 7 | RESERVED}.get(number, 7 + size)
        self.say(FrameType.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))

    def first_window(self, number: int, size: int) -> None:
        wide = MAX_WINDOW if number == 47 else (0, 5, 20, 60, 65_535)[number % 5]
        self.said.append(frames.settings({SettingId.INITIAL_WINDOW_SIZE: wide}))

    def reserved(self, number: int, size: int) -> None:
        """A call whose streams' numbers have the bit that is to be ignored."""
        self.stream_id += 2
        stream_id = self.stream_id
        first, second = (RESERVED if number & bit else 0 for bit in (1, 2))
        self.say(FrameType.HEADERS, END_HEADERS, stream_id | first, USUAL)
        self.say(FrameType.DATA, END_STREAM, stream_id | second, message(size))

    def other(self, number: int, size: int) -> None:
        """What belongs to no call, or breaks a rule."""
        some = self.some(size)
        odd: list[bytes] = [
            frames.frame(FrameType.PRIORITY, 0, some, bytes(4) + b"\5"),
            frames.frame(FrameType.PRIORITY, 0, some, some.to_bytes(4, "big") + b"\5"),
            frames.settings({SettingId.MAX_FRAME_SIZE: 16_384 if size else 1}),
            frames.settings({SettingId.HEADER_TABLE_SIZE: 4_096}),
            frames.frame(FrameType.RST_STREAM, 0, some, bytes(5)),
            frames.frame(FrameType.PING, 0, 0, bytes(7)),
            frames.frame(FrameType.CONTINUATION, END_HEADERS, some, b""),
            frames.frame(FrameType.DATA, PADDED, some, b"\5abc"),
            frames.frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(3)),
            frames.frame(FrameType.PUSH_PROMISE, END_HEADERS, some, bytes(4)),
            frames.frame(FrameType.HEADERS, END_HEADERS, 2, USUAL),
            frames.frame(FrameType.HEADERS, END_HEADERS, self.stream_id + 2, b"\xff\xff"),
        ]
        ping = frames.ping(bytes(8), ack=False)
        self.said.append(odd[number] if number < len(odd) else ping)


STEPS: Final[tuple[Callable[[Script, int, int], None], ...]] = (
    Script.whole,
    Script.whole,
    Script.headers,
    Script.headers,
    Script.last,
    Script.narrow,
    Script.no_message,
    Script.parts,
    Script.part,
    Script.padded,
    Script.trailers,
    Script.in_pieces,
    Script.skipped,
    Script.reset,
    Script.wider,
    Script.first_window,
    Script.reserved,
    Script.other,
)

Step = tuple[int, int, int]


def stricter(frame: bytes, theirs: Theirs) -> bool:
    """Whether this is a fault for us, and none for h2."""
    ((kind, _, stream_id, _),) = parsed(frame)
    if kind == FrameType.RST_STREAM:
        # Nobody has opened the stream (RFC 9113, section 5.1).
        return stream_id > theirs.connection.highest_inbound_stream_id
    if kind == FrameType.HEADERS and stream_id in theirs.bodies:
        # Content-length holds for calls with trailers as well (section 8.1.1).
        size = len(theirs.bodies[stream_id])
        return theirs.sized.get(stream_id, size) != size
    return False


def more_lenient(frame: bytes, ours: Ours, theirs: Theirs) -> bool:
    """Whether this is a fault for h2, and may be none for us."""
    ((kind, flags, stream_id, payload),) = parsed(frame)
    if kind == FrameType.DATA:
        # We compare content-length with what has come once all has. And a stream that the client
        # has left out may be one that we have forgotten.
        early = stream_id in theirs.sized and not flags & END_STREAM
        return early or stream_id not in theirs.opened
    if kind == FrameType.WINDOW_UPDATE:
        # The highest bit is to be ignored (RFC 9113, section 6.9), and h2 takes it for a number's.
        # What is said of the window of a stream that is over means nothing.
        over = stream_id > 0 and not ours.connection.is_open(stream_id)
        return over or payload[0] & 0x80 != 0
    return False


@settings(max_examples=up_to(600), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.integers(0, len(STEPS) - 1), st.integers(0, 47), st.sampled_from(SIZES)
                ),
                max_size=6,
            ),
            st.lists(st.integers(1, 120), max_size=4),
            st.lists(st.tuples(st.integers(0, 9), st.sampled_from((0, 3, 30, 200))), max_size=3),
        ),
        max_size=5,
    ),
    st.sampled_from((1, 2, 5, 1_000)),
)
def test_h2_hears_the_same(
    rounds: Sequence[tuple[Sequence[Step], Sequence[int], Sequence[tuple[int, int]]]], most: int
) -> None:
    """Whatever a client says, in reads of whatever size, h2 hears the same calls and answers.

    Each round is what is said, where reads end, and which calls are answered then, and how long.
    All is compared up to the first fault; that must be one for both.
    """
    ours, theirs, script = Ours(most), Theirs(), Script()
    for steps, reads, answers in rounds:
        script.said.clear()
        for step, number, size in steps:
            STEPS[step](script, number, size)
        valid = theirs.receive_all(script.said)
        data = b"".join(script.said[:valid])
        for at, size in zip(accumulate(reads, initial=0), [*reads, len(data)], strict=True):
            ours.receive(data[at : at + size])

        assert not ours.faulty
        assert ours.state() == theirs.state()
        if valid < len(script.said):
            faulty = script.said[valid]
            ours.receive(faulty)
            assert ours.faulty or more_lenient(faulty, ours, theirs), parsed(faulty)
            return

        for place, size in answers:
            waiting = theirs.unanswered()
            if waiting:
                stream_id = waiting[place % len(waiting)]
                ours.answer(stream_id, size)
                theirs.answer(stream_id, size)
        if not answers:
            ours.connection.tick()
        assert ours.state() == theirs.state()
