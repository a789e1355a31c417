"""How the supervisor and a worker speak: messages over one socket, connections over another.

A message is a kind and bytes. Both processes may be of different versions for the moments of an
upgrade, so kinds keep their numbers, what crosses then is JSON, and unknown kinds are ignored.
What must not live here: what a message means.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, cast

__all__ = [
    "HEARTBEAT_SECONDS",
    "Channel",
    "Lost",
    "MessageKind",
    "Received",
    "receive_connections",
    "send_connection",
    "sockets",
]

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
"""How often a worker says that it is well."""

_HEAD = struct.Struct(">IB")
"""A message's size without this, and its kind."""

_MOST_BYTES: Final = 64 << 20
"""Whoever announces a larger message is not heard any longer. The largest of ours are some 16 MB of
decisions."""


class MessageKind(IntEnum):
    """What a message is about."""

    SETTINGS = 1
    """To a worker, first: its number and the settings; pickled."""
    RULES = 2
    """To a worker: a slice of the rules' records."""
    RULES_END = 3
    """To a worker: the end of the rules; the domains that are not served; whether there are none on
    purpose."""
    LEAVE = 4
    """To a worker: finish within `grace_us` and end; `draining` if no other takes its place."""
    REPORT = 5
    """To a worker: a number; say now what was counted."""
    DECIDE = 6
    """To a worker: a number, and a request to be answered."""
    HELLO = 7
    """From a worker, first: its version."""
    READY = 8
    """From a worker: it takes connections from now on."""
    FAILED = 9
    """From a worker that cannot start: why."""
    HEARTBEAT = 10
    """From a worker, twice a second and when something has changed: how it is."""
    COUNTS = 11
    """From a worker: what was counted since its last message of this kind."""
    REPORTED = 12
    """From a worker: the number of a REPORT; all counts until then have been sent."""
    DECIDED = 13
    """From a worker: the number of what was asked, a status code, and the answer or reason."""
    LEAVING = 14
    """From a worker that somebody else told to end: it will end once another serves."""
    TLS = 15
    """To a worker: the content of the TLS files; pickled. At first, and whenever they change."""
    SPANS = 16
    """From a worker: spans of calls, a list in JSON."""
    DECIDE_FOR = 17
    """As DECIDE; before the request stands in JSON who made it, and before this its length."""
    DECISIONS = 18
    """From a worker: decisions for the decision log (`decision_log.packets`)."""
    QUESTION = 19
    """To a worker: a number, and a question of the admin listener (`service.questions`)."""
    ANSWER = 20
    """From a worker: the number of an ASK, and the answer."""


Received = Callable[[int, bytes], None]
Lost = Callable[[], None]


class Channel(asyncio.Protocol):
    """One end of the socket for messages."""

    def __init__(self, received: Received, lost: Lost, rest: bytes = b"") -> None:
        """`received` gets every message; `lost` is called when the other end is gone.

        `rest` are bytes that a former owner of this end had read, but not handed on.
        """
        self._received = received
        self._lost = lost
        self._parts = [rest]
        """What was read and not handed on."""
        self._missing = _HEAD.size - len(rest)
        """How many more bytes must come until there may be something to hand on."""
        self._transport: asyncio.Transport | None = None
        self._suspended = False
        self._taken = asyncio.Event()
        self._taken.set()

    @classmethod
    async def open(
        cls, end: socket.socket, received: Received, lost: Lost, rest: bytes = b""
    ) -> Channel:
        """Speaks over a socket from now on."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: cls(received, lost, rest), sock=end
        )
        return channel

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Sends a message; does nothing if nobody is there any more."""
        if self._transport is not None:
            self._transport.write(_HEAD.pack(len(payload), kind) + payload)

    @property
    def waiting(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send_json(self, kind: MessageKind, value: object) -> None:
        """Sends a message whose payload is a value as JSON."""
        self.send(kind, json.dumps(value).encode())

    def suspend(self) -> bytes:
        """Stops reading, because a successor will read; returns the `rest` to give to it."""
        self._suspended = True
        if self._transport is not None:
            self._transport.pause_reading()
        return b"".join(self._parts)

    async def flushed(self) -> None:
        """Waits until the system has taken all messages, or the other end is gone."""
        await self._taken.wait()

    def close(self) -> None:
        """Closes this end: nothing is sent or received any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)

    def pause_writing(self) -> None:
        """Called by asyncio: bytes wait to be taken by the system."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """Called by asyncio: nothing waits any more."""
        self._taken.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: hands on every complete message."""
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:  # parts are joined once for each message, however small they are
            return
        data, at = b"".join(self._parts), 0
        needed = _HEAD.size
        while not self._suspended and len(data) - at >= needed:
            size, kind = _HEAD.unpack_from(data, at)
            stop = at + _HEAD.size + size
            if size > _MOST_BYTES:
                log.error("a message of %d bytes between our processes is too long", size)
                self.close()
                return
            if stop > len(data):
                needed = stop - at
                break
            self._received(kind, data[at + _HEAD.size : stop])
            at = stop
        self._parts = [data[at:]]
        self._missing = needed - (len(data) - at)

    def connection_lost(self, _: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._taken.set()
        if not self._suspended:
            self._lost()


def sockets(descriptors: Sequence[int]) -> list[socket.socket]:
    """The sockets that a former program has left; no process started from here gets them too."""
    inherited = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for end in inherited:
        end.set_inheritable(False)
        end.setblocking(False)
    return inherited


def send_connection(end: socket.socket, connection: socket.socket) -> None:
    """Hands a connection to the process at the other end; it may then be closed here.

    Raises BlockingIOError if that process does not take it now, OSError if it is gone.
    """
    socket.send_fds(end, [b"c"], [connection.fileno()])


def receive_connections(end: socket.socket, most: int = sys.maxsize) -> list[socket.socket]:
    """Takes handed-over connections, `most` of them; none if the other end is gone."""
    connections: list[socket.socket] = []
    while len(connections) < most:
        try:
            data, descriptors, _, _ = socket.recv_fds(end, 1, 1)
        except (BlockingIOError, ConnectionError):
            return connections
        if not data:
            return connections
        connections += [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return connections
