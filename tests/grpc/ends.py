"""Both ends of one connection, with nobody behind it: calls are taken, and answered by nobody."""

from __future__ import annotations

import asyncio
import time

from ratelimit_service.eventloop.turns import TURN_US, Turns
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.calls import METHODS
from ratelimit_service.grpc.h2.connection import Received
from ratelimit_service.grpc.h2.frames import PREFACE
from ratelimit_service.grpc.h2.overload import Allowance
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from tests.grpc.h2_client import Client, messages
from tests.grpc.taken_turns import take_turn

TURN_SECONDS = TURN_US / 1_000_000


class Calls:
    """Takes everything and answers nothing; keeps the messages, and may be slow."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.messages: list[bytes] = []
        self.seconds = seconds

    def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
        self.messages += [message for _, message in messages(received)]
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass

    def forget(self, protocol: Http2Protocol) -> None: ...

    wants_origins = False

    allowance = Allowance()

    def next_are_late(self, protocol: Http2Protocol) -> bool:
        return False

    def store_us(self, protocol: Http2Protocol) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Wire(asyncio.Transport):
    """A socket that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def kinds(self) -> list[int]:
        """The types of the frames written since the last call."""
        data, self.written, found = self.written, b"", []
        while data:
            found.append(data[3])
            data = data[9 + int.from_bytes(data[:3], "big") :]
        return found


def held_back() -> Turns:
    """Turns in which nothing is handled as it is read, as if much had been a moment ago."""
    turns = Turns()
    turns._lately_us = 1 << 62
    return turns


class Ends:
    """Both ends of a connection, at a time that the test chooses."""

    def __init__(
        self,
        *,
        greeted: bool = True,
        seconds: float = 0.0,
        turns: Turns | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.wire = Wire()
        self.calls = Calls(seconds)
        self.turns = turns or held_back()
        self.protocol = Http2Protocol(self.calls, METHODS, self.turns, lambda _: None, memory)
        self.started = asyncio.get_running_loop().time()
        self.protocol.connection_made(self.wire)
        if greeted:
            self.receive(PREFACE + frames.settings({}) + Client.ack())
            self.protocol.used_us = 0  # the machine may have stalled meanwhile
        self.wire.kinds()

    def receive(self, data: bytes) -> None:
        """Bytes come, and are handled."""
        self.protocol.data_received(data)
        while self.turns._waiting:
            take_turn(self.turns)

    def look(self, after: float, max_age: float = 0.0) -> list[int]:
        """What is said when so many seconds have passed."""
        self.protocol.look(self.started + after, max_age)
        return self.wire.kinds()
