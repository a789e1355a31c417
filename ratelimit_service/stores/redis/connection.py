"""One pipelined connection to a Redis server, spoken to directly.

Commands go out as they come and replies resolve in order: a call that nobody waits for any
more costs nothing, and nothing is reconnected because of it. hiredis parses. What must not
live here: scripts, retries, timeouts, what a reply means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import hiredis

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.redis.address import Address

__all__ = ["Connection", "Reply", "open_connection"]

Reply = object
"""What hiredis makes of a reply: bytes, int, a list, a ReplyError; None when there was none."""

Argument = bytes | str | int


class Connection(asyncio.Protocol):
    """Calls in flight over one socket; `lost` is done when it is closed, for whatever reason."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._calls: deque[asyncio.Future[Reply]] = deque()
        self._transport: asyncio.WriteTransport | None = None
        self._heard_at = 0.0
        self.lost: asyncio.Future[str] = self._loop.create_future()

    @property
    def pending(self) -> int:
        """How many calls have no reply yet."""
        return len(self._calls)

    @property
    def silence(self) -> float:
        """Seconds for which calls have been pending without a byte from the server."""
        return self._loop.time() - self._heard_at if self._calls else 0.0

    def call(self, *arguments: Argument) -> asyncio.Future[Reply]:
        """Sends a command; the future has its reply, or None if the connection is lost first."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._transport is None or self.lost.done():
            future.set_result(None)
            return future
        if not self._calls:
            self._heard_at = self._loop.time()
        self._calls.append(future)
        # The stub wants a tuple of one; any length is packed.
        self._transport.write(hiredis.pack_command(arguments))  # type: ignore[arg-type]
        return future

    def close(self, reason: str = "closed") -> None:
        """Drops the connection at once; pending calls get None."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: hands every complete reply to the oldest call."""
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._resolve(reply)
        except hiredis.ProtocolError as error:
            self.close(f"not a Redis server: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._end(str(exc) if exc else "the server closed the connection")

    def _resolve(self, reply: Reply) -> None:
        if not self._calls:
            self.close("the server sent a reply to no command")
            return
        future = self._calls.popleft()
        if not future.done():
            future.set_result(reply)

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        while self._calls:
            future = self._calls.popleft()
            if not future.done():
                future.set_result(None)


async def open_connection(address: Address, *greetings: tuple[Argument, ...]) -> Connection:
    """Connects, authenticates, selects the database and sends `greetings`.

    Raises StoreError, without any password in it, if the server is away or refuses; waits
    as long as the caller lets it.
    """
    loop = asyncio.get_running_loop()
    try:
        if address.path:
            _, connection = await loop.create_unix_connection(Connection, address.path)
        else:
            _, connection = await loop.create_connection(
                Connection, address.host, address.port, ssl=address.tls
            )
    except (OSError, ValueError) as error:  # a host name that cannot be encoded is a ValueError
        raise StoreError(f"cannot connect to Redis at {address}: {error}") from error
    commands: list[tuple[Argument, ...]] = []
    if address.password:
        user = (address.username,) if address.username else ()
        commands.append(("AUTH", *user, address.password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands += greetings
    try:
        for command, future in [(command, connection.call(*command)) for command in commands]:
            _expect(await future, command, address, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _expect(
    reply: Reply, command: tuple[Argument, ...], address: Address, connection: Connection
) -> None:
    if reply is None:
        raise StoreError(f"Redis at {address} hung up: {connection.lost.result()}")
    if isinstance(reply, Exception):
        raise StoreError(f"Redis at {address} refused {command[0]!s}: {reply}")
