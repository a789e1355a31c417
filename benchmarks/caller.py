"""A real client that calls at a steady rate until its standard input ends.

    caller.py grpcio PORT RATE     grpcio's client, four connections
    caller.py http PORT RATE       HTTP requests to an Envoy, so that Envoy calls

Calls go out on a schedule, whatever becomes of those before. Prints one line of JSON: how many, how
many took more than 20 ms, and of each that failed the moment it went out (monotonic clock) and why.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections import deque
from itertools import cycle

import grpc
import uvloop

from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire import METHOD, SERVICE, encode_request

LATE_SECONDS = 0.02
WARM_SECONDS = 2.0
"""What is late before is not counted: a client's own start is not the service's doing."""

TICK_SECONDS = 0.001
GIVE_UP_SECONDS = 5.0
USERS = 10_000


class Record:
    """What became of the calls."""

    def __init__(self) -> None:
        self.calls = self.late = 0
        self._warm = time.monotonic() + WARM_SECONDS
        self.failed: list[tuple[float, str]] = []

    def ended(self, started: float, due: float, why: str) -> None:
        self.calls += 1
        self.late += due > self._warm and time.monotonic() - due > LATE_SECONDS
        if why:
            self.failed.append((started, why))

    def told(self) -> str:
        return json.dumps({"calls": self.calls, "late": self.late, "failed": self.failed})


def over() -> threading.Event:
    """Set when standard input ends."""
    event = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        event.set()

    threading.Thread(target=wait, daemon=True).start()
    return event


async def grpcio(port: int, rate: float) -> Record:
    """Calls over four connections of grpcio."""
    record, ended, start = Record(), over(), time.monotonic()
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(4)]
    methods: cycle[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = cycle(
        [channel.unary_unary(f"/{SERVICE}/{METHOD}") for channel in channels]
    )
    messages = cycle(
        [
            encode_request(Request("demo", (Descriptor((Entry("user", str(user)),)),)))
            for user in range(USERS)
        ]
    )

    async def call(due: float) -> None:
        started, why = time.monotonic(), ""
        try:
            await next(methods)(next(messages), timeout=GIVE_UP_SECONDS)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
        record.ended(started, due, why)

    sent, calls = 0, set()
    while not ended.is_set():
        while sent < (time.monotonic() - start) * rate:
            calls.add(task := asyncio.create_task(call(start + sent / rate)))
            task.add_done_callback(calls.discard)
            sent += 1
        await asyncio.sleep(TICK_SECONDS)
    if calls:
        await asyncio.wait(calls)
    return record


class HTTPCaller(asyncio.Protocol):
    """One HTTP connection; one request at a time."""

    def __init__(self, idle: deque[HTTPCaller], record: Record) -> None:
        self._idle = idle
        self._record = record
        self._answer = b""
        self._asked: tuple[float, float] | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, user: int, due: float) -> None:
        self._asked = time.monotonic(), due
        request = f"GET / HTTP/1.1\r\nhost: e\r\nx-user: {user}\r\n\r\n"
        self._transport.write(request.encode())  # type: ignore[attr-defined]  # uvloop's has it

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, rest = self._answer.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(rest) < int(fields.get(b"content-length", b"0")):
            return
        status = head[9:12].decode()
        self._answer = b""
        self._end("" if status in {"200", "429"} else f"HTTP {status}")
        self._idle.append(self)

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._end("Envoy hung up")

    def _end(self, why: str) -> None:
        if self._asked is not None:
            started, due = self._asked
            self._asked = None
            self._record.ended(started, due, why)


async def http(port: int, rate: float) -> Record:
    """Requests over as many connections as it takes."""
    record, idle, loop = Record(), deque[HTTPCaller](), asyncio.get_running_loop()
    for _ in range(32):
        _, caller = await loop.create_connection(
            lambda: HTTPCaller(idle, record), "127.0.0.1", port
        )
        idle.append(caller)
    users, ended, sent, start = cycle(range(USERS)), over(), 0, time.monotonic()
    while not ended.is_set():
        while sent < (time.monotonic() - start) * rate and idle:
            caller = idle.popleft()
            if not caller.lost:
                caller.ask(next(users), start + sent / rate)
                sent += 1
        await asyncio.sleep(TICK_SECONDS)
    await asyncio.sleep(0.5)
    return record


def main() -> None:
    kind, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    gc.disable()  # its pauses would be counted as the server's
    call = {"grpcio": grpcio, "http": http}[kind]
    print(uvloop.run(call(port, rate)).told())


if __name__ == "__main__":
    main()
