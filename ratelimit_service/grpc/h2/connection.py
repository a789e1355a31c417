"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, calls out; answers in, bytes out.

RFC 9113 and gRPC's PROTOCOL-HTTP2.md. A connection is made of parts, each with one task:

    life           how the connection begins and ends
    budget         what the client costs, and what we keep for it
    open_streams   which streams are open, and how they end
    sending        answers, as the client's windows allow
    control        SETTINGS, PING, windows, and how the connection is left
    receiving      frames in the client's bytes, and the calls that they bring
    callers        who makes these calls

What must not live here: sockets, timers, tasks, and what a call means. Everything that a client can
make grow is bounded by `limits`.
"""

from __future__ import annotations

import sys

from ratelimit_service.grpc.h2.bodies import Bodies
from ratelimit_service.grpc.h2.budget import Budget, ConnectionFaultError, Memory
from ratelimit_service.grpc.h2.callers import Callers
from ratelimit_service.grpc.h2.control import Control
from ratelimit_service.grpc.h2.costs import RECORD_US
from ratelimit_service.grpc.h2.events import (
    Calls,
    Cancelled,
    Ended,
    Event,
    Message,
)
from ratelimit_service.grpc.h2.frames import PREFACE, ErrorCode
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.grpc.h2.life import Leaving, Life, Opening
from ratelimit_service.grpc.h2.limits import ACK_SECONDS, FRAME_SECONDS
from ratelimit_service.grpc.h2.open_streams import OpenStreams
from ratelimit_service.grpc.h2.receiving import Receiver
from ratelimit_service.grpc.h2.sending import Sender
from ratelimit_service.grpc.h2.streams import Methods

__all__ = ["Calls", "Cancelled", "Connection", "Ended", "Event", "Message", "Methods"]


class Connection:
    """The server's side of one connection.

    `receive` takes what the socket gave and returns what came of it; the answers' bytes, and what
    the protocol itself has to say, are collected until `take_output`. Once it is `closing` and
    the output is written, the socket is to be closed.
    """

    def __init__(self, methods: Methods, memory: Memory | None = None) -> None:
        """Calls of any other method are refused. `memory` is what all connections share."""
        self.life = life = Life()
        self.budget = budget = Budget(memory or Memory())
        self.output: list[bytes] = []
        """What is to be written."""
        headers = HeaderReader()
        self.callers = Callers(headers)
        self.streams = streams = OpenStreams(methods, life, budget, self.output)
        self.sender = sender = Sender(streams, life, budget, self.output)
        self._control = control = Control(sender, streams, headers, life, budget)
        self._bodies = Bodies(sender, streams, life, budget)
        self._receiver = Receiver(
            methods, sender, streams, control, headers, self.callers, life, budget, self._bodies
        )
        self._data = b""
        self._at = 0
        """The offset in the data at which the first unhandled frame begins."""
        self.cut_short = False
        """Whether complete frames wait for the next call of `receive`."""
        self._moved = 0
        """When the last frame was handled."""
        self._asked_to_settle = 0
        """Since when the client has had SETTINGS of ours to acknowledge."""
        self.congested = False
        """Whether the client reads too slowly. Then streaming calls hand on no messages."""

    @property
    def has_more(self) -> bool:
        """Whether complete frames, messages or answers wait for the next call of `receive`."""
        if self.life.closing:
            return False
        sender = self.sender
        if sender.opened or (self.streams.blocked and sender.window > 0):
            return True
        return self.cut_short or (bool(sender.resumable) and not self.congested)

    @property
    def unhandled(self) -> int:
        """How many bytes wait for the next call of `receive`."""
        return len(self._data) - self._at

    @property
    def greeted(self) -> bool:
        """Whether the client has begun to speak HTTP/2."""
        return self.life.settled

    @property
    def closing(self) -> bool:
        """Whether the socket is to be closed once the output is written."""
        return self.life.closing

    @property
    def reason(self) -> str:
        """Why the connection was ended, in a word."""
        return self.life.reason

    def receive(self, data: bytes, most: int = sys.maxsize) -> list[Event]:
        """Takes bytes from the socket; returns what they mean.

        It stops after work that is worth about `most` usual calls. Then it `has_more`, and another
        call, with or without new bytes, goes on.
        """
        events: list[Event] = []
        life, streams, sender = self.life, self.streams, self.sender
        if life.closing:
            self.cut_short = False
            sender.resumable.clear()
            return events
        at = 0
        if self._data:
            if data:
                data = self._data[self._at :] + data
            else:
                data, at = self._data, self._at
        start = at
        try:
            if sender.resumable or sender.opened or streams.blocked or not life.settled:
                at, most = self._before(data, at, most, events)
            if at or life.settled or life.opening is not Opening.PREFACE:
                at, self.cut_short = self._receiver.walk(data, at, most, events)
        except ConnectionFaultError as error:
            at = len(data)
            self.cut_short = False
            sender.resumable.clear()
            self.abandon(error.code, str(error), error.reason)
        if streams.withdrawn:
            events += map(Cancelled, streams.withdrawn)
            streams.withdrawn.clear()
        if at < len(data):
            self._keep(data, at, start)
        elif self._data:
            self._data, self._at = b"", 0
        return events

    def _before(self, data: bytes, at: int, most: int, events: list[Event]) -> tuple[int, int]:
        """What comes before the next frames; returns where these begin, and how much is left."""
        if self.sender.resumable and not self.congested:
            self._bodies.resume(events)
        if self.life.opening is Opening.PREFACE:
            at = self._read_preface(data)
        return at, self.sender.let_through(most)

    def _keep(self, data: bytes, at: int, start: int) -> None:
        """Keeps what is left of the data, of which the first frames began at `start`."""
        if self.cut_short:
            self._data, self._at = data, at
            return
        if at > start:
            self._moved = self.life.second
        self._data, self._at = data[at:], 0

    def _read_preface(self, data: bytes) -> int:
        """Where the preface ends; 0 if it is not complete."""
        end = len(data)
        if data[: len(PREFACE)] != PREFACE[:end]:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
        if end < len(PREFACE):
            return 0
        self.life.enter(Opening.SETTINGS)
        return len(PREFACE)

    def is_open(self, stream_id: int) -> bool:
        """Whether the client still waits for this answer."""
        return stream_id in self.streams.open and not self.life.closing

    def take_output(self) -> bytes:
        """Takes the bytes to write, which are then forgotten here."""
        output = b"".join(self.output)
        self.output.clear()
        return output

    def ping(self) -> None:
        """Asks the client for a sign of life. Any bytes are one."""
        self._control.ping()

    def shut_down(self) -> None:
        """Tells the client to open no more streams here; those that are open are finished."""
        self._control.shut_down()

    def charge_records(self, number: int) -> None:
        """Charges for TLS records of which nothing came, such as those that change the keys."""
        try:
            self.budget.spend(RECORD_US * number, "records")
        except ConnectionFaultError as error:
            self.abandon(error.code, str(error), error.reason)

    def abandon(self, code: ErrorCode, text: str, reason: str = "") -> None:
        """Ends the connection, and tells the client why."""
        self.sender.abandon(code, text, reason)

    def close(self) -> None:
        """Ends the connection without a word, as when its socket is gone."""
        if not self.life.closing:
            self.life.enter(Leaving.CLOSING)

    def forget(self) -> None:
        """Ends the record of a connection that is gone: answers that still come are not kept."""
        self.streams.forget()
        self.budget.forget()

    def tick(self) -> None:
        """To be called about once a second: forgets what was spent, and ends what takes too long.

        The waits are those of `limits`.
        """
        life, streams = self.life, self.streams
        self.budget.forgive()
        life.second += 1
        second = life.second
        if not life.unacknowledged:
            self._asked_to_settle = second
        for stream_id in list(streams.begun):
            streams.record(stream_id)  # which knows since when it waits
        if streams.unfinished:
            self._bodies.end_slow_calls(second)
        if not life.settled:
            return
        block_since = self._receiver.block_since
        if second - self._asked_to_settle > ACK_SECONDS:
            self.abandon(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS not acknowledged", "timeout")
        elif block_since is not None and second - block_since > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end", "timeout")
        elif not self._data or self.cut_short or self.congested:
            self._moved = second
        elif second - self._moved > FRAME_SECONDS:
            self.abandon(ErrorCode.ENHANCE_YOUR_CALM, "a frame without end", "timeout")
