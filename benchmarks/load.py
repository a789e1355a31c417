"""A load generator for gRPC servers of one unary method: closed loop, many different requests.

It writes and reads HTTP/2 frames itself, so that one core of it outruns one core of a server.
Run by `run.py` as a process of its own; prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

import uvloop

from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.frames import END_HEADERS, END_STREAM, PREFACE, FrameType
from ratelimit_service.transport.h2.headers import literal
from ratelimit_service.wire import METHOD, SERVICE, encode_request

CONNECTIONS = 4
IN_FLIGHT = 50
KEYS = 1_000_000
PREPARED = 200_000
"""Requests made before the clock starts; then they are used again from the start."""

# The leading byte tells the server that no dynamic table is used; it may stand in any block.
BLOCK = b"\x20" + b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/{METHOD}".encode()),
        (b":authority", b"ratelimit"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"20m"),
    )
)


def body(first: int, second: int) -> bytes:
    """A request of two descriptors of two entries each."""
    descriptors = tuple(
        Descriptor((Entry("route", "checkout"), Entry(key, f"customer-{number:09d}")))
        for key, number in (("user", first), ("tenant", second))
    )
    message = encode_request(Request("bench", descriptors))
    return b"\0" + len(message).to_bytes(4, "big") + message


def hot() -> Iterator[bytes]:
    """One key."""
    only = body(1, 1)
    while True:
        yield only


def uniform() -> Iterator[bytes]:
    """A million keys, each as likely, the same in both descriptors."""
    chance = random.Random(1)
    prepared = [body(number, number) for number in chance.choices(range(KEYS), k=PREPARED)]
    while True:
        yield from prepared


def zipf() -> Iterator[bytes]:
    """A million keys by Zipf's law, chosen for each descriptor by itself."""
    chance = random.Random(1)
    weights = [1 / rank for rank in range(1, KEYS + 1)]
    pairs = zip(*(chance.choices(range(KEYS), weights, k=PREPARED) for _ in range(2)), strict=True)
    prepared = [body(first, second) for first, second in pairs]
    while True:
        yield from prepared


SHAPES: dict[str, Callable[[], Iterator[bytes]]] = {"hot": hot, "uniform": uniform, "zipf": zipf}


class Caller(asyncio.Protocol):
    """One connection that always has `IN_FLIGHT` calls under way."""

    def __init__(self, bodies: Iterator[bytes], latencies: list[float]) -> None:
        self._bodies = bodies
        self._latencies = latencies
        self._stream_id = 1
        self._sent: dict[int, float] = {}
        self._rest = b""
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        window = {frames.Setting.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
        greeting = PREFACE + frames.settings(window)
        self._write(greeting + frames.window_update(0, frames.MAX_WINDOW - 65_535))
        self._call(IN_FLIGHT)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it

    def _call(self, count: int) -> None:
        now = time.perf_counter()
        out = []
        for _ in range(count):
            stream_id = self._stream_id
            self._stream_id += 2
            self._sent[stream_id] = now
            out.append(frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, BLOCK))
            out.append(frames.frame(FrameType.DATA, END_STREAM, stream_id, next(self._bodies)))
        self._write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, end, done = 0, len(data), 0
        now = time.perf_counter()
        while end - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind <= FrameType.HEADERS and flags & END_STREAM:
                stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
                self._latencies.append(now - self._sent.pop(stream_id))
                done += 1
            elif kind == FrameType.SETTINGS and not flags:
                self._write(frames.frame(FrameType.SETTINGS, frames.ACK, 0, b""))
            elif kind == FrameType.PING and not flags:
                self._write(frames.ping(data[at + 9 : stop], ack=True))
            elif kind == FrameType.GOAWAY or (
                # grpcio follows its trailers with a reset that says NO_ERROR.
                kind == FrameType.RST_STREAM and any(data[at + 9 : stop])
            ):
                raise SystemExit(f"load.py: the server gave up: {data[at:stop]!r}")
            at = stop
        self._rest = data[at:]
        if done:
            self.answered += done
            self._call(done)


async def main(port: int, shape: str, seconds: float) -> None:
    bodies = SHAPES[shape]()
    next(bodies)
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    callers = [
        (await loop.create_connection(lambda: Caller(bodies, latencies), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds / 4)  # warm up
    latencies.clear()
    before = sum(caller.answered for caller in callers)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    answered = sum(caller.answered for caller in callers) - before
    latencies.sort()

    def percentile(share: float) -> float:
        return round(latencies[int(share * (len(latencies) - 1))] * 1_000, 3)

    result = {
        "calls_per_second": round(answered / wall),
        "p50_ms": percentile(0.5),
        "p99_ms": percentile(0.99),
        "p999_ms": percentile(0.999),
        "later_than_20_ms": sum(each > 0.02 for each in latencies),
        "generator_cpu": round(cpu / wall, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
