"""A load generator for gRPC servers of one unary method: many different requests, two ways.

Closed loop: so many calls are always under way. Open loop (`--rate`): calls go out on a
schedule that the server cannot slow down, and a call's time counts from the moment when it was
due, so that a server which stalls is charged for all whom it kept waiting.

It writes and reads HTTP/2 frames itself, so that one core of it outruns one core of a server.
Run by `run.py` as a process of its own; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import uvloop

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import END_HEADERS, END_STREAM, PREFACE, FrameType
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire import METHOD, SERVICE, encode_request

KEYS = 1_000_000
PREPARED = 200_000
"""Requests made before the clock starts; then they are used again from the start."""

TICK_SECONDS = 0.001
MAX_STREAMS = 900
LATE_SECONDS = 0.02
WARM_UP = 0.25

# The leading byte tells the server that no dynamic table is used; it may stand in any block.
NO_TABLE = b"\x20"


def header_block(path: str) -> bytes:
    """The header block of calls of this method."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"ratelimit"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"10S"),
    )
    return NO_TABLE + b"".join(literal(name, value) for name, value in fields)


BLOCK = header_block(f"/{SERVICE}/{METHOD}")

_RECORDED_TIMEOUT = bytes.fromhex("899acac8b24d494f6a7f821029")
_TIMEOUT = bytes.fromhex("899acac8b24d494f6a7f8308377f")
"""`grpc-timeout` of 20 ms as Envoy has written it, by Huffman's code, and of 10 s."""

BY_POLICY = b"by_policy"
"""Stands once in the metadata of an answer that was decided without a count."""

Call = tuple[bytes, bytes, bytes]
"""A call's two frames but for the two places of its stream's number, and its body."""


def call(block: bytes, message: bytes) -> Call:
    headers = frames.frame(FrameType.HEADERS, END_HEADERS, 0, block)
    data = frames.frame(FrameType.DATA, END_STREAM, 0, message)
    return headers[:5], headers[9:] + data[:5], message


def body(*keys: int) -> bytes:
    """A request of a descriptor of two entries for each key."""
    return body_of(list(zip(("user", "tenant"), keys, strict=False)))


def body_of(keys: Sequence[tuple[str, int]]) -> bytes:
    """The same, of named keys."""
    return body_saying([(name, f"customer-{key:09d}") for name, key in keys])


def body_saying(values: Sequence[tuple[str, str]]) -> bytes:
    """The same, of named values."""
    descriptors = tuple(Descriptor((Entry("route", "checkout"), Entry(*each))) for each in values)
    message = encode_request(Request("bench", descriptors))
    return b"\0" + len(message).to_bytes(4, "big") + message


def hot() -> Iterator[Call]:
    """One key."""
    return cycle([call(BLOCK, body(1, 1))])


def traced() -> Iterator[Call]:
    """One key, in the header blocks of an Envoy that traces: no two of these are alike.

    Its callers wait as long as those of all shapes, and not the 20 ms that were recorded: a call
    that has waited for a fifth of that is refused, and a refused call is no decision.
    """
    return cycle([call(block, body(1, 1)) for block in traced_blocks(patient=True)])


def traced_blocks(*, patient: bool) -> list[bytes]:
    """These header blocks; callers wait for 20 ms, as recorded, or else for 10 s."""
    recorded = json.loads(Path(__file__).with_name("envoy-blocks.json").read_text())
    blocks = [NO_TABLE + bytes.fromhex(block) for block in recorded]
    if not all(_RECORDED_TIMEOUT in block for block in blocks):
        raise SystemExit("load.py: recorded calls have another grpc-timeout than 20 ms")
    return [block.replace(_RECORDED_TIMEOUT, _TIMEOUT) for block in blocks] if patient else blocks


def uniform() -> Iterator[Call]:
    """A million keys, each as likely, the same in both descriptors; requests of one length."""
    chance, made = random.Random(1), body(0, 0)
    keys = chance.choices(range(KEYS), k=PREPARED)
    return cycle([call(BLOCK, made.replace(b"-000000000", b"-%09d" % key)) for key in keys])


