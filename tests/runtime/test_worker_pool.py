"""What workers are asked for by many at once costs them as little as if one had asked."""

from __future__ import annotations

import asyncio
import os
import socket

from ratelimit_service import __version__
from ratelimit_service.eventloop.slices import SLICE
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime.channel import MessageKind
from ratelimit_service.runtime.worker_pool import WorkerPool
from ratelimit_service.runtime.worker_process import WorkerProcess
from tests.grpc.served_ends import rounds
from tests.runtime.seen import stand_in


class Reporting(WorkerProcess):
    """A worker that reports when it is let."""

    def __init__(self) -> None:
        self._ends = [*socket.socketpair(), *socket.socketpair()]
        super().__init__(1, os.getpid(), self._ends[0], self._ends[2])
        self.version = __version__
        self.ready.set()
        self.asked_for: list[bytes] = []

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        assert kind == MessageKind.REPORT
        self.asked_for.append(payload)

    def report(self) -> None:
        """Answers the last one who has asked."""
        self.answered(self.asked_for[-1])

    def close(self) -> None:
        for each in self._ends:
            each.close()


async def test_many_scrapes_share_a_report() -> None:
    """A scrape gets counts until now. Those that come while workers report share the next one."""
    workers, worker = WorkerPool(), Reporting()
    stand_in(workers, worker)

    first = [asyncio.create_task(workers.collect()) for _ in range(100)]
    await rounds()
    later = [asyncio.create_task(workers.collect()) for _ in range(100)]
    await rounds()
    assert len(worker.asked_for) == 1

    worker.report()
    await asyncio.gather(*first)
    await rounds()
    assert len(worker.asked_for) == 2
    assert not any(each.done() for each in later)

    worker.report()
    await asyncio.gather(*later)
    last = asyncio.create_task(workers.collect())
    await rounds()
    assert len(worker.asked_for) == 3
    worker.report()
    await last
    worker.close()


async def test_a_scrape_that_goes_does_not_end_the_report_of_others() -> None:
    """Whoever hangs up takes nothing from those that wait for the same report."""
    workers, worker = WorkerPool(), Reporting()
    stand_in(workers, worker)
    gone, stays = (asyncio.create_task(workers.collect()) for _ in range(2))
    await rounds()

    gone.cancel()
    await rounds()
    worker.report()
    await stays

    assert len(worker.asked_for) == 1
    worker.close()


async def test_many_series_are_reported_a_few_at_a_time() -> None:
    """However many series one rule has, requests come between each few of them."""
    book, series = Rulebook(), 1_000
    tallies = book.tallies_of("edge", "user")
    for number in range(series):
        tallies.of(f"{number}").hits = 1
    taken = [0]

    async def take() -> None:
        async for _ in book.take():
            taken[-1] += 1

    taking = asyncio.create_task(take())
    while not taking.done():
        await asyncio.sleep(0)
        taken.append(0)

    assert sum(taken) == series
    assert max(taken) <= SLICE
