"""Attacks on the HTTP port, and on what it shows."""

from __future__ import annotations

import asyncio

from benchmarks.abuse.attack import attack, call, request, settled
from benchmarks.abuse.wire import Aim, Wire
from ratelimit_service.model import Descriptor, Entry

MAX_PAGE_BYTES = 16_000_000


def post(size: int, content: bytes) -> bytes:
    """A POST that says so many bytes, and sends these."""
    return (
        b"POST /json HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % size
    ) + content


async def keep_posting(aim: Aim, content: bytes) -> None:
    """The same body on 20 new connections a second."""
    made = 0
    async for number in aim.due(20):
        for _ in range(number):
            wire = await aim.raw(http=True)
            wire.write(post(len(content), content))
            made += 1
    aim.findings.append(f"{made:,} made")


@attack("POST /json of 1 MiB, 10 a second", connections=0)
async def large_json(aim: Aim) -> None:
    entry = b'{"entries":[{"key":"route","value":"checkout"}]},'
    content = b'{"domain":"bench","descriptors":[' + entry * 21_000
    content = content[:-1] + b"]}"
    assert len(content) < 1 << 20
    wires: list[Wire] = []
    async for number in aim.due(10):
        for _ in range(number):
            wire = await aim.raw(http=True)
            wire.write(post(len(content), content))
            wires.append(wire)
    refused = sum(b" 400 " in wire.heard or b" 413 " in wire.heard for wire in wires)
    aim.findings.append(f"{refused} of {len(wires)} refused")


@attack("bodies for /json that end early, 500 a second", connections=0)
async def aborted_bodies(aim: Aim) -> None:
    made = 0
    async for number in aim.due(500):
        for _ in range(number):
            wire = await aim.raw(http=True)
            wire.write(post(60_000, b"{" + b" " * 20_000))
            if wire.open:
                await asyncio.sleep(0)
                wire.abort()
            made += 1
        aim.wires.clear()
    aim.findings.append(f"{made:,} made")


@attack("20 connections with 1,000 requests each, not waiting for answers", connections=0)
async def pipelined(aim: Aim) -> None:
    paths = (b"/metrics", b"/healthcheck", b"/rlconfig", b"/nowhere")
    heads = [b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in paths]
    wires = [await aim.raw(http=True) for _ in range(20)]
    for place, wire in enumerate(wires):
        wire.write(heads[place % len(heads)] * 1_000)
    await aim.rest()
    aim.findings.append(f"{sum(wire.taken for wire in wires) / 1e6:.1f} MB taken")


@attack("bodies in chunks of one byte, 20 a second", connections=0)
async def tiny_chunks(aim: Aim) -> None:
    heads = [
        b"%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" % line
        for line in (b"POST /json", b"GET /healthcheck")
    ]
    made = 0
    async for number in aim.due(20):
        for _ in range(number):
            wire = await aim.raw(http=True)
            wire.write(heads[made % 2] + b"1\r\n \r\n" * 40_000)
            made += 1
    aim.findings.append(f"{made:,} made")


@attack("bodies for /json of 43,000 empty objects, 20 a second", connections=0)
async def many_objects(aim: Aim) -> None:
    await keep_posting(aim, b"[" + b"{}," * 43_000 + b"{}]")


@attack("bodies for /json of 9,900 fractions, 20 a second", connections=0)
async def fractions(aim: Aim) -> None:
    await keep_posting(aim, b"[" + b"1.5," * 9_900 + b"1.5]")


@attack("slow-loris: 300 connections, a header each second", seconds=20.0, connections=0, ends=True)
async def slow_loris(aim: Aim) -> None:
    for _ in range(300):
        wire = await aim.raw(http=True)
        wire.write(b"GET /healthcheck HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    async for _ in aim.due(1):
        for wire in aim.wires:
            wire.write(b"X-Slow: yes\r\n")


@attack("detailed_metric with values of 60 KB, 200 a second; then /metrics", page=True)
async def detailed_metric(aim: Aim) -> None:
    wire = await settled(aim)
    async for number in aim.due(200):
        if aim.left < 1.0:
            break
        for _ in range(number):
            value = f"{wire.stream_id:08d}" + "x" * 60_000
            wire.write(call(wire.next_stream(), request(Descriptor((Entry("detail", value),)))))
        await wire.written()
        if not wire.open:
            wire = await settled(aim)
    page = await aim.raw(http=True)
    page.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    while page.open and aim.left > -5:
        await asyncio.sleep(0.01)
    aim.findings.append(f"a page of {page.taken / 1e6:.1f} MB")
    if page.taken > MAX_PAGE_BYTES:
        aim.faults.append("a page without bound")


@attack("100 connections that ask for a long /metrics at once, each second", page=True)
async def pages_together(aim: Aim) -> None:
    wire = await settled(aim)
    values = [request(Descriptor((Entry("detail", f"{at}"),))) for at in range(8_000)]
    for at in range(0, len(values), 500):
        wire.write(b"".join(call(wire.next_stream(), each) for each in values[at : at + 500]))
        until = wire.answered + 500
        await aim.until_true(lambda until=until: wire.answered >= until)
    wires = [await aim.raw(http=True) for _ in range(100)]
    async for _ in aim.due(1):
        for each in wires:
            each.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    aim.findings.append(f"{sum(each.taken for each in wires) / 1e6:.1f} MB taken")


@attack(
    "100 connections with a /json of 3,000 descriptors, answers not read",
    connections=0,
    lists=100,
)
async def unread_answers(aim: Aim) -> None:
    descriptors = ",".join(
        f'{{"entries":[{{"key":"detail","value":"{at}"}}]}}' for at in range(200)
    )
    asked = f'{{"domain":"bench","descriptors":[{descriptors}]}}'
    content = f"[{','.join([asked] * 14)}]".encode()
    assert len(content) < 1 << 17
    for _ in range(100):
        wire = await aim.raw(http=True)
        wire.deafen()
        wire.write(post(len(content), content))
    await aim.rest()
