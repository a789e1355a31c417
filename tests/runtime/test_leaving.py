"""A worker that was told to end, beside a successor that dies: without processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

from ratelimit_service.accepting import Guests
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime.channel import MessageKind
from ratelimit_service.runtime.worker_process import WorkerProcess
from ratelimit_service.runtime.workers import Workers
from ratelimit_service.settings import Settings
from tests.servers.process import PATIENCE_SECONDS


class Stand(WorkerProcess):
    """A worker of whom only the supervisor's side is there."""

    def __init__(self) -> None:
        ends = [*socket.socketpair(), *socket.socketpair()]
        super().__init__(1, os.getpid(), ends[0], ends[2])
        self._ends = ends
        self.said: list[MessageKind] = []
        self.ready.set()

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        assert json.loads(payload)
        self.said.append(kind)

    def close(self) -> None:
        for each in self._ends:
            each.close()


async def test_successor_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a successor that has died is seen off, nobody looks again and again; then one is."""
    workers = Workers(
        Settings(), 1, Stats(), Health(), Rulebook(), Guests(), lambda: None, lambda _: None
    )
    leaving, dead, next_one = Stand(), Stand(), Stand()
    dead.lost.set()
    workers._all = [leaving, dead]
    looks = [0]
    successor = workers._successor

    def looked(number: int) -> WorkerProcess | None:
        looks[0] += 1
        return successor(number)

    monkeypatch.setattr(workers, "_successor", looked)
    letting = asyncio.create_task(workers._let_leave(leaving))
    for _ in range(100):
        await asyncio.sleep(0)
    assert looks == [1]
    assert leaving.said == []

    workers._all = [leaving, next_one]
    dead.ended.set()
    await asyncio.wait_for(letting, PATIENCE_SECONDS)

    assert leaving.said == [MessageKind.LEAVE]
    assert leaving.why == "replaced"
    for each in (leaving, dead, next_one):
        each.close()
