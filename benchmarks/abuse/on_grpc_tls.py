"""Attacks on the gRPC port's TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from benchmarks.abuse.attack import TLS, attack
from benchmarks.abuse.wire import Aim


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
