"""A load generator for more calls than a server can bear, each with Envoy's 20 ms to be answered.

Open loop: calls go out when they are due, whatever the server does. One that is not answered
20 ms after it was due is cancelled, as Envoy does; one that cannot be sent for so long (the
socket takes no more, or no stream or window is free) never is. Every answer is looked at:
counted, denied, by failure policy, refused for want of time, or failed, in time or late.

Requests are of different lengths, as callers' addresses are; `--headers` and `--frames` say what
else differs between clients. Each connection makes a few calls
before the load begins. Calls go out in batches of one connection, whose frames are made before;
only the numbers of streams are written between them. So one core can ask for ten times what
another can answer. Run by `overload.py` as a process of its own: prints `started` and when by the
monotonic clock, in the end one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import struct
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, cycle, islice
from typing import Final

import uvloop

from benchmarks.load import BY_POLICY, PREPARED, TICK_SECONDS, Call, addresses, traced_blocks
from benchmarks.steady import BLOCK_20MS, ENVOYS_TIMEOUT
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_STREAM,
    MAX_WINDOW,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.headers import literal

PATIENCE = 0.02
SLICE_SECONDS = 0.1
MOST_IN_BATCH = 64
MOST_BATCHES = 20_000
"""A second, beside which there is time to read."""
BUFFER_BYTES = 65_536
"""More than so much beside what the system takes is not written: calls wait before it."""

HELD_UP_SECONDS = 0.01
"""What was due while the generator was held up for so long is not made up for: it would be a load
that nobody asked for."""

ANSWERS = ("counted", "denied", "by_policy", "failed", "refused")
LATE = ("late_counted", "late_denied", "late_by_policy", "late_failed", "late_refused")
FATES = ("offered", "sent", "never_sent", "cancelled", *ANSWERS, *LATE)
"""What is counted, by the slice in which a call was due. `cancelled` calls had no answer in 20 ms;
late answers are those that came all the same, or while they were being cancelled."""

REFUSAL = frames.rst_stream(0, ErrorCode.ENHANCE_YOUR_CALM)
RESET = frames.rst_stream(0, ErrorCode.CANCEL)


STREAMS = struct.Struct(">5xI4x")
REFUSALS = re.compile(
    b"(?:%b.{4}%b)+" % (re.escape(REFUSAL[:5]), re.escape(REFUSAL[9:])), re.DOTALL
)


class Shape:
    """What calls look like: what their headers have in common, and the order of their frames."""

    HEADERS = ("alike", "traced", "deadlines")
    FRAMES = ("together", "apart", "ended")

    def __init__(self) -> None:
        self.headers, self.frames = self.HEADERS[0], self.FRAMES[0]

    def choose(self, chosen: argparse.Namespace) -> None:
        """Takes what was chosen by `shape_flags`."""
        self.headers, self.frames = chosen.headers, chosen.frames

    @property
    def flags(self) -> list[str]:
        """What chooses this shape."""
        return ["--headers", self.headers, "--frames", self.frames]


SHAPE = Shape()


def shape_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--headers", choices=Shape.HEADERS, default=Shape.HEADERS[0],
        help="All alike; each with a trace of its own; or with the nanoseconds that are left.",
    )  # fmt: skip
    parser.add_argument(
        "--frames", choices=Shape.FRAMES, default=Shape.FRAMES[0],
        help="Of each call together, as Envoy; HEADERS of many calls and then their DATA, as "
        "grpc-js and netty; or together, with a frame of its own for the end, as tonic.",
    )  # fmt: skip


class Batch:
    """So many calls, between whose bytes the numbers of their streams are written."""

    def __init__(self, calls: list[Call]) -> None:
        headers = [[head, b"", middle[:-5]] for head, middle, _ in calls]
        data = [[middle[-5:], b"", message] for _, middle, message in calls]
        if SHAPE.frames == "ended":
            data = [[*_without_end(each), *_EMPTY] for each in data]
        rounds = [headers, data]
        if SHAPE.frames != "apart":
            rounds = [[[*one, *other] for one, other in zip(headers, data, strict=True)]]
        self._rounds = [(len(each[0]) // 3, [*chain(*each)]) for each in rounds]
        """Of each round how many frames a call has in it, and of all frames the bytes before the
        number of the stream, a place for it, and the bytes behind it."""
        self._windows = list(accumulate(len(message) for _, _, message in calls))

    def window(self, count: int) -> int:
        """What so many of its calls take of the connection's flow control."""
        return self._windows[count - 1]

    def numbered(self, first: int, count: int) -> bytes:
        """The bytes of so many calls for streams from this one on."""
        made = struct.pack(f">{count}I", *range(first, first + 2 * count, 2))
        numbers = [made[at : at + 4] for at in range(0, 4 * count, 4)]
        found = []
        for frames_each, all_parts in self._rounds:
            parts = all_parts[: 3 * frames_each * count]
            for frame in range(frames_each):
                parts[3 * frame + 1 :: 3 * frames_each] = numbers
            found += parts
        return b"".join(found)


