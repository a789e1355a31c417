"""One pipelined connection to a Redis server, spoken to directly.

Commands go out as they come, and replies come back in order. So a call that nobody waits for any
more costs nothing, and the connection stays. hiredis parses the replies. They are handed on a few
at a time: what a caller makes of one can take a millisecond. What must not live here: scripts,
retries, timeouts, what a reply means.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from os import urandom
from typing import Final, cast

import hiredis

from ratelimit_service.errors import StoreError
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import TURN_US, shared_scheduler
from ratelimit_service.net.names import shared_names
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.stores.redis.address import Address, without
from ratelimit_service.stores.redis.contexts import Contexts
from ratelimit_service.stores.redis.error_replies import wants_password
from ratelimit_service.text.display import reason

__all__ = [
    "Answered",
    "Argument",
    "Command",
    "RedisConnection",
    "Reply",
    "all_read",
    "expect",
    "open_connection",
]

Reply = object
"""What hiredis makes of a reply: bytes, int, a list, a ReplyError; None when there was none."""

_MOST_REPLY_BYTES: Final = 64 << 20
"""A reply that is not whole after so many bytes ends the connection: no command of ours has such a
one, and what it would take has no bound."""

Argument = bytes | str | int
Command = tuple[Argument, ...]
Answered = Callable[[Reply], None]


class RedisConnection(asyncio.Protocol):
    """Calls in flight over one socket; `lost` is done when it is closed, for whatever reason."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler = shared_scheduler()
        self._reader = hiredis.Reader()
        self._calls: deque[Answered] = deque()
        self._left: deque[int] = deque()
        """When the bytes of each pending command left; commands that have not left are missing."""
        self._leaving = 0
        """Commands written in this turn of the loop: their bytes leave at its end."""
        self._replies: deque[tuple[Answered, int, Reply]] = deque()
        """Replies that have been read and not handed on yet: to whom, when their command left."""
        self._handing_on = False
        """Whether replies are being handed on, now or in a later turn."""
        self._unread_bytes = 0
        """How many bytes have come since the last reply was whole."""
        self._transport: asyncio.WriteTransport | None = None
        self._read_at = self._replied_at = 0.0
        """When bytes came last, and when a reply was whole last, or nothing was pending."""
        self._bugs = Bugs()
        self.password = ""
        """The password of this connection. An error of the server can contain it."""
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.caught_up = True
        """Whether the server had answered everything when it was read from last."""
        self.answered_left_us = 0
        """When the command that is being answered left, by `elapsed_us`."""

    @property
    def silence(self) -> float:
        """Seconds for which calls have been pending without a byte from the server."""
        return self._loop.time() - self._read_at if self._calls else 0.0

    @property
    def stalled(self) -> float:
        """Seconds for which calls have been pending without a whole reply."""
        return self._loop.time() - self._replied_at if self._calls else 0.0

    @property
    def waiting_since_us(self) -> int | None:
        """When the oldest pending command left, by `elapsed_us`; None if none is pending."""
        return self._left[0] if self._left else None

    def forgive(self, seconds: float) -> None:
        """Takes time in which this process did not listen off the server's silence."""
        now = self._loop.time()
        self._read_at = min(self._read_at + seconds, now)
        self._replied_at = min(self._replied_at + seconds, now)

    def held_up(self, us: int) -> None:
        """Takes time for which this process did not run off what pending commands have waited."""
        now = elapsed_us()
        self._left = deque([min(left_us + us, now) for left_us in self._left])

    def send(self, command: Command, answered: Answered) -> None:
        """Sends a command; its reply goes to `answered`, after those of the commands before it.

        The reply is None if the connection is lost before it is read.
        """
        if self._transport is None or self.lost.done():
            self._replies.append((answered, self.answered_left_us, None))
            self._hand_on()
            return
        # Before anything else, because it may raise. The type stub asks for a tuple of one item,
        # but hiredis packs any length.
        packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
        if not self._calls:
            self._read_at = self._replied_at = self._loop.time()
        self._calls.append(answered)
        self._transport.write(packed)
        if not self._leaving:
            self._loop.call_soon(self._have_left)
        self._leaving += 1

    def _have_left(self) -> None:
        """Notes when the bytes left: by now, though the loop may not have written at once."""
        now = elapsed_us()
        for _ in range(self._leaving):
            self._left.append(now)
        self._leaving = 0

    def call(self, *command: Argument) -> asyncio.Future[Reply]:
        """Sends one command, and returns a future of its reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def answered(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        self.send(command, answered)
        return future

    def ping(self) -> asyncio.Future[Reply]:
        """Sends a ping with a word of its own, which only its reply contains."""
        word = urandom(8).hex()
        ping = self.call("PING", word)
        ping.add_done_callback(partial(self._ponged, word.encode()))
        return ping

    def shown(self, reply: Reply) -> str:
        """The text of an error without the password, so that it can go to the log."""
        return without(self.password, str(reply))

    def when_handed_on(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` once every reply that has been read until now is handed on.

        Returns whether there is any; if not, `callback` is not called.
        """
        if not self._replies:
            return False
        self._replies.append((partial(_call, callback), self.answered_left_us, None))
        return True

    def distrust(self) -> None:
        """Closes the connection: a reply did not fit its call, so the next ones may not either."""
        self._replies = deque([(answered, left_us, None) for answered, left_us, _ in self._replies])
        self.close("a reply was none to its command")

    def _ponged(self, word: bytes, ping: asyncio.Future[Reply]) -> None:
        if not ping.cancelled() and ping.result() not in (None, word):
            self.distrust()

    def close(self, reason: str = "closed") -> None:
        """Drops the connection at once; calls whose reply has not been read get None."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: every complete reply belongs to the oldest call."""
        if self.lost.done():
            return
        self._read_at = self._loop.time()
        self._unread_bytes += len(data)
        reader, calls = self._reader, self._calls
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                self._unread_bytes = 0
                self._replied_at = self._read_at
                if not calls:
                    self.close("the server sent a reply to no command")
                    break
                if self._leaving and not self._left:
                    self._have_left()
                self._replies.append((calls.popleft(), self._left.popleft(), reply))
            self.caught_up = not self._left  # what was sent just now cannot have a reply
            if self._unread_bytes > _MOST_REPLY_BYTES:
                self.close("a reply without end")
        except hiredis.ProtocolError as error:
            self.close(f"not a Redis server: {error}")
        self._hand_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._end(str(exc) if exc else "the server closed the connection")

    def _hand_on(self) -> None:
        """Hands on what has been read, in order, unless that is being done already."""
        if not self._handing_on:
            self._handing_on = True
            try:
                self._scheduler.reply(self._hand_on_some)
            except Exception as error:  # they are handed on with the next ones
                self._handing_on = False
                self._bugs.note("replies from Redis could not be handed on", error)

    def _hand_on_some(self) -> None:
        """Hands on replies for as long as a turn may take; the others wait for another one."""
        until_us = elapsed_us() + TURN_US
        try:
            while self._replies:
                answered, self.answered_left_us, reply = self._replies.popleft()
                try:
                    answered(reply)
                except Exception as error:  # the other replies are handed on all the same
                    self._bugs.note("a reply from Redis could not be handled", error)
                if self._replies and elapsed_us() >= until_us:
                    self._scheduler.reply(self._hand_on_some)
                    return
        except Exception as error:
            self._bugs.note("replies from Redis could not be handed on", error)
            self._handing_on = False
            self.close("the service failed: see its log")
            return
        self._handing_on = False

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self._left.clear()
        self._leaving = 0
        while self._calls:
            self._replies.append((self._calls.popleft(), self.answered_left_us, None))
        self._hand_on()


