"""Attacks on the gRPC port's TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

from benchmarks.abuse.attack import TLS, attack, call, headers
from benchmarks.abuse.on_grpc import (
    continuations,
    header_lists,
    many_settings,
    pings,
    rapid_reset,
    window_updates,
)
from benchmarks.abuse.wire import Aim, Wire
from benchmarks.load import BLOCK, body
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ACK, PREFACE, FrameType
from tests.servers.tls_records import TlsRecords


@attack("TLS: connect and go, 500 a second", flags=TLS, connections=500)
async def tls_connect(aim: Aim) -> None:
    made = 0
    async for number in aim.due(500):
        for _ in range(number):
            wire = await aim.raw()
            if wire.open:
                wire.abort()
            made += 1
        aim.wires.clear()
    aim.findings.append(f"{made:,} made")


@attack(
    "TLS: 300 handshakes of 59 KB without end",
    seconds=8.0,
    flags=TLS,
    connections=300,
    ends=True,
)
async def tls_slow(aim: Aim) -> None:
    hello = b"\x01" + (59_000).to_bytes(3, "big") + b"\x03\x03" + bytes(58_000)
    records = [
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (hello[at : at + 16_000] for at in range(0, len(hello), 16_000))
    ]
    for _ in range(300):
        wire = await aim.raw()
        wire.write(b"".join(records))
    await aim.rest()


@attack("TLS: 300 handshakes begun at the same moment, each second", flags=TLS, connections=300)
async def tls_together(aim: Aim) -> None:
    assert aim.context is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = aim.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello, made = outgoing.read(), 0
    async for _ in aim.due(1):
        wires = [await aim.raw() for _ in range(300)]
        for wire in wires:
            wire.write(hello)
        made += len(wires)
        await asyncio.sleep(min(0.5, max(0.0, aim.left)))
        for wire in wires:
            wire.abort()
        aim.wires.clear()
    aim.findings.append(f"{made:,} begun")


async def greeted(aim: Aim) -> tuple[TlsRecords, Wire]:
    """A connection over TLS that has greeted, whose records are made here."""
    end = socket.socket()
    end.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(end, ("127.0.0.1", aim.grpc_port))
    assert aim.authority is not None
    records, wire = await TlsRecords.agreed(end, aim.authority), Wire()
    aim.wires.append(wire)
    await loop.create_connection(lambda: wire, sock=end)
    wire.write(records.data(PREFACE + frames.settings({})))
    return records, wire


async def records_each_second(aim: Aim, number: int, content: bytes, *, update: bool) -> None:
    """So many records at once, each second: that change the keys, or with a byte of this."""
    records, wire = await greeted(aim)
    sent: Iterator[int] = iter(())
    async for _ in aim.due(1):
        if not wire.open:
            records, wire = await greeted(aim)
            sent = iter(())
        made = []
        for _ in range(number):
            if update:
                made.append(records.key_update())
                continue
            byte = next(sent, None)
            if byte is None:
                sent = iter(content)
                byte = next(sent)
            made.append(records.data(bytes((byte,))))
        wire.write(b"".join(made))
        await wire.written()


@attack("TLS: 5,000 changes of keys at once, each second", flags=TLS)
async def key_updates(aim: Aim) -> None:
    await records_each_second(aim, 5_000, b"", update=True)


@attack("TLS: 10,000 records of a byte at once, each second", flags=TLS)
async def tiny_records(aim: Aim) -> None:
    part = frames.frame(FrameType.DATA, 0, 1, (65_536).to_bytes(5, "big") + bytes(16_000))
    await records_each_second(aim, 10_000, headers(1, BLOCK) + part * 3, update=False)


@attack("TLS: SETTINGS of 2,730 windows, 200 a second", flags=TLS)
async def settings_over_tls(aim: Aim) -> None:
    await many_settings(aim, 200)


@attack("TLS: rapid reset, 20,000 a second", flags=TLS)
async def resets_over_tls(aim: Aim) -> None:
    await rapid_reset(aim)


@attack("TLS: header lists of 16,100 indexed fields, 4 a second", flags=TLS)
async def header_lists_over_tls(aim: Aim) -> None:
    await header_lists(aim)


@attack("TLS: CONTINUATION without end, 20,000 a second", flags=TLS)
async def continuations_over_tls(aim: Aim) -> None:
    await continuations(aim)


@attack("TLS: PING, 50,000 a second", flags=TLS)
async def pings_over_tls(aim: Aim) -> None:
    await pings(aim)


@attack("TLS: 1-byte WINDOW_UPDATE on 900 blocked answers, 1,500 a second", flags=TLS)
async def window_updates_over_tls(aim: Aim) -> None:
    await window_updates(aim)


@attack("TLS: calls with a change of keys before each, 2,000 a second", flags=TLS)
async def key_updates_between_calls(aim: Aim) -> None:
    records, wire = await greeted(aim)
    wire.write(records.data(frames.frame(FrameType.SETTINGS, ACK, 0, b"")))
    stream_id = -1
    async for number in aim.due(2_000):
        if not wire.open:
            records, wire = await greeted(aim)
            wire.write(records.data(frames.frame(FrameType.SETTINGS, ACK, 0, b"")))
            stream_id = -1
        made = []
        for _ in range(min(number, 500)):
            stream_id += 2
            made += [records.key_update(), records.data(call(stream_id, body(1, 1)))]
        wire.write(b"".join(made))
        await wire.written()
