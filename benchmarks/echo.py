"""The bare uvloop server that gives back what it gets: what any answer costs at least.

With a second port it first asks the Redis there for a PING: what an answer by Redis costs at least.

    echo.py PORT [REDIS_PORT]
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

import uvloop


class Echo(asyncio.Protocol):
    def __init__(self, redis: Pinged | None) -> None:
        self._redis = redis

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._redis is None:
            self.answer(data)
        else:
            self._redis.ping(self, data)

    def answer(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's has it


class Pinged(asyncio.Protocol):
    """Redis' side: who waits for a reply to PING, in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Echo, bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ping(self, client: Echo, data: bytes) -> None:
        self._waiting.append((client, data))
        self._transport.write(b"PING\r\n")  # type: ignore[attr-defined]  # as above

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\n")):
            client, asked = self._waiting.popleft()
            client.answer(asked)


async def main() -> None:
    loop = asyncio.get_running_loop()
    redis = None
    if len(sys.argv) > 2:
        _, redis = await loop.create_connection(Pinged, "127.0.0.1", int(sys.argv[2]))
    server = await loop.create_server(lambda: Echo(redis), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
