"""How an attacker speaks: sockets on which anything may be written, and that note how they end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_STREAM,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
)

TICK_SECONDS = 0.001
OPEN = "still open"
DEFAULT_WINDOW = 65_535

_W = TypeVar("_W", bound="Wire")


def told_when() -> tuple[float, float]:
    """Says on standard output that this process is ready; reads when to begin, and to end.

    By `time.perf_counter`, which is the same for all processes.
    """
    print("ready", flush=True)
    begins, ends = sys.stdin.readline().split()
    return float(begins), float(ends)


class Wire(asyncio.Protocol):
    """A socket. `ended` says how the server has ended it."""

    def __init__(self) -> None:
        self.ended = OPEN
        self.heard = b""
        """The first that came; `taken` is how much came in all."""
        self.taken = 0
        self._free = asyncio.Event()
        self._free.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)
        self.heard = self.heard or data

    def connection_lost(self, _: Exception | None) -> None:
        if self.ended == OPEN:
            self.ended = "closed"
        self._free.set()

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    @property
    def open(self) -> bool:
        return self.ended == OPEN

    def write(self, data: bytes) -> None:
        if self.open:
            self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it

    async def written(self) -> None:
        """Waits while the server reads too slowly for more."""
        await self._free.wait()

    def deafen(self) -> None:
        """Reads no more."""
        if self.open:
            self._transport.pause_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        """Closes it at once; that was not the server."""
        self.ended = "by the attacker"
        self._transport.abort()  # type: ignore[attr-defined]


class H2(Wire):
    """One that speaks HTTP/2, keeps the server's windows and obeys its settings."""

    def __init__(self, window: int = MAX_WINDOW, *, open_connection: bool = True) -> None:
        """`window` is what each answer may have before a WINDOW_UPDATE."""
        super().__init__()
        self._window = window
        self._open_connection = open_connection
        self._rest = b""
        self.stream_id = -1
        self.frames: Counter[int] = Counter()
        """What came, by its type."""
        self.answered = self.data_bytes = 0
        """Streams that ended, and what came as DATA."""
        self.largest = 0
        """The largest payload of a frame, of which 16,384 bytes were allowed."""
        self._stream_window = DEFAULT_WINDOW
        self.windows = defaultdict(lambda: self._stream_window, {0: DEFAULT_WINDOW})
        """What may be sent: on the connection (0), and on streams."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write(PREFACE + frames.settings({SettingId.INITIAL_WINDOW_SIZE: self._window}))
        if self._open_connection:
            self.write(frames.window_update(0, MAX_WINDOW - DEFAULT_WINDOW))

    def next_stream(self) -> int:
        self.stream_id += 2
        return self.stream_id

    def room(self, stream_id: int) -> int:
        """How much DATA may be sent there now."""
        return min(self.windows[0], self.windows[stream_id])

    def data(self, stream_id: int, payload: bytes, *, end: bool = False) -> None:
        """Sends DATA, and takes it from the windows."""
        for at in range(0, max(1, len(payload)), MAX_FRAME_SIZE):
            part = payload[at : at + MAX_FRAME_SIZE]
            last = END_STREAM if end and at + MAX_FRAME_SIZE >= len(payload) else 0
            self.windows[0] -= len(part)
            self.windows[stream_id] -= len(part)
            self.write(frames.frame(FrameType.DATA, last, stream_id, part))

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            self._heard(kind, flags, stream_id, data[at + 9 : stop])
            at = stop
        self._rest = data[at:]

    def _heard(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.frames[kind] += 1
        self.largest = max(self.largest, len(payload))
        if kind == FrameType.SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == SettingId.INITIAL_WINDOW_SIZE:
                    self._stream_window = int.from_bytes(payload[at + 2 : at + 6], "big")
            self.write(frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        elif kind == FrameType.PING and not flags & ACK:
            self.write(frames.ping(payload, ack=True))
        elif kind == FrameType.WINDOW_UPDATE:
            self.windows[stream_id] += int.from_bytes(payload, "big")
        elif kind == FrameType.GOAWAY and self.open:
            code = int.from_bytes(payload[4:8], "big")
            name = ErrorCode(code).name if code in set(ErrorCode) else str(code)
            self.ended = f"GOAWAY {name}"
        if kind == FrameType.DATA:
            self.data_bytes += len(payload)
        if kind in {FrameType.HEADERS, FrameType.DATA} and flags & END_STREAM:
            self.answered += 1


@dataclass
class Aim:
    """What is attacked, for how long, and what has come of it."""

    grpc_port: int
    http_port: int
    begins: float
    until: float
    context: ssl.SSLContext | None = None
    authority: Path | None = None
    """Whom to trust, if the gRPC port speaks TLS."""
    wires: list[Wire] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """What else is to be told."""
    faults: list[str] = field(default_factory=list)
    """What must not have been."""

    @property
    def left(self) -> float:
        return self.until - time.perf_counter()

    async def connect(self, wire: _W, port: int = 0) -> _W:
        """Connects a socket; one that is refused counts as closed."""
        loop = asyncio.get_running_loop()
        self.wires.append(wire)
        name = "localhost" if self.context and not port else None
        try:
            await loop.create_connection(
                lambda: wire,
                "127.0.0.1",
                port or self.grpc_port,
                ssl=None if port else self.context,
                server_hostname=name,
            )
        except OSError:
            wire.ended = "refused"
        return wire

    async def h2(self, window: int = MAX_WINDOW, *, open_connection: bool = True) -> H2:
        """A connection on which the attacker has greeted."""
        return await self.connect(H2(window, open_connection=open_connection))

    async def raw(self, *, http: bool = False) -> Wire:
        """A connection on which nothing was said."""
        return await self.connect(Wire(), self.http_port if http else self.grpc_port)

    async def due(self, rate: float) -> AsyncIterator[int]:
        """How many are due at such a rate, again and again until time is over."""
        start, sent = time.perf_counter(), 0
        while self.left > 0:
            number = int((time.perf_counter() - start) * rate) + 1 - sent
            if number > 0:
                sent += number
                yield number
            await asyncio.sleep(TICK_SECONDS)

    async def until_true(self, condition: object) -> None:
        """Polls for what the server is to do, as long as there is time."""
        assert callable(condition)
        while self.left > 0 and not condition():
            await asyncio.sleep(TICK_SECONDS)

    async def rest(self) -> None:
        """Does nothing until time is over."""
        await asyncio.sleep(max(0.0, self.left))

    def report(self) -> dict[str, object]:
        """How the sockets have ended, and the rest."""
        ends = Counter(wire.ended for wire in self.wires)
        largest = max((wire.largest for wire in self.wires if isinstance(wire, H2)), default=0)
        if largest > MAX_FRAME_SIZE:
            self.faults.append(f"a frame of {largest:,} bytes")
        return {"ends": dict(ends), "findings": self.findings, "faults": self.faults}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self.wires:
            with contextlib.suppress(AttributeError):
                wire.abort()
