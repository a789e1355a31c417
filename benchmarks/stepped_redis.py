"""A Redis server on a stepped clock, for `overload_stepped`.

It has a core of its own: what it is sent it does one command after the other, while the service
does something else. It knows the script's usual hits, of fixed windows, and what else a store says
to a server, alone or in a ring or cluster. How long a command takes is modelled; nothing else is.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from ratelimit_service.stores.keys import SLOTS

CALL_US, HIT_US, OTHER_US = 30.0, 4.0, 5.0
"""What a script call takes, each hit in it, and any other command."""

NODES = [("127.0.0.1", port) for port in (1, 2, 3)]
"""What is told of a cluster: where its masters are. All have equally many slots."""

_HIT = struct.Struct(">IdIBB")
_DEADLINE = struct.Struct(">d")
_HEAD, _OUTCOME = struct.Struct(">QQ"), struct.Struct(">?IQQ?")
_SETTLED = 1 << 15
_LATE = 2


class Redis:
    """The server's end of a connection, which is also the transport at the other end."""

    def __init__(self, protocol: Any, now_ns: Callable[[], int], slower: float) -> None:
        self._now_ns, self._slower = now_ns, slower
        self.protocol = protocol
        self.reading = True
        self.unread = bytearray()
        """What the service can read now."""
        self.written: list[bytes] = []
        self._replies: deque[tuple[int, bytes]] = deque()
        """What it will be able to read, and when."""
        self._reader = hiredis.Reader()
        self._counts: dict[bytes, tuple[float, int]] = {}
        """The number of the window and the hits in it, of each key."""
        self._free_ns = 0
        """When it has done all that it was asked to do."""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        raise AssertionError("the service does not trust its Redis")

    def recv(self, _most: int) -> bytes:
        data, self.unread = bytes(self.unread), bytearray()
        return data

    def take(self, data: bytes) -> None:
        """Commands arrive: they are done as soon as the ones before are."""
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            starts_ns = max(self._free_ns, self._now_ns())
            reply, took_us = self._do(command, starts_ns)
            self._free_ns = starts_ns + int(took_us * self._slower * 1_000)
            self._replies.append((self._free_ns, reply))

    def slow_down(self, slower: float) -> None:
        """Takes so many times longer from now on."""
        self._slower = slower

    def stand_still(self, seconds: float) -> None:
        """Does nothing for so long."""
        self._free_ns = max(self._free_ns, self._now_ns()) + int(seconds * 1e9)

    def move(self) -> None:
        """Lets the service read the replies that are there by now."""
        now_ns, replies = self._now_ns(), self._replies
        while replies and replies[0][0] <= now_ns:
            self.unread += replies.popleft()[1]

    def _do(self, command: list[bytes], now_ns: int) -> tuple[bytes, float]:
        """The reply to a command, and how long it takes."""
        name, now_us = command[0], now_ns // 1_000
        if name == b"EVALSHA":
            return self._charge(command, now_us)
        if name == b"TIME":
            texts = [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]
            return b"*2\r\n" + b"".join(map(_bulk, texts)), OTHER_US
        if name == b"EVAL":  # a beat: this process is the only one
            return b"*1\r\n" + _bulk(command[4]), OTHER_US
        if name == b"CLUSTER":  # which node has which slots
            return b"*%d\r\n" % len(NODES) + b"".join(map(_slots, range(len(NODES)))), OTHER_US
        return _bulk(command[1]) if name == b"PING" else b"+OK\r\n", OTHER_US

    def _charge(self, command: list[bytes], now_us: int) -> tuple[bytes, float]:
        count = int(command[2])
        keys, packed = iter(command[3 : 3 + count]), command[-2]
        outcomes, marks, took_us = [], bytearray(), CALL_US
        for hit in _hits(packed, now_us):
            key = next(keys)
            marks.append(_LATE * (hit is None))
            outcomes.append(_OUTCOME.pack(*((hit and self._count(key, *hit, now_us)) or _NOTHING)))
            took_us += HIT_US * (hit is not None)
        reply = _HEAD.pack(int(command[-1]), now_us) + b"".join(outcomes)
        return _bulk(reply + marks if any(marks) else reply), took_us

    def _count(
        self, key: bytes, limit: int, window_us: float, now_us: int
    ) -> tuple[bool, int, int, int, bool]:
        window, since_us = divmod(now_us, window_us)
        before, count = self._counts.get(key, (window, 0))
        if before != window:
            count = 0
        over, wait_us = count >= limit, int(window_us - since_us)
        self._counts[key] = window, count + (not over)
        return over, limit - count - (not over), wait_us, int(not over), False


_NOTHING = False, 0, 0, 0, False


def _hits(packed: bytes, now_us: int) -> Iterator[tuple[int, float] | None]:
    """Limit and window of each hit; None for one that comes after its deadline."""
    at, deadline_us = 0, 0.0
    while at < len(packed):
        (count,) = struct.unpack_from(">H", packed, at)
        at += 2
        if not count:
            (deadline_us,) = _DEADLINE.unpack_from(packed, at)
            at += _DEADLINE.size
        for _ in range(count & ~_SETTLED):
            limit, window_us, addend, _, flags = _HIT.unpack_from(packed, at)
            if flags or addend != 1:
                raise ValueError("only usual hits of fixed windows are known here")
            at += _HIT.size
            yield None if 0 < deadline_us < now_us else (limit, window_us)


def _slots(number: int) -> bytes:
    """The slots of a node, as CLUSTER SLOTS tells them."""
    first, after = (at * SLOTS // len(NODES) for at in (number, number + 1))
    host, port = NODES[number]
    return b"*3\r\n:%d\r\n:%d\r\n*2\r\n%b:%d\r\n" % (
        first,
        after - 1,
        _bulk(host.encode()),
        port,
    )


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)
