"""A steady load that remembers every answer: when it was due, how late it was, what it said.

Each request has two descriptors, of a counter with room for all and of one that fills up, so
that what every counter should hold can be told from the answers alone. Run by `faults.py` as
a process of its own; writes its record with pickle.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import pickle
import random
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.load import BLOCK, TICK_SECONDS
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import END_HEADERS, END_STREAM, PREFACE, FrameType
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire import encode_request

DOMAIN = "faults"
ROOMY, TIGHT = 100, 100
"""How many counters there are of each kind."""

CONNECTIONS = 4
ENVOYS_TIMEOUT = b"\x00\x0cgrpc-timeout\x0320m"
BLOCK_20MS = BLOCK[: BLOCK.index(b"\x00\x0cgrpc-timeout")] + ENVOYS_TIMEOUT


class Answer(NamedTuple):
    """`due` is by the monotonic clock; `said` is 1 allowed, 2 denied, 0 an error."""

    due: float
    waited: float
    roomy: int
    tight: int
    said: int
    by_policy: bool


def body(roomy: int, tight: int) -> bytes:
    descriptors = (
        Descriptor((Entry("roomy", str(roomy)),)),
        Descriptor((Entry("tight", str(tight)),)),
    )
    message = encode_request(Request(DOMAIN, descriptors))
    return b"\0" + len(message).to_bytes(4, "big") + message


class Recorder(asyncio.Protocol):
    """One connection and the answers that came on it."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        self._stream_id = 1
        self._calls: dict[int, tuple[float, int, int]] = {}
        self._messages: dict[int, bytes] = {}
        self._rest = b""

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        window = {frames.SettingId.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
        self._write(PREFACE + frames.settings(window))
        self._write(frames.window_update(0, frames.MAX_WINDOW - 65_535))

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it

    def call(self, due: float, roomy: int, tight: int, message: bytes) -> None:
        stream_id, self._stream_id = self._stream_id, self._stream_id + 2
        self._calls[stream_id] = due, roomy, tight
        self._write(
            frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, BLOCK_20MS)
            + frames.frame(FrameType.DATA, END_STREAM, stream_id, message)
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, now = 0, time.perf_counter()
        while len(data) - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            if kind == FrameType.DATA:
                self._messages[stream_id] = data[at + 14 : stop]
            elif kind == FrameType.SETTINGS and not flags:
                self._write(frames.frame(FrameType.SETTINGS, frames.ACK, 0, b""))
            elif kind == FrameType.PING and not flags:
                self._write(frames.ping(data[at + 9 : stop], ack=True))
            if kind == FrameType.RST_STREAM or (kind <= FrameType.HEADERS and flags & END_STREAM):
                self._ended(stream_id, now)
            at = stop
        self._rest = data[at:]

    def _ended(self, stream_id: int, now: float) -> None:
        if stream_id not in self._calls:
            return
        due, roomy, tight = self._calls.pop(stream_id)
        message = self._messages.pop(stream_id, b"")
        said = message[1] if message[:1] == b"\x08" else 0
        policy = b"by_policy" in message
        self._answers.append(Answer(due, now - due, roomy, tight, said, policy))


async def steady(port: int, rate: float, seconds: float) -> list[Answer]:
    answers: list[Answer] = []
    loop = asyncio.get_running_loop()
    recorders = []
    for _ in range(CONNECTIONS):
        _, recorder = await loop.create_connection(lambda: Recorder(answers), "127.0.0.1", port)
        recorders.append(recorder)
    chance = random.Random(1)
    bodies = {(r, t): body(r, t) for r in range(ROOMY) for t in range(TIGHT)}
    start, sent = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * rate:
            roomy, tight = chance.randrange(ROOMY), chance.randrange(TIGHT)
            recorder = recorders[sent % CONNECTIONS]
            recorder.call(start + sent / rate, roomy, tight, bodies[roomy, tight])
            sent += 1
        await asyncio.sleep(TICK_SECONDS)
    end = time.perf_counter() + 5
    while any(each.in_flight for each in recorders) and time.perf_counter() < end:
        await asyncio.sleep(0.01)
    if len(answers) < sent:
        raise SystemExit(f"steady.py: {sent - len(answers)} of {sent} calls got no answer")
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--record", type=Path, required=True)
    arguments = parser.parse_args()
    gc.disable()  # a full collection over all answers would itself make some late
    answers = uvloop.run(steady(arguments.port, arguments.rate, arguments.seconds))
    arguments.record.write_bytes(pickle.dumps([tuple(each) for each in answers]))


if __name__ == "__main__":
    main()