_EMPTY: Final = (frames.frame(FrameType.DATA, END_STREAM, 0, b"")[:5], b"", b"")


def _without_end(data: list[bytes]) -> list[bytes]:
    head, number, message = data
    return [head[:4] + b"\0", number, message]


def resets(streams: Sequence[int]) -> bytes:
    """What cancels these streams."""
    made, numbers = bytearray(RESET * len(streams)), struct.pack(f">{len(streams)}I", *streams)
    for place in range(4):
        made[5 + place :: len(RESET)] = numbers[place::4]
    return bytes(made)


class Tally:
    """What became of the calls that were due in each slice of time."""

    def __init__(self, seconds: float) -> None:
        self.start = 0.0
        self._slices = int(seconds / SLICE_SECONDS) + 1
        self.counts = {fate: [0] * self._slices for fate in FATES}
        self.lag = [0.0] * self._slices
        """The longest time for which the generator itself was held up, by when it went on."""

    def slice(self, moment: float) -> int:
        return max(0, min(self._slices - 1, int((moment - self.start) / SLICE_SECONDS)))

    def add(self, fate: str, due: float, count: int) -> None:
        self.counts[fate][self.slice(due)] += count

    def clear(self) -> None:
        for counts in self.counts.values():
            counts[:] = [0] * self._slices

    def held_up(self, now: float, seconds: float) -> None:
        at = self.slice(now)
        self.lag[at] = max(self.lag[at], seconds)


