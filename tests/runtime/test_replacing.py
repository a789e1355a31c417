"""Which workers there are when deaths and a rolling restart meet, in whatever order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime import workers as module
from ratelimit_service.runtime.channel import MessageKind, Received
from ratelimit_service.runtime.worker_process import WorkerProcess
from ratelimit_service.runtime.workers import Listeners, Totals, Workers
from ratelimit_service.settings import Settings
from tests.runtime.seen import REDIS
from tests.waiting import PATIENCE_SECONDS, until


class Fake(WorkerProcess):
    """A worker without a process: it serves and dies when a test says so."""

    def __init__(self, number: int) -> None:
        super().__init__(number, os.getpid(), *socket.socketpair())
        self.listened = False

    @classmethod
    def spawn(cls, number: int, **_: bool) -> Fake:
        return cls(number)

    async def listen(self, received: Received) -> None:
        self._received, self.listened = received, True

    def serve(self) -> None:
        self._received(MessageKind.READY, b"")

    def ask_to_leave(self) -> None:
        self._received(MessageKind.LEAVING, b"")

    def leave(self, grace_us: int, *, draining: bool) -> None:
        self.leaving = True
        self.lost.set()

    def kill(self) -> None:
        self.lost.set()

    async def exited(self) -> None:
        await self.lost.wait()

    def bury(self) -> str:
        self.close()
        self.ended.set()
        return "died"


def so_many(count: int, health: Health) -> Workers:
    return Workers(
        Settings(store=REDIS),
        count,
        Totals(Stats(), health, Rulebook()),
        ConnectionLimiter(),
        Listeners(),
    )


class Fixture:
    def __init__(self) -> None:
        self.health = Health()
        self.workers = so_many(2, self.health)

    async def start(self) -> None:
        starting = asyncio.create_task(self.workers.start())
        await until(lambda: len(self.all) == 2)
        for worker in self.all:
            worker.serve()
        await starting

    @property
    def all(self) -> list[Fake]:
        # Nobody is shown workers that have not begun to serve.
        return [each for each in self.workers.processes if isinstance(each, Fake) and each.listened]

    @property
    def numbers(self) -> list[int]:
        return [worker.number for worker in self.all]


@pytest.fixture
async def fixture(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fixture]:
    monkeypatch.setattr(module, "WorkerProcess", Fake)
    monkeypatch.setattr(module, "_YOUNG_SECONDS", 0.0)
    fixture = Fixture()
    yield fixture
    await fixture.workers.stop(1_000_000)
    fixture.workers.tasks.cancel()  # what waits for stand-ins that never end


@pytest.mark.parametrize("later", [0, 1], ids=["the one after the death", "the restart's"])
async def test_worker_that_dies_before_its_turn_in_a_restart(fixture: Fixture, later: int) -> None:
    """If a death and a restart both start a worker of a number, one stays, whichever is later."""
    await fixture.start()
    _, second = fixture.all
    restart = asyncio.create_task(fixture.workers.replace())
    await until(lambda: fixture.numbers == [1, 2, 1])
    second.kill()
    await until(lambda: fixture.numbers == [1, 1, 2])
    fixture.all[1].serve()
    await until(lambda: fixture.numbers == [1, 2, 2])
    _, *both = fixture.all

    both[1 - later].serve()
    await until(lambda: both[1 - later].serves and (later == 1 or restart.done()))
    both[later].serve()

    assert await restart == ""
    await until(lambda: fixture.numbers == [1, 2])
    assert all(worker.serves for worker in fixture.all)
    assert fixture.all[1] is both[1]


async def test_worker_that_was_told_to_end_before_its_turn_in_a_restart(fixture: Fixture) -> None:
    """If a worker is told to end while a restart replaces it, one successor stays."""
    await fixture.start()
    restart = asyncio.create_task(fixture.workers.replace())
    await until(lambda: fixture.numbers == [1, 2, 1])
    fixture.all[1].ask_to_leave()
    await until(lambda: fixture.numbers == [1, 2, 1, 2])
    fixture.all[2].serve()
    await until(lambda: fixture.numbers == [2, 1, 2, 2])
    early, late = fixture.all[2:]

    late.serve()
    await until(restart.done)
    early.serve()

    await until(lambda: fixture.numbers == [1, 2])
    assert fixture.all[1] is late


@pytest.mark.parametrize("asked_to_leave", [False, True], ids=["dies", "is told to end"])
async def test_worker_that_is_not_needed_any_more(fixture: Fixture, asked_to_leave: bool) -> None:
    """Nothing takes the place of a worker beyond the number that there is to be."""
    await fixture.start()
    fixture.workers._count = 1  # as after a restart that leaves fewer
    second = fixture.all[1]

    if asked_to_leave:
        second.ask_to_leave()
    else:
        second.kill()

    await until(second.ended.is_set)
    for _ in range(10):
        await asyncio.sleep(0)
    assert fixture.numbers == [1]


async def test_no_worker_left(fixture: Fixture) -> None:
    """The service is not ready while all workers have died, and is again once one serves."""
    await fixture.start()
    health = fixture.health
    health.enter(Phase.SERVING)
    first, second = fixture.all
    first.kill()
    await until(lambda: first not in fixture.all)
    assert health.serving
    second.kill()
    await until(lambda: not health.serving)
    assert health.why_not.startswith("no worker serves")
    await until(lambda: fixture.numbers == [1, 2])
    fixture.all[0].serve()
    await until(lambda: health.serving)


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("rounds", range(6))
@pytest.mark.usefixtures("programs")
def test_restart_that_is_broken_off(
    loop: Callable[[], asyncio.AbstractEventLoop], rounds: int
) -> None:
    """A worker that a restart has just started hears that it is to end, and its end is noticed.

    The restart is broken off after so many rounds of the loop: each finds it at another step.
    """

    async def broken_off() -> None:
        workers = so_many(1, Health())
        restart = asyncio.create_task(workers.replace())
        for _ in range(rounds):
            await asyncio.sleep(0)
        restart.cancel()
        await asyncio.wait({restart})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await workers.stop(int(PATIENCE_SECONDS * 1_000_000))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(broken_off())