def addresses(blocks: Sequence[bytes] = (BLOCK,)) -> Iterator[Call]:
    """A million callers by their addresses, each as likely: requests of different lengths."""
    chance, made, bodies = random.Random(1), dict[int, bytes](), []
    for key in chance.choices(range(KEYS), k=PREPARED):
        address = f"10.{key >> 16}.{key >> 8 & 255}.{key & 255}"
        length = len(address)
        if length not in made:
            made[length] = body_saying([("user", "?" * length), ("tenant", "?" * length)])
        bodies.append(made[length].replace(b"?" * length, address.encode()))
    return cycle([call(*each) for each in zip(cycle(blocks), bodies, strict=False)])


def zipf() -> Iterator[Call]:
    """A million keys by Zipf's law, chosen for each descriptor by itself."""
    chance = random.Random(1)
    weights = [1 / rank for rank in range(1, KEYS + 1)]
    chosen = (chance.choices(range(KEYS), weights, k=PREPARED) for _ in range(2))
    return cycle([call(BLOCK, body(*keys)) for keys in zip(*chosen, strict=True)])


def new() -> Iterator[Call]:
    """A descriptor that never was, each time."""
    return (call(BLOCK, body(key)) for key in range(1 << 40))


def users(count: int) -> Iterator[Call]:
    """So many descriptors a request, of ten thousand users."""
    chance = random.Random(1)
    while True:
        yield call(
            BLOCK, body_of([("user", key) for key in chance.choices(range(10_000), k=count)])
        )


def unlimited() -> Iterator[Call]:
    """A hundred descriptors a request, all of an unlimited rule: much to decide, little to say."""
    chance = random.Random(1)
    made = (
        body_of([("free", key) for key in chance.choices(range(KEYS), k=100)]) for _ in range(2_000)
    )
    return cycle([call(BLOCK, message) for message in made])


SHAPES: dict[str, Callable[[], Iterator[Call]]] = {
    "hot": hot,
    "traced": traced,
    "uniform": uniform,
    "addresses": addresses,
    "addresses-traced": lambda: addresses(traced_blocks(patient=True)),
    "zipf": zipf,
    "new": new,
    "unlimited": unlimited,
    "one": lambda: users(1),
    "ten": lambda: users(10),
}


class Caller(asyncio.Protocol):
    """One connection; `answered` is called with the number of answers in each read."""

    def __init__(self, calls: Iterator[Call], latencies: array[float]) -> None:
        self._calls = calls
        self._latencies = latencies
        self._stream_id = 1
        self._due: dict[bytes, float] = {}
        self._rest = b""
        self._first, self._last = b"?", b"?"
        self._first_bytes = self._last_bytes = 0
        self.ended = self.messages = 0
        """How many calls have ended, and how many of them with a message: the rest failed."""
        self.by_policy = 0
        """How many answers say that they were decided without a count."""
        self.answered: Callable[[int], None] = lambda _: None

    @property
    def in_flight(self) -> int:
        return len(self._due)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        window = {frames.SettingId.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
        greeting = PREFACE + frames.settings(window)
        self._write(greeting + frames.window_update(0, frames.MAX_WINDOW - 65_535))

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it

    def call(self, due: list[float]) -> None:
        """Sends a call for each moment at which one was due."""
        out: list[bytes] = []
        for moment in due:
            stream_id = self._stream_id.to_bytes(4, "big")
            self._stream_id += 2
            self._due[stream_id] = moment
            head, middle, message = next(self._calls)
            out += (head, stream_id, middle, stream_id, message)
        self._write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, end, done = 0, len(data), 0
        now = time.perf_counter()
        while end - at >= 9:
            usual = self._usual(data, at, end)
            if usual:
                self._latencies.append(now - self._due.pop(data[at + 5 : at + 9]))
                self.messages += 1
                done += 1
                at = usual
                continue
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == FrameType.DATA and stop > at + 9:
                self.messages += 1
            if kind == FrameType.HEADERS:
                self._learn(data, at, stop)
            if kind <= FrameType.HEADERS and flags & END_STREAM:
                self._latencies.append(now - self._due.pop(data[at + 5 : at + 9]))
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
        self.by_policy += data.count(BY_POLICY, 0, at)
        if done:
            self.ended += done
            self.answered(done)

    def _learn(self, data: bytes, at: int, stop: int) -> None:
        """Remembers how this server's answers begin and end: nearly all are of the same frames."""
        if data[at + 4] & END_STREAM:
            self._last, self._last_bytes = data[at : at + 5], stop - at
        else:
            self._first, self._first_bytes = data[at : at + 5], stop - at

    def _usual(self, data: bytes, at: int, end: int) -> int:
        """Where an answer of HEADERS, DATA and HEADERS ends, if all of it is there; else 0."""
        if data[at : at + 5] != self._first:
            return 0
        at += self._first_bytes
        stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
        over = stop + self._last_bytes
        if over > end or data[at + 3] or data[stop : stop + 5] != self._last:
            return 0
        return over


class Echoed(asyncio.Protocol):
    """One call at a time to a server that gives back what it gets."""

    def __init__(self, call: Call, latencies: array[float]) -> None:
        head, middle, message = call
        stream_id = (1).to_bytes(4, "big")
        self._bytes = head + stream_id + middle + stream_id + message
        self._latencies = latencies
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._bytes)  # type: ignore[attr-defined]  # uvloop's has it

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        if self._got == len(self._bytes):
            self._got = 0
            self._latencies.append(time.perf_counter() - self._sent)
            self._send()


