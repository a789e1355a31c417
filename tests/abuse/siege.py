"""A server in this process, and what an attacker's bytes cost it: work of a turn, bytes held.

A turn is what the event loop does in one go. Its work is counted in lines of Python that run, which
are no more on a busy machine. What one line has C do is not seen: `make abuse` measures time.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType as Frame
from typing import Any, Self

import hpack

from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    PREFACE,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.server import H2Server
from ratelimit_service.model import Descriptor, Hit, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Store, Wanted, always
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import METHOD, SERVICE, encode_request
from tests.service.asking import Asking, Away

READ_BYTES = 262_144
LARGE_HITS = 100
QUIET_TURNS = 100
"""After so many turns in which nothing was done the server has done all that it will do."""

LIMITS_OF_MANY = 16

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000000}}
  - key: a
    descriptors:
      - key: b
        descriptors:
          - key: c
            descriptors: [{key: d, rate_limit: {unit: day, requests_per_unit: 1000000000}}]
  - key: many
    answer: {headers: ietf}
    rate_limits: [LIMITS]
  - {key: shown, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1000000000}}
""".replace(
    "LIMITS",
    ", ".join(f"{{window: {at + 1}h, requests_per_unit: 1000000}}" for at in range(LIMITS_OF_MANY)),
)
DECIDE = f"/{SERVICE}/{METHOD}"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def head(path: str, *more: tuple[str, str]) -> bytes:
    """A header block for a server that has been told to use no table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), ("te", "trailers")]
    return bytes(encoder.encode([*fields, ("content-type", "application/grpc"), *more]))


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def request(*descriptors: Descriptor) -> bytes:
    return prefixed(encode_request(Request("edge", descriptors)))


class Lines:
    """Counts the lines and calls of Python that run, if it is interpreted."""

    count = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, _frame: Frame, _event: str, _argument: object) -> Any:
        self.count += 1
        return self._trace


class Attacker:
    """A client after two answered calls, from which on header blocks stand for themselves."""

    def __init__(self, server: H2Server) -> None:
        self._socket, its = socket.socketpair()
        for each in (self._socket, its):
            each.setblocking(False)
        server.adopt(its)
        self._rest = b""
        self.stream_id = -1
        self.longest_turn: int | None = None
        """In lines, once it is 0: only then they are counted."""
        self.closed = False
        self.goaway: int | None = None
        """The error code with which the server has ended the connection."""
        self.stalled = False
        """Whether the server reads no more."""

    async def settle(self, settings: dict[SettingId, int]) -> None:
        ack = frames.frame(FrameType.SETTINGS, ACK, 0, b"")
        hello = request(Descriptor(()))
        await self.send(PREFACE + frames.settings({}) + ack + self.call(hello))
        await self.send(ack + self.call(hello))
        await self.send(frames.settings(settings))
        assert not self.closed

    def headers(self, block: bytes = head(DECIDE), *, end: bool = False) -> bytes:
        self.stream_id += 2
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frames.frame(FrameType.HEADERS, flags, self.stream_id, block)

    def call(self, message: bytes, block: bytes = head(DECIDE), *, end: bool = True) -> bytes:
        parts = [self.headers(block)]
        for at in range(0, len(message), MAX_FRAME_SIZE):
            last = END_STREAM if end and at + MAX_FRAME_SIZE >= len(message) else 0
            part = message[at : at + MAX_FRAME_SIZE]
            parts.append(frames.frame(FrameType.DATA, last, self.stream_id, part))
        return b"".join(parts)

    def push(self, data: bytes) -> None:
        """Sends what fits into the socket at once, and lets nothing turn."""
        self._socket.send(data)

    async def send(self, data: bytes) -> None:
        """Sends as fast as the server reads; then waits until it has nothing left to do."""
        at = quiet = 0
        while quiet < QUIET_TURNS and not self.closed:
            sent = 0
            with suppress(OSError):
                sent = self._socket.send(data[at : at + READ_BYTES]) if at < len(data) else 0
            at += sent
            busy = await self._turn()
            quiet = 0 if sent or busy else quiet + 1
        self.stalled = at < len(data)

    async def _turn(self) -> bool:
        """Lets the loop turn once; returns whether anything was done."""
        if self.longest_turn is None:
            await asyncio.sleep(0)
        else:
            with Lines() as lines:
                await asyncio.sleep(0)
            self.longest_turn = max(self.longest_turn, lines.count)
        return self.hears() or shared_scheduler().busy

    def hears(self) -> bool:
        """Takes what the server has said; returns whether it said anything."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.closed = not data
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > len(data):
                break
            if data[at + 3] == FrameType.GOAWAY:
                self.goaway = int.from_bytes(data[at + 13 : at + 17], "big")
            at = stop
        self._rest = data[at:]
        return True

    def close(self) -> None:
        self._socket.close()


Attack = Callable[["Attacker"], Awaitable[None]]


class Noting(Away):
    """Counters that note how often they are asked to count a batch."""

    waits = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.batches = 0
        self.kept: list[Callable[[], None]] | None = None
        """Where there is a list, large batches wait in it until they are called."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        self.batches += 1
        charge = partial(self._store.charge, requests, done, wanted, deadline_us, priority)
        if self.kept is not None and sum(map(len, requests)) > LARGE_HITS:
            self.kept.append(charge)
        else:
            charge()


class Siege:
    """One service, attacked again and again."""

    def __init__(self, directory: Path) -> None:
        stats, health = Stats(), Health()
        self._rules = Asking(directory, RULES).rules
        self.counters = Noting(MemoryStore(1_000_000, stats, health))
        self._planned = 0
        service = Service(self._snapshot, self.counters, Settings(), stats)
        self._server = H2Server("127.0.0.1:0", service, health)
        self._attackers: list[Attacker] = []

    def _snapshot(self) -> Snapshot:
        """The rules, which the service looks up to plan a batch."""
        self._planned += 1
        return self._rules.snapshot

    @property
    def steps(self) -> int:
        """How many batches were planned so far, and how many counted, in sum."""
        return self._planned + self.counters.batches

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for attacker in self._attackers:
            attacker.close()
        await self._server.stop(0)

    async def attacker(self, settings: dict[SettingId, int] | None = None) -> Attacker:
        attacker = Attacker(self._server)
        self._attackers.append(attacker)
        await attacker.settle(settings or {})
        return attacker

    async def held_bytes(self, attack: Attack, settings: dict[SettingId, int] | None = None) -> int:
        """What the service holds after an attack, less what it held before."""
        attacker = await self.attacker(settings)
        gc.collect()
        tracemalloc.start()
        try:
            await attack(attacker)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            attacker.close()
        return held