def _call(callback: Callable[[], None], _reply: Reply) -> None:
    callback()


async def all_read() -> None:
    """Returns when everything that had come before the call has been read.

    A process that was held up finds its timers due and its replies unread. The loop may run the
    timers before it reads, but after two more rounds it has read.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def open_connection(
    address: Address,
    contexts: Contexts,
    *greetings: Command,
    greeted: Callable[[RedisConnection], Awaitable[None]] | None = None,
) -> RedisConnection:
    """Connects, authenticates, selects the database, sends `greetings`, and waits for `greeted`.

    Raises StoreError, without any password in it, if the server is away or refuses; waits
    as long as the caller lets it.
    """
    loop = asyncio.get_running_loop()
    user, password = address.login.read()
    tls = await contexts.of(address.tls) if address.tls else None
    try:
        if address.path:
            _, connection = await loop.create_unix_connection(RedisConnection, address.path)
        else:
            connection = await _connected(address, tls)
    except OSError as error:
        raise StoreError(f"cannot connect to Redis at {address}: {reason(error)}") from error
    connection.password = password
    commands: list[Command] = []
    if password:
        commands.append(("AUTH", user, password) if user else ("AUTH", password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands += greetings
    try:
        for command, future in [(command, connection.call(*command)) for command in commands]:
            expect(await future, command, address, connection)
        if greeted is not None:
            await greeted(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _connected(address: Address, tls: ssl.SSLContext | None) -> RedisConnection:
    """Connects to the first address of a host where somebody listens. Raises OSError."""
    loop = asyncio.get_running_loop()
    name = address.host if tls else None
    fault = OSError(f"{address.host} has no address")
    for info in await shared_names().addresses(address.host, address.port):
        end = info[-1]
        try:
            _, connection = await loop.create_connection(
                RedisConnection, end[0], end[1], ssl=tls, server_hostname=name
            )
        except OSError as error:
            fault = error
        else:
            return connection
    raise fault


def expect(reply: Reply, command: Command, address: Address, connection: RedisConnection) -> None:
    """Raises StoreError if the reply to a command is missing, an error, or no text."""
    if reply is None:
        raise StoreError(f"Redis at {address} hung up: {connection.lost.result()}")
    if isinstance(reply, Exception) and not connection.password and wants_password(reply):
        raise StoreError(
            f"Redis at {address} wants a password: redis://:PASSWORD@HOST:PORT/0 ({reply!s})"
        )
    if isinstance(reply, Exception):
        raise StoreError(f"Redis at {address} refused {command[0]!s}: {connection.shown(reply)}")
    if not isinstance(reply, bytes):  # `OK`, or the digest of a script that was loaded
        raise StoreError(
            f"Redis at {address} does not answer to {command[0]!s}, but something else"
        )