class Asking(asyncio.Protocol):
    """One connection of a client that gives up after 20 ms."""

    def __init__(self, batches: cycle[Batch], size: int, tally: Tally) -> None:
        self._batches = batches
        self._size = size
        self._tally = tally
        self._state = bytearray()
        """Of each call, in the order of their streams: 0 pending, 1 answered, 2 cancelled."""
        self._due = array("d")
        """When each batch was due."""
        self._oldest = 0
        """The first batch that may have calls pending."""
        self._pending = 0
        self._most = 100
        self._window = 65_535
        self._blocked = False
        self._waiting: deque[tuple[float, int]] = deque()
        """When batches were due that could not be sent yet, and how many calls are left of each."""
        self._messages: dict[int, int] = {}
        """What answers say that have not ended: for servers that write them in pieces."""
        self._rest = b""
        self._first = self._last = b"?"
        self._first_bytes = self._last_bytes = 0
        self.settled = asyncio.get_running_loop().create_future()
        self.lost: str | None = None

    @property
    def pending(self) -> int:
        """How many calls are under way."""
        return self._pending

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)  # type: ignore[attr-defined]
        window = frames.settings({SettingId.INITIAL_WINDOW_SIZE: MAX_WINDOW})
        self._write(PREFACE + window + frames.window_update(0, MAX_WINDOW - 65_535))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = self.lost or str(exc or "closed")

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it

    def offer(self, due: float) -> None:
        """A batch is due."""
        self._tally.add("offered", due, self._size)
        sent = 0 if self._waiting else self._send(due, self._size)
        if sent < self._size:
            self._waiting.append((due, self._size - sent))

    async def warm_up(self) -> None:
        """Makes calls, so that client and server have settled all that comes with the first one."""
        for _ in range(2):
            self.offer(time.perf_counter())
            while self._pending and not self.lost:
                await asyncio.sleep(TICK_SECONDS)

    def _send(self, due: float, count: int) -> int:
        """Sends as many of a batch's calls as may be sent now; returns how many."""
        size, count = self._size, min(count, self._most - self._pending)
        if count <= 0 or self._blocked or self.lost:
            return 0
        batch = next(self._batches)
        window = batch.window(count)
        if window > self._window:
            return 0
        self._window -= window
        first = 2 * len(self._state) + 1
        # Numbers of streams may be left out, so each batch begins with one that tells its own.
        self._state += bytes(count) + b"\2" * (size - count)
        self._due.append(due)
        self._pending += count
        self._write(batch.numbered(first, count))
        self._tally.add("sent", due, count)
        return count

    def look(self, until: float) -> None:
        """Sends what waits, and gives up what was due before `until`."""
        waiting = self._waiting
        while waiting and waiting[0][0] < until:
            self._tally.add("never_sent", *waiting.popleft())
        while waiting:
            due, count = waiting.popleft()
            sent = self._send(due, count)
            if sent < count:
                waiting.appendleft((due, count - sent))
                break
        out = []
        while self._oldest < len(self._due) and self._due[self._oldest] < until:
            resets = self._cancel(self._oldest)
            if resets:
                out.append(resets)
            self._oldest += 1
        if out and not self.lost:
            self._write(b"".join(out))

    def _cancel(self, batch: int) -> bytes:
        """What cancels the calls of a batch that are pending."""
        size = self._size
        start, stop = batch * size, (batch + 1) * size
        state = self._state[start:stop]
        pending = state.count(0)
        if not pending:
            return b""
        self._pending -= pending
        self._tally.add("cancelled", self._due[batch], pending)
        self._state[start:stop] = state.replace(b"\0", b"\2")
        return resets([2 * (start + at) + 1 for at in range(size) if not state[at]])

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, end, now = 0, len(data), time.perf_counter()
        policies = BY_POLICY in data
        while end - at >= 9:
            body = at + self._first_bytes
            if data[at : at + 5] == self._first and end - body >= 9:
                stop = body + 9 + int.from_bytes(data[body : body + 3], "big")
                over = stop + self._last_bytes
                if over > end:
                    break
                if data[stop : stop + 5] == self._last and not data[body + 3]:
                    said = self._said(data, body, stop, policies)
                    self._answered(int.from_bytes(data[at + 5 : at + 9], "big"), said, now)
                    at = over
                    continue
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > end:
                break
            if data[at + 3] == FrameType.RST_STREAM:
                stop = self._refusals(data, at, stop, now)
            else:
                self._frame(data, at, stop, now)
            at = stop
        self._rest = data[at:]

    @staticmethod
    def _said(data: bytes, at: int, stop: int, policies: bool) -> int:
        """What the answer in a DATA frame is, as in ANSWERS."""
        if policies and data.find(BY_POLICY, at, stop) >= 0:
            return 2
        return 1 if data[at + 15] == 2 else 0  # 9 bytes of frame, 5 of prefix, then overall_code

    def _frame(self, data: bytes, at: int, stop: int, now: float) -> None:
        kind, flags = data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        if kind == FrameType.HEADERS and flags & END_STREAM:
            self._last, self._last_bytes = data[at : at + 5], stop - at
            self._answered(stream, self._messages.pop(stream, 3), now)
        elif kind == FrameType.HEADERS:
            self._first, self._first_bytes = data[at : at + 5], stop - at
        elif kind == FrameType.DATA and stop - at > 15:
            self._messages[stream] = self._said(data, at, stop, True)
        elif kind == FrameType.RST_STREAM and any(data[at + 9 : stop]):
            self._answered(stream, 3, now)
        elif kind == FrameType.WINDOW_UPDATE and not stream:
            self._window += int.from_bytes(data[at + 9 : stop], "big")
        elif kind == FrameType.SETTINGS and not flags & ACK:
            self._settings(data[at + 9 : stop])
        elif kind == FrameType.PING and not flags & ACK:
            self._write(frames.ping(data[at + 9 : stop], ack=True))
        elif kind == FrameType.GOAWAY:
            self.lost = data[at + 17 : stop].decode(errors="replace") or "GOAWAY"

    def _refusals(self, data: bytes, at: int, stop: int, now: float) -> int:
        """Handles resets that come one after the other."""
        match = REFUSALS.match(data, at)
        if match is None:
            self._frame(data, at, stop, now)
            return stop
        state, refused, late = self._state, 0, 0
        for (stream,) in STREAMS.iter_unpack(data[at : match.end()]):
            call = stream >> 1
            if state[call]:
                late += 1
            else:
                state[call] = 1
                refused += 1
        due = self._due[call // self._size]
        self._pending -= refused
        self._tally.add("refused", due, refused)
        self._tally.add("late_refused", due, late)
        return match.end()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2], "big") == SettingId.MAX_CONCURRENT_STREAMS:
                self._most = int.from_bytes(payload[at + 2 : at + 6], "big")
        self._write(frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        if not self.settled.done():
            self.settled.set_result(None)

    def _answered(self, stream: int, said: int, now: float) -> None:
        call = stream >> 1
        due = self._due[call // self._size]
        if self._state[call]:
            self._tally.add(LATE[said], due, 1)
            return
        self._state[call] = 1
        self._pending -= 1
        self._tally.add((LATE if now - due > PATIENCE else ANSWERS)[said], due, 1)

    def end(self) -> None:
        """Nobody hears any more what is pending, if the connection is lost; so it is cancelled."""
        self.look(float("inf"))
        self._transport.abort()  # type: ignore[attr-defined]  # uvloop's has it


def hurried() -> Iterator[Call]:
    """Calls of many callers who wait for 20 ms."""
    blocks = [BLOCK_20MS]
    if SHAPE.headers == "traced":
        blocks = traced_blocks(patient=False)
    elif SHAPE.headers == "deadlines":
        start = BLOCK_20MS.removesuffix(ENVOYS_TIMEOUT)
        left = range(19_999_999, 19_900_000, -97)
        blocks = [start + literal(b"grpc-timeout", b"%dn" % each) for each in left]
    return addresses(blocks)


def batch_size(rate: float, connections: int) -> int:
    """As many calls as a connection is due within a tick, or as can be written; a power of two."""
    size = 1
    while size < MOST_IN_BATCH and (
        2 * size <= rate * TICK_SECONDS / connections or size * MOST_BATCHES < rate
    ):
        size *= 2
    return size


async def flood(arguments: argparse.Namespace) -> dict[str, object]:
    """Runs the load and returns what became of it."""
    loop = asyncio.get_running_loop()
    size = batch_size(arguments.rate, arguments.connections)
    calls = islice(hurried(), arguments.skip, None)
    made = [Batch(list(islice(calls, size))) for _ in range(PREPARED // size)]
    batches, tally = cycle(made), Tally(arguments.seconds)
    lost: list[str] = []

    async def connect() -> Asking:
        _, asking = await loop.create_connection(
            lambda: Asking(batches, size, tally), "127.0.0.1", arguments.port
        )
        await asyncio.wait_for(asking.settled, 10)
        return asking

    clients = [await connect() for _ in range(arguments.connections)]
    for client in clients:
        await client.warm_up()
    tally.clear()
    gc.collect()
    gc.disable()  # its pauses would be counted as the server's
    tally.start = before = due = time.perf_counter()
    print("started", tally.start, flush=True)
    cpu, turn = time.process_time(), 0
    while before < tally.start + arguments.seconds:
        await asyncio.sleep(TICK_SECONDS)
        now = time.perf_counter()
        tally.held_up(now, now - before)
        for client in clients:
            # All that had come by the last tick has been read.
            client.look(before - PATIENCE)
        if now - due > HELD_UP_SECONDS:
            due = now
        while due <= now:
            clients[turn].offer(due)
            turn = (turn + 1) % len(clients)
            since = due - tally.start
            burst = arguments.burst_at <= since < arguments.burst_at + arguments.burst_seconds
            due += size / arguments.rate / (arguments.burst if burst else 1)
        for number, client in enumerate(clients):
            if client.lost is not None:
                lost.append(client.lost)
                client.end()
                clients[number] = await connect()
        before = now
    cpu = (time.process_time() - cpu) / (time.perf_counter() - tally.start)
    await asyncio.sleep(2 * PATIENCE)
    for client in clients:
        client.end()
    return {
        "start": tally.start,
        "batch": size,
        "slices": tally.counts,
        "lag": tally.lag,
        "lost": lost,
        "generator_cpu": round(cpu, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, required=True, help="Calls a second.")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--skip", type=int, default=0, help="Begin behind so many calls.")
    shape_flags(parser)
    parser.add_argument("--burst", type=float, default=1.0, help="Times the rate, for a while.")
    parser.add_argument("--burst-at", type=float, default=0.0)
    parser.add_argument("--burst-seconds", type=float, default=0.0)
    chosen = parser.parse_args()
    SHAPE.choose(chosen)
    print(json.dumps(uvloop.run(flood(chosen))))


if __name__ == "__main__":
    main()
