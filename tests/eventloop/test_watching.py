"""The scheduler hears of real sockets: who has sent something, has ended, or can be written to."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import Scheduler
from tests.waiting import until


class Reading:
    """A client of a real socket, that reads so much in a visit."""

    def __init__(self, held: Scheduler, most: int = 65_536) -> None:
        self.used_us = 0
        self.mine, self.other = socket.socketpair()
        self.mine.setblocking(False)
        self.other.setblocking(False)
        self.heard = b""
        self.events = 0
        self.waits = self.ended = False
        self.during: Callable[[], object] | None = None
        self._most = most
        held.watch(self.mine, self)

    def has_much(self) -> bool:
        return False

    def ready(self, since_us: int, events: int) -> bool:
        assert since_us <= elapsed_us()
        self.events |= events
        new = bool(events & ~select.EPOLLOUT) and not self.waits
        self.waits = self.waits or new
        return new

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        try:
            data = self.mine.recv(self._most)
        except BlockingIOError:
            self.waits = False
            return False
        self.heard += data
        if self.during is not None:
            self.during()
            self.during = None
        self.ended = not data
        self.waits = not self.ended
        return self.waits

    def flush(self) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error

    def close(self, held: Scheduler) -> None:
        held.unwatch(self.mine)
        self.mine.close()
        self.other.close()


async def test_what_comes_is_heard() -> None:
    """Clients are visited when something comes, again and again, without anybody asking."""
    held = Scheduler()
    clients = [Reading(held) for _ in range(5)]

    for number in range(3):
        for each in clients:
            each.other.send(b"%d" % number)
        for each in clients:
            await until(lambda: each.heard[-1:] == b"%d" % number)  # noqa: B023

    assert [each.heard for each in clients] == [b"012"] * 5
    for each in clients:
        each.close(held)


async def test_what_comes_during_a_visit() -> None:
    """What comes between a read and the end of its visit is heard as well."""
    held = Scheduler()
    client = Reading(held)
    client.during = lambda: client.other.send(b"second")

    client.other.send(b"first ")

    await until(lambda: client.heard == b"first second")
    client.close(held)


async def test_the_last_words_and_the_end() -> None:
    """Data and the end of the other side that come together are heard both."""
    held = Scheduler()
    client = Reading(held, most=4)

    client.other.send(b"goodbye")
    client.other.close()

    await until(lambda: client.ended)
    assert client.heard == b"goodbye"
    assert client.events & select.EPOLLRDHUP
    client.close(held)


async def test_writable_again() -> None:
    """A client whose socket was full hears when it can be written to; else it hears nothing."""
    held = Scheduler()
    client = Reading(held)
    try:
        while True:
            client.mine.send(bytes(65_536))
    except BlockingIOError:
        held.watch_writes(client.mine, blocked=True)
    await asyncio.sleep(0)
    assert client.events == 0

    try:
        while client.other.recv(1 << 20):
            pass
    except BlockingIOError:
        await until(lambda: bool(client.events & select.EPOLLOUT))
    held.watch_writes(client.mine, blocked=False)
    client.events = 0
    client.other.send(b"more")
    await until(lambda: client.heard == b"more")

    assert not client.events & select.EPOLLOUT
    client.close(held)


async def test_a_forgotten_socket() -> None:
    """Nothing is heard of a socket any more that was forgotten; another one may come then."""
    held = Scheduler()
    client = Reading(held)
    held.unwatch(client.mine)
    held.unwatch(client.mine)

    client.other.send(b"too late")
    another = Reading(held)
    another.other.send(b"hello")
    await until(lambda: another.heard == b"hello")

    assert client.heard == b""
    client.close(held)
    another.close(held)


async def test_a_fault_in_hearing_that_something_has_come() -> None:
    """It is told to its client; others of whom something has come are visited all the same."""
    held = Scheduler()
    clients = [Reading(held) for _ in range(5)]

    def fail(since_us: int, events: int) -> bool:
        raise ZeroDivisionError

    def drop(error: Exception) -> None:
        failing.close(held)

    failing = clients[0]
    failing.ready = fail  # type: ignore[method-assign]
    failing.fail = drop  # type: ignore[method-assign]

    for each in clients:
        each.other.send(b"hello")
    for each in clients[1:]:
        await until(lambda: each.heard == b"hello")  # noqa: B023

    assert failing.mine.fileno() == -1
    for each in clients[1:]:
        each.close(held)
