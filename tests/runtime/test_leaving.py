"""A worker that was told to end: beside a successor that dies, and before it has any rules."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket

import pytest

from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime.channel import Channel, MessageKind
from ratelimit_service.runtime.worker_process import WorkerProcess, worker_command
from ratelimit_service.runtime.workers import Listeners, Totals, Workers
from ratelimit_service.settings import Settings
from tests.runtime.seen import REDIS, stand_in
from tests.waiting import PATIENCE_SECONDS


class Stand(WorkerProcess):
    """A worker of whom only the supervisor's side is there."""

    def __init__(self) -> None:
        ends = [*socket.socketpair(), *socket.socketpair()]
        super().__init__(1, os.getpid(), ends[0], ends[2])
        self._ends = ends
        self.sent: list[MessageKind] = []
        self.ready.set()

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        assert json.loads(payload)
        self.sent.append(kind)

    def close(self) -> None:
        for each in self._ends:
            each.close()


async def test_successor_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a successor that has died is seen off, nobody looks again and again; then one is."""
    workers = Workers(
        Settings(store=REDIS),
        1,
        Totals(Stats(), Health(), Rulebook()),
        ConnectionLimiter(),
        Listeners(),
    )
    leaving, dead, next_one = Stand(), Stand(), Stand()
    dead.lost.set()
    stand_in(workers, leaving, dead)
    looks = [0]
    successor = workers._successor  # how often it looks is seen in no other way

    def looked(number: int) -> WorkerProcess | None:
        looks[0] += 1
        return successor(number)

    monkeypatch.setattr(workers, "_successor", looked)
    # A stand-in has no process that says LEAVING.
    letting = asyncio.create_task(workers._let_leave(leaving))
    for _ in range(100):
        await asyncio.sleep(0)
    assert looks == [1]
    assert leaving.sent == []

    stand_in(workers, leaving, next_one)
    dead.ended.set()
    await asyncio.wait_for(letting, PATIENCE_SECONDS)

    assert leaving.sent == [MessageKind.LEAVE]
    assert leaving.why == "replaced"
    for each in (leaving, dead, next_one):
        each.close()


@pytest.mark.parametrize("gone", [False, True], ids=["told", "supervisor gone"])
@pytest.mark.parametrize("settled", [False, True], ids=["new", "settings known"])
async def test_worker_that_has_no_rules_yet(gone: bool, settled: bool) -> None:
    """A worker ends when it is told to, or nobody is there any more, also while it starts."""
    ends, its_ends = zip(socket.socketpair(), socket.socketpair(), strict=True)
    descriptors = [each.fileno() for each in its_ends]
    command = [*worker_command(beside=False), *map(str, descriptors)]
    worker = await asyncio.create_subprocess_exec(*command, pass_fds=descriptors)
    for each in its_ends:
        each.close()
    result: asyncio.Queue[int] = asyncio.Queue()
    channel = await Channel.open(ends[0], lambda kind, _: result.put_nowait(kind), lambda: None)
    assert await result.get() == MessageKind.HELLO
    if settled:
        channel.send(MessageKind.SETTINGS, pickle.dumps((1, Settings())))

    if gone:
        channel.close()
    else:
        channel.send_json(MessageKind.LEAVE, {"grace_us": 1_000_000_000, "draining": True})

    try:
        assert await asyncio.wait_for(worker.wait(), PATIENCE_SECONDS) == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
        channel.close()
        ends[1].close()
