"""What workers are told of changed rules, also late ones, and what they tell of themselves."""

from __future__ import annotations

import asyncio
import os
import socket

from ratelimit_service import __version__
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats, Tallies
from ratelimit_service.rules.build import BuildCache, Version, build
from ratelimit_service.rules.records import Assembly
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.runtime.channel import Channel, MessageKind
from ratelimit_service.runtime.worker import _Worker
from ratelimit_service.runtime.worker_process import WorkerProcess
from ratelimit_service.runtime.workers import Listeners, Totals, Workers
from ratelimit_service.settings import Settings
from tests.grpc.served_ends import rounds
from tests.runtime.seen import stand_in
from tests.waiting import PATIENCE_SECONDS

FILES, RULES = 8, 200
"""So many that it counts for little what a message has beside its rules."""
CHANGES = 24


class Assembling(WorkerProcess):
    """A worker that puts together what it is told."""

    def __init__(self) -> None:
        self._ends = [*socket.socketpair(), *socket.socketpair()]
        super().__init__(1, os.getpid(), self._ends[0], self._ends[2])
        self._assembly = Assembly(Tallies)
        self.bytes = 0
        self.rules: dict[str, int] = {}

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        self.bytes += len(payload)
        if kind == MessageKind.RULES:
            self._assembly.add(payload)
        elif kind == MessageKind.RULES_END:
            domains = self._assembly.domains
            self.rules = {
                name: rule.limits[0].requests_per_unit
                for name, domain in domains.items()
                for rule in domain.rules
            }
            self._assembly = Assembly(Tallies, domains)

    def close(self) -> None:
        for each in self._ends:
            each.close()


async def test_changes_reach_early_and_late_workers() -> None:
    """After any number of changes both have the rules of now, and few bytes were sent for each."""
    book = Rulebook()
    workers = Workers(
        Settings(),
        1,
        Totals(Stats(), Health(), book),
        ConnectionLimiter(),
        Listeners(),
    )
    early = Assembling()
    early.version = __version__
    stand_in(workers, early)
    files = dict.fromkeys(range(FILES), 1)
    cache = BuildCache()
    whole = most_late = 0
    for change in range(CHANGES):
        files[change % FILES] = change + 1
        versions = [_file(number, requests) for number, requests in files.items()]
        built = build(versions, Tallies, strict=True, cache=cache)
        book.swap(built.domains, frozenset())
        await workers.send_rules()
        late = Assembling()
        workers._welcome(late, __version__)  # its HELLO would need a process
        late.close()

        assert early.rules == late.rules == {f"d{name}": of for name, of in files.items()}
        whole = whole or early.bytes
        most_late = max(most_late, late.bytes)

    early.close()
    assert early.bytes < CHANGES * whole / 4
    assert most_late < 4 * whole


def _file(number: int, requests: int) -> Version:
    rules = "".join(
        f"\n  - {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}"
        for n in range(RULES)
    )
    return Version(f"{number}.yaml", f"domain: d{number}\ndescriptors:{rules}".encode(), None)


async def test_many_changes_of_a_worker_are_told_together() -> None:
    """However often a worker's state changes in a moment, it tells of it once."""
    received: list[int] = []
    ours, its, connections, others = (*socket.socketpair(), *socket.socketpair())
    supervisor = await Channel.open(ours, lambda kind, _: received.append(kind), lambda: None)
    worker = _Worker(connections)  # none of its process: what it is told when is the test's
    worker._channel = await Channel.open(its, lambda _kind, _payload: None, lambda: None)

    started = elapsed_us()
    for _ in range(500):
        worker._send_heartbeat_soon()
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while worker._heartbeat_due:
            await asyncio.sleep(0)
    await rounds()

    assert set(received) == {MessageKind.HEARTBEAT}
    assert len(received) <= 1 + (elapsed_us() - started) // 10_000
    for each in (supervisor, worker._channel):
        each.close()
    for end in (connections, others):
        end.close()
    await rounds()
