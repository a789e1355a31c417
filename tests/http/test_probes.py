"""What probes get: whether it lives, whether it is ready, and both in time under full load."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.turns import TURN_US, Turns
from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from tests.http.test_http import Site

PROBES = ["/healthcheck", "/livez", "/readyz"]
IN_TIME_US = 100_000


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, Settings(), None)
    await site.start()
    yield site
    await site.admin.close()


@pytest.mark.parametrize(
    ("phase", "statuses"),
    [
        (Phase.STARTING, [500, 200, 503]),
        (Phase.SERVING, [200, 200, 200]),
        (Phase.LEAVING, [200, 200, 200]),
        (Phase.DRAINING, [500, 200, 503]),
    ],
)
async def test_phases(site: Site, phase: Phase, statuses: list[int]) -> None:
    """It lives in every phase, and is ready while it takes new requests."""
    site.asking.health.enter(phase)

    assert [(await site.ask(path)).status for path in PROBES] == statuses


@pytest.mark.parametrize("path", PROBES)
async def test_degraded(site: Site, path: str) -> None:
    """What is degraded neither ends the service nor takes it out of its load balancer."""
    site.asking.health.enter(Phase.SERVING)
    site.asking.health.degrade("store", "Redis is away")

    assert (await site.ask(path)).status == 200


async def test_held(site: Site) -> None:
    """What no request can do without takes it out of its load balancer; the probe says what."""
    site.asking.health.enter(Phase.SERVING)
    site.asking.health.hold("workers", "no worker serves")
    site.asking.health.degrade("store", "Redis is away")

    answers = [await site.ask(path) for path in PROBES]
    assert [answer.status for answer in answers] == [500, 200, 503]
    assert answers[2].text == "no worker serves\nstore: Redis is away\n"
    site.asking.health.let_go("workers")
    assert [(await site.ask(path)).status for path in PROBES] == [200, 200, 200]


@pytest.mark.parametrize("path", PROBES)
async def test_any_name(site: Site, path: str) -> None:
    """Probes may come by a name that is not known: they are told nothing that is secret."""
    site.asking.health.enter(Phase.SERVING)

    assert (await site.ask(path, Host="limits.example.com")).status == 200


class Endless:
    """A connection with more to be handled than can ever be, and a probe beside it.

    The probe connects and asks in the first turn; after each turn it is seen whether it has its
    answer. Everything happens in one thread, so the count of turns does not depend on the machine.
    """

    def __init__(self, port: int, path: str) -> None:
        self.used_us = 0
        self.dear, self.brought_calls, self.late, self.little_pieces = False, True, False, 0
        self.turns = 0
        self.answer = b""
        self.answered = asyncio.Event()
        self._probe = socket.create_connection(("127.0.0.1", port))
        self._probe.sendall(f"GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode())

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        while elapsed_us() < now_us + TURN_US:  # one piece is a turn
            pass
        return not self.answered.is_set()

    def end_turn(self) -> None:
        self.turns += 1
        try:
            self.answer = self._probe.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        self._probe.close()
        self.answered.set()

    def fail(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("path", PROBES)
async def test_full_load(site: Site, path: str) -> None:
    """A probe on a new connection is answered within 100 ms of turns, however much else waits."""
    site.asking.health.enter(Phase.SERVING)
    load = Endless(site.port, path)
    turns = Turns()

    turns.add(load, 0)
    async with asyncio.timeout(60):
        await load.answered.wait()

    assert load.answer.startswith(b"HTTP/1.1 200 OK")
    assert load.turns * TURN_US <= IN_TIME_US