def keep_in_flight(callers: list[Caller], in_flight: int) -> None:
    """Closed loop: a new call for each answer."""
    for caller in callers:

        def again(done: int, caller: Caller = caller) -> None:
            caller.call([time.perf_counter()] * done)

        caller.answered = again
        caller.call([time.perf_counter()] * in_flight)


async def keep_rate(callers: list[Caller], rate: float) -> None:
    """Open loop: calls when they are due; those that no stream is free for wait, and count."""
    start, sent = time.perf_counter(), 0
    turn = cycle(callers)
    while True:
        due = int((time.perf_counter() - start) * rate) - sent
        while due > 0:
            free = [caller for caller in callers if caller.in_flight < MAX_STREAMS]
            if not free:
                break
            caller = next(turn)
            if caller in free:
                share = min(due, -(-due // len(free)), MAX_STREAMS - caller.in_flight)
                caller.call([start + (sent + number) / rate for number in range(share)])
                sent += share
                due -= share
        await asyncio.sleep(TICK_SECONDS)


async def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Runs the load and returns its figures."""
    calls = islice(SHAPES[arguments.shape](), arguments.skip, None)
    first = next(calls)
    latencies = array("d")
    loop = asyncio.get_running_loop()
    task = None
    callers: list[Caller] = []
    if arguments.echo:
        await loop.create_connection(lambda: Echoed(first, latencies), "127.0.0.1", arguments.port)
    else:
        for _ in range(arguments.connections):
            _, caller = await loop.create_connection(
                lambda: Caller(calls, latencies), "127.0.0.1", arguments.port
            )
            callers.append(caller)
        if arguments.rate:
            task = asyncio.create_task(keep_rate(callers, arguments.rate))
        else:
            keep_in_flight(callers, arguments.in_flight)
    if arguments.count:
        while len(latencies) < arguments.count:
            await asyncio.sleep(0.01)
    else:
        await asyncio.sleep(arguments.seconds * WARM_UP)
        del latencies[:]
        for caller in callers:
            caller.by_policy = 0
    wall, cpu = time.perf_counter(), time.process_time()
    if not arguments.count:
        await asyncio.sleep(arguments.seconds)
    wall, cpu = max(time.perf_counter() - wall, 1e-9), time.process_time() - cpu
    found = sorted(latencies)
    if task is not None:
        task.cancel()

    def percentile(share: float) -> float:
        return round(found[int(share * (len(found) - 1))] * 1_000, 4)

    return {
        "calls": len(found),
        "calls_per_second": round(len(found) / wall),
        "p50_ms": percentile(0.5),
        "p99_ms": percentile(0.99),
        "p999_ms": percentile(0.999),
        "failed": sum(caller.ended - caller.messages for caller in callers),
        "by_policy": sum(caller.by_policy for caller in callers),
        "late": sum(each > LATE_SECONDS for each in found),
        "generator_cpu": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--count", type=int, default=0, help="So many calls, whatever they take.")
    parser.add_argument("--skip", type=int, default=0, help="Begin behind so many calls.")
    parser.add_argument("--rate", type=float, default=0.0, help="Calls a second, open loop.")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=50, help="On each connection.")
    parser.add_argument("--echo", action="store_true", help="The server gives back what it gets.")
    print(json.dumps(uvloop.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
