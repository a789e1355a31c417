"""Attacks on the gRPC port by odd frames and headers, and by many connections and streams."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.abuse.attack import attack, call, flood, head, headers, prefixed, request, settled
from benchmarks.abuse.on_grpc import REFLECTION
from benchmarks.abuse.wire import H2, Aim
from benchmarks.load import BLOCK, NO_TABLE, body, body_of
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ErrorCode, FrameType, SettingId
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.wire import METHOD, SERVICE

UNKNOWN_FRAME = 0xBB
PRIORITY = (1).to_bytes(4, "big") + b"\x10"


@attack("PRIORITY and unknown frames, 50,000 a second")
async def odd_frames(aim: Aim) -> None:
    unknown = bytearray(frames.frame(FrameType.PING, 0, 0, b"12345678"))
    unknown[3] = UNKNOWN_FRAME
    odd = bytes(unknown) + frames.frame(FrameType.PRIORITY, 0, 3, PRIORITY)
    await flood(aim, 25_000, lambda _: odd)


@attack("calls that end with 200 trailers of their own, 200 a second")
async def trailers(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        more = b"".join(literal(b"x-%d" % each, b"%d" % stream_id) for each in range(200))
        return (
            headers(stream_id, BLOCK)
            + frames.frame(FrameType.DATA, 0, stream_id, body(1, 1))
            + headers(stream_id, NO_TABLE + more, end=True)
        )

    await flood(aim, 200, make)


TIMEOUTS = (b"99999999H", b"1x", b"", b"0n", b"9" * 300 + b"S", b"-1S", b"\xff\xfe", b"00000001u")
ENCODINGS = (b"gzip", b"deflate", b"identity", b"", b"x" * 1_000, b"gzip,gzip", b"\xff")


@attack("calls with absurd timeouts and encodings of their own, 2,000 a second")
async def absurd_headers(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        number = stream_id // 2
        block = head(
            f"/{SERVICE}/{METHOD}",
            (b"grpc-timeout", TIMEOUTS[number % len(TIMEOUTS)]),
            (b"grpc-encoding", ENCODINGS[number % len(ENCODINGS)]),
            (b"x-own", b"%d" % number),
        )
        return call(stream_id, body(1, 1), block)

    await flood(aim, 2_000, make)


@attack("10 connections with 900 open reflection streams each, asked in turn", connections=10)
async def open_reflection(aim: Aim) -> None:
    asked = prefixed(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())
    wires = [await settled(aim) for _ in range(10)]
    for wire in wires:
        wire.write(b"".join(headers(wire.next_stream(), REFLECTION) for _ in range(900)))
    async for number in aim.due(1_000):
        for wire in wires:
            first = wire.stream_id - 2 * (number % 900)
            if wire.open and wire.room(first) > len(asked):
                wire.data(first, asked)


def a_little(wire: H2, number: int) -> bytes:
    """Some of all that a connection can ask for."""
    settings = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 65_535 + number % 2})
    reset = wire.next_stream()
    descriptor = Descriptor((Entry("route", "x" * 3_000),))
    return b"".join(
        (
            frames.ping(b"12345678", ack=False),
            settings,
            frames.window_update(0, 1),
            frames.frame(FrameType.PRIORITY, 0, 3, PRIORITY),
            call(wire.next_stream(), body(1, 1)),
            headers(reset + 4, BLOCK) + frames.rst_stream(reset + 4, ErrorCode.CANCEL),
            call(reset + 6, body_of([("user", number << 8 | each) for each in range(24)])),
            call(reset + 8, request(descriptor)),
            call(reset + 10, prefixed(b"\xff\xff")),
        )
    )


async def together(aim: Aim, connections: int, make: Callable[[H2, int], bytes], step: int) -> None:
    """So many connections write at the same moment, each second; each uses so many streams."""
    wires = [await settled(aim) for _ in range(connections)]
    number = 0
    async for _ in aim.due(1):
        for wire in wires:
            number += 1
            wire.write(make(wire, number))
            wire.stream_id += step


@attack("300 connections with a little of everything at once, each second", connections=300)
async def little_of_everything(aim: Aim) -> None:
    await together(aim, 300, a_little, 8)


@attack("300 connections with 64 KB of an unfinished message at once, each second", connections=300)
async def read_together(aim: Aim) -> None:
    part = (65_536).to_bytes(5, "big") + bytes(60_000)

    def make(wire: H2, _: int) -> bytes:
        stream_id = wire.next_stream()
        cut = [part[at : at + 16_000] for at in range(0, len(part), 16_000)]
        data = b"".join(frames.frame(FrameType.DATA, 0, stream_id, each) for each in cut)
        return headers(stream_id, BLOCK) + data + frames.rst_stream(stream_id, ErrorCode.CANCEL)

    await together(aim, 300, make, 0)
