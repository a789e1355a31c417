"""What an attack is, the table of all, and the bytes that several of them send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.abuse.wire import H2, Aim
from benchmarks.load import BLOCK, NO_TABLE, body
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    FrameType,
)
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.wire import encode_request

Act = Callable[[Aim], Awaitable[None]]


class Attack(NamedTuple):
    """One of them. `seconds` is how long it takes at least to show anything."""

    act: Act
    seconds: float = 0.0
    flags: tuple[str, ...] = ()
    """What the service is started with."""
    connections: int = 1
    """How many it has at once to the gRPC port."""
    kept: bool = False
    """Whether the client is honest after all, so that no connection may be ended."""
    ends: bool = False
    """Whether every connection must be ended."""
    page: bool = False
    """Whether a page of metrics is asked for."""
    lists: int = 0
    """How many lists of answers over HTTP it does not read."""
    restarts: int = 0
    """How often the service is told to restart meanwhile, one restart after the other."""


ATTACKS: dict[str, Attack] = {}
TLS = ("--tls",)


def attack(
    name: str,
    *,
    seconds: float = 0.0,
    flags: tuple[str, ...] = (),
    connections: int = 1,
    kept: bool = False,
    ends: bool = False,
    page: bool = False,
    lists: int = 0,
    restarts: int = 0,
) -> Callable[[Act], Act]:
    """Puts a function into the table."""

    def put(act: Act) -> Act:
        ATTACKS[name] = Attack(act, seconds, flags, connections, kept, ends, page, lists, restarts)
        return act

    return put


def head(path: str, *more: tuple[bytes, bytes]) -> bytes:
    """A header block of a gRPC call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return NO_TABLE + b"".join(literal(*each) for each in fields)


def headers(stream_id: int, block: bytes, *, end: bool = False) -> bytes:
    """A HEADERS frame."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frames.frame(FrameType.HEADERS, flags, stream_id, block)


def call(stream_id: int, message: bytes, block: bytes = BLOCK) -> bytes:
    """A whole call of a message that has its prefix."""
    parts = [headers(stream_id, block)]
    for at in range(0, len(message), MAX_FRAME_SIZE):
        last = END_STREAM if at + MAX_FRAME_SIZE >= len(message) else 0
        part = message[at : at + MAX_FRAME_SIZE]
        parts.append(frames.frame(FrameType.DATA, last, stream_id, part))
    return b"".join(parts)


def prefixed(message: bytes, *, packed: bool = False) -> bytes:
    """A message with gRPC's prefix."""
    return bytes((packed,)) + len(message).to_bytes(4, "big") + message


def request(*descriptors: Descriptor) -> bytes:
    return prefixed(encode_request(Request("bench", descriptors)))


async def settled(aim: Aim, *, open_connection: bool = True) -> H2:
    """A connection after its first two calls, from which on header blocks stand for themselves."""
    wire = await aim.h2(open_connection=open_connection)
    for number in (1, 2):
        wire.write(call(wire.next_stream(), body(1, 1)))
        await aim.until_true(lambda number=number: wire.answered >= number)
    return wire


async def flood(aim: Aim, rate: float, make: Callable[[H2], bytes]) -> None:
    """Writes what `make` makes at such a rate; connects anew when it is thrown out."""
    wire = await settled(aim)
    async for number in aim.due(rate):
        if not wire.open:
            wire = await settled(aim)
        wire.write(b"".join(make(wire) for _ in range(min(number, 1_000))))
        await wire.written()
