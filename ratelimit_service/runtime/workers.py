"""The workers as their supervisor sees them: started, given connections, heard, replaced.

A worker that dies is replaced at once, or later and later if it keeps dying. A worker that says
nothing any more is killed and then replaced, unless its memory has the counters. What must not live
here: signals, ports, where rules come from, what is asked of workers (`worker_pool`), and what
health says of them (`workers_health`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict

from ratelimit_service import __version__
from ratelimit_service.errors import RateLimitError
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.metrics import WorkerFigures
from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats, Taken
from ratelimit_service.rules.rulebook import Rulebook, Tallied
from ratelimit_service.runtime.channel import HEARTBEAT_SECONDS, MessageKind
from ratelimit_service.runtime.process import Tasks
from ratelimit_service.runtime.rule_messages import RuleMessages, TypedMessage
from ratelimit_service.runtime.sole_worker import keeps_counters, why_one_worker
from ratelimit_service.runtime.worker_pool import WorkerPool
from ratelimit_service.runtime.worker_process import (
    SLACK_SECONDS,
    Heartbeat,
    Inherited,
    WorkerProcess,
)
from ratelimit_service.runtime.workers_health import WorkersHealth
from ratelimit_service.settings import Settings
from ratelimit_service.text.display import count

__all__ = ["Counts", "Listeners", "Totals", "Workers"]

log = logging.getLogger(__name__)

_SILENT_HEARTBEATS = 10
"""After so many missed beats a worker counts as hung."""

_SILENT_US = int(_SILENT_HEARTBEATS * HEARTBEAT_SECONDS * 1_000_000)

_DOUBTED_HEARTBEATS = 2
"""After so many missed beats it gets no connections if there are other workers."""

_START_SECONDS = 60.0
_YOUNG_SECONDS = 3.0
"""A worker that dies younger than this is started again with a pause."""

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0


class Counts(TypedDict, total=False):
    """What a process has counted: tallies by domain, path and value, and the stats."""

    rules: list[Tallied]
    counters: Taken  # the stats; older versions call them so


class Totals(NamedTuple):
    """What workers report is added to these."""

    stats: Stats
    health: Health
    book: Rulebook


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told what becomes of workers, and what they send on."""

    changed: Callable[[], None] = lambda: None
    """More or fewer workers take connections."""
    other_version: Callable[[str], None] = lambda _: None
    """A worker finds that another version is installed now."""
    spans: Callable[[bytes], None] = lambda _: None
    decisions: Callable[[bytes], None] = lambda _: None
    """Packets of the decision log."""


class Workers(WorkerPool):
    """So many workers of one service, at all times."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        totals: Totals,
        limiter: ConnectionLimiter,
        listeners: Listeners,
        tls: TLS | None = None,
    ) -> None:
        """A client whose connection has ended leaves the `limiter`."""
        super().__init__()
        self._settings = settings
        self._count = count
        self._totals = totals
        self._limiter = limiter
        self._listeners = listeners
        self._tls = tls
        self._rules = RuleMessages()
        self._failures: dict[int, int] = {}
        """For each number how often in a row its worker died young."""
        self._overall = WorkersHealth(totals.health, count)
        self._stopping = False
        self._live_counters = 0
        self.port = 0
        """That a worker has opened itself, over grpcio; 0 if none has."""
        self.tasks = Tasks(_fail)

    # Starting and ending

    async def start(self) -> None:
        """Starts all workers. Raises RateLimitError with a worker's reason if it cannot start."""
        self.tasks.start(self._watch_heartbeats())
        try:
            started = [await self._spawn(number) for number in range(1, self._count + 1)]
        except RateLimitError:
            self.kill()
            raise
        for worker in started:
            await worker.settled()
            if not worker.ready.is_set():
                self.kill()
                raise RateLimitError(worker.failure)

    async def adopt(self, inherited: Sequence[Inherited]) -> None:
        """Takes over the workers of this process's former program image."""
        self.tasks.start(self._watch_heartbeats())
        for former in inherited:
            worker = WorkerProcess.adopt(former)
            for peer in worker.connections.peers.values():
                self._limiter.count(peer)
            await self._open(worker)

    async def hand_over(self) -> list[Inherited]:
        """Stops listening to workers, and returns what the next program image must know of them.

        Workers that are just starting, or take no messages, are not handed over.
        """
        self._stopping = True
        for worker in list(self.processes):
            if not await worker.silenced():
                log.error("worker %d (pid %d) hung and was killed", worker.number, worker.pid)
                self._totals.stats.worker_ends["hung"] += 1
        while away := [
            one for one in self.processes if one.lost.is_set() or not one.ready.is_set()
        ]:
            for worker in away:
                if not worker.lost.is_set():
                    worker.kill()
                await worker.ended.wait()
        for worker in self.processes:
            worker.suspend()
        return [await worker.hand_over() for worker in self.processes]

    async def replace(self) -> str:
        """Puts new workers in the place of all that there are, one after the other.

        Each old one is told to end when the new one serves; its clients are told to come again
        (GOAWAY). Returns why not, if a new one cannot start: then the old ones stay.
        """
        for number in range(1, self._count + 1):
            try:
                new = await self._spawn(number, beside=True)
            except RateLimitError as error:
                return str(error)
            await new.settled()
            if not new.ready.is_set():
                return new.failure
            for worker in self._surplus():
                await worker.retire(self._settings.grace_us)
        return ""

    def _surplus(self) -> list[WorkerProcess]:
        """Workers that are replaced by a newer one of the same number, or not needed any more."""
        serving = [worker for worker in self.processes if worker.serves]
        newest = {worker.number: worker for worker in serving if self._needs(worker.number)}
        return [worker for worker in serving if newest.get(worker.number) is not worker]

    async def stop(self, grace_us: int) -> None:
        """Lets all workers finish for at most so long, then ends them."""
        self._stopping = True
        for worker in self.processes:
            worker.leave(grace_us, draining=True)
        try:
            async with asyncio.timeout(grace_us / 1_000_000 + SLACK_SECONDS):
                await self._all_ended()
        except TimeoutError:
            for worker in self.processes:
                log.error(  # noqa: TRY400 - a traceback of ours says nothing of the worker
                    "worker %d (pid %d) did not end in time and was killed",
                    worker.number,
                    worker.pid,
                )
            self.kill()
            await self._all_ended()

    def kill(self) -> None:
        """Ends all workers at once."""
        self._stopping = True
        for worker in self.processes:
            worker.kill()

    async def _all_ended(self) -> None:
        for worker in list(self.processes):
            await worker.ended.wait()

    # What they do

    @property
    def serving(self) -> int:
        """How many workers take connections."""
        return sum(worker.serves for worker in self.processes)

    def give(self, connection: socket.socket, peer: str) -> bool:
        """Hands a connection to the worker with the fewest; returns whether one took it.

        A worker that is silent, or will be replaced, gets connections only if there is no other.
        """
        serving = [worker for worker in self.processes if worker.serves]
        healthy = [
            worker
            for worker in serving
            if worker.silent < _DOUBTED_HEARTBEATS and not worker.outgoing
        ]
        for worker in sorted(healthy or serving, key=lambda worker: worker.connections.load):
            try:
                worker.connections.give(connection, peer)
            except OSError:  # this worker takes none just now, or is gone
                continue
            return True
        return False

    async def send_rules(self) -> None:
        """Sends the rules of now to all workers, also to those that start later."""
        rules = await self._rules.add(self._totals.book.snapshot)
        for worker in self.processes:
            if worker.version == __version__:
                self._send_rules_to(worker, rules)

    async def send_tls(self, tls: TLS) -> None:
        """Sends the content of the gRPC port's TLS files to all workers, also to later ones."""
        self._tls = tls
        for worker in self.processes:
            if worker.version == __version__:
                worker.send(MessageKind.TLS, pickle.dumps(tls))

    def figures(self) -> list[WorkerFigures]:
        """What metrics show of each worker that is not about to end."""
        return [worker.figures() for worker in self.processes if worker.serves]

    def live_counters(self) -> int:
        """How many counters are in the memory of workers."""
        return self._live_counters

    def described(self) -> list[dict[str, object]]:
        """What `/processes` shows of every worker."""
        return [worker.described() for worker in self.processes]

    # One worker's life

    async def _spawn(self, number: int, *, beside: bool = False) -> WorkerProcess:
        worker = WorkerProcess.spawn(number, beside=beside)
        await self._open(worker)
        return worker

    async def _open(self, worker: WorkerProcess) -> None:
        self.processes.append(worker)
        self.tasks.start(self._see_off(worker))
        # Who waits for this may be told to stop, in the midst of a restart that is broken off.
        await asyncio.shield(self.tasks.start(worker.listen(partial(self._received, worker))))

    async def _see_off(self, worker: WorkerProcess) -> None:
        """Waits for a worker's end, and has another take its place."""
        await worker.lost.wait()
        self._overall.hold(self.serving, stopping=self._stopping)
        self._listeners.changed()
        await worker.exited()
        self.processes.remove(worker)  # first, because its pid could soon belong to another process
        ended = worker.bury()
        for peer in worker.connections.peers.values():
            self._limiter.leave(peer)
        if self._stopping:
            return
        self._overall.sum_up(worker.reported.faults for worker in self.processes)
        if worker.ready.is_set() or worker.why == "hung":
            self._totals.stats.worker_ends[worker.why] += 1
        if worker.why == "replaced":
            log.info("worker %d (pid %d) has ended", worker.number, worker.pid)
            return
        if worker.ready.is_set():
            log.error(
                "worker %d (pid %d) %s: %s; %s broke",
                worker.number,
                worker.pid,
                "hung and was killed" if worker.why == "hung" else ended,
                "another is started" if self._needs(worker.number) else "no other is needed",
                count(worker.connections.load, "connection"),
            )
            if keeps_counters(self._settings):
                log.error("counters began again, and overrides that no file has are gone")
                self._live_counters = 0
            await self._start_again(worker)

    async def _start_again(self, worker: WorkerProcess) -> None:
        """Replaces a worker that died, unless that has happened; later if it died young."""
        number = worker.number
        self._look()
        young = worker.age_us < _YOUNG_SECONDS * 1_000_000
        failures = self._failures[number] = self._failures.get(number, 0) + 1 if young else 0
        while self._needs(number) and not self._stopping and not self._successor(number):
            if failures > 1:
                pause = min(_PAUSE_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
                if self._stopping or self._successor(number):
                    return
            try:
                new = await self._spawn(number)
            except RateLimitError as error:
                log.error("%s", error)  # noqa: TRY400 -- the error says all
            else:
                await new.settled()
                if new in self._surplus():  # meanwhile a restart has started one
                    await new.retire(self._settings.grace_us)
                if new.ready.is_set() or self._stopping:
                    return
                log.error("worker %d cannot start: %s", number, new.failure)
            failures = self._failures[number] = max(2, failures + 1)

    def _needs(self, number: int) -> bool:
        """Whether a worker of this number is needed: after a restart there may be fewer."""
        return number <= self._count

    def _successor(self, number: int) -> WorkerProcess | None:
        """The worker of this number that is to stay; it may just be starting."""
        for worker in self.processes:
            if worker.number == number and not worker.leaving and not worker.outgoing:
                return worker
        return None

    async def _watch_heartbeats(self) -> None:
        """Counts the beats that each worker misses. A worker that misses too many is hung.

        If the whole machine was stopped, workers could not beat. But this process was stopped
        as well, so it has not counted meanwhile.
        """
        while not self._stopping:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for worker in self.processes:
                worker.silent += 1
                bound = (
                    _SILENT_HEARTBEATS
                    if worker.ready.is_set()
                    else _START_SECONDS / HEARTBEAT_SECONDS
                )
                if worker.silent <= bound or worker.age_us <= _SILENT_US:
                    continue
                if worker.ready.is_set() and keeps_counters(self._settings):
                    self._miss(worker)
                else:
                    worker.why = "hung"
                    worker.kill()

    def _miss(self, worker: WorkerProcess) -> None:
        """Says that a worker is silent which is not killed, because its counters are the state."""
        if not worker.missed:
            worker.missed = True
            log.error(
                "worker %d (pid %d) hangs; it is not killed, because its memory has the counters",
                worker.number,
                worker.pid,
            )
            self._look()

    def _look(self) -> None:
        """Says in health how many workers are missing."""
        healthy = sum(worker.serves and not worker.missed for worker in self.processes)
        self._overall.look(healthy, stopping=self._stopping)

    # What they say

    def _received(self, worker: WorkerProcess, kind: int, payload: bytes) -> None:
        if kind == MessageKind.HELLO:
            self._welcome(worker, json.loads(payload)["version"])
        elif kind == MessageKind.READY:
            worker.silent = 0
            self.port = int(payload or b"0")
            worker.ready.set()
            log.info("worker %d (pid %d) serves", worker.number, worker.pid)
            self._look()
            self._listeners.changed()
        elif kind == MessageKind.FAILED:
            worker.failure = payload.decode()
        elif kind == MessageKind.HEARTBEAT:
            self._note_heartbeat(worker, json.loads(payload))
        elif kind == MessageKind.COUNTS:
            self.add_counts(json.loads(payload))
        elif kind in {MessageKind.REPORTED, MessageKind.DECIDED, MessageKind.ANSWER}:
            worker.answered(payload)
        elif kind == MessageKind.SPANS:
            self._listeners.spans(payload)
        elif kind == MessageKind.DECISIONS:
            self._listeners.decisions(payload)
        elif kind == MessageKind.LEAVING:
            self.tasks.start(self._let_leave(worker))

    def _note_heartbeat(self, worker: WorkerProcess, heartbeat: Heartbeat) -> None:
        worker.silent = 0
        if worker.missed:
            worker.missed = False
            log.info("worker %d (pid %d) goes on", worker.number, worker.pid)
            self._look()
        self._live_counters = heartbeat.get("live_counters", 0)
        former = worker.reported.faults
        for peer in worker.note(heartbeat):
            self._limiter.leave(peer)
        self._totals.stats.overrides = heartbeat.get("overrides", {})
        self._overall.note(heartbeat.get("notes", {}))
        if worker.reported.faults != former:
            self._overall.sum_up(worker.reported.faults for worker in self.processes)

    def _welcome(self, worker: WorkerProcess, version: str) -> None:
        worker.version = version
        if version != __version__:
            worker.failure = f"version {version} is installed now, this is {__version__}"
            worker.kill()
            self._listeners.other_version(version)
            return
        worker.send(MessageKind.TLS, pickle.dumps(self._tls))
        worker.send(MessageKind.SETTINGS, pickle.dumps((worker.number, self._settings)))
        self._send_rules_to(worker, self._rules.messages)

    def _send_rules_to(self, worker: WorkerProcess, rules: Sequence[TypedMessage]) -> None:
        for kind, payload in rules:
            worker.send(kind, payload)

    async def _let_leave(self, worker: WorkerProcess) -> None:
        """Replaces a worker that somebody else told to end; until then it serves on."""
        if worker.leaving or worker.outgoing or self._stopping:
            return
        worker.outgoing = True
        log.warning("worker %d (pid %d) was told to end", worker.number, worker.pid)
        if why_one_worker(self._settings):  # never two at once: it ends first
            worker.leave(self._settings.grace_us, draining=False)
            self._look()
            self._listeners.changed()
            return
        while not self._stopping:
            successor = self._successor(worker.number)
            if successor is None and self._needs(worker.number):
                await self._start_again(worker)
                continue
            if successor is not None:
                await successor.settled()
                if successor.lost.is_set():
                    await successor.ended.wait()
                    continue
            if successor is None or successor.serves:
                worker.why = "replaced"
                worker.leave(self._settings.grace_us, draining=False)
                return

    def add_counts(self, counts: Counts) -> None:
        """Adds the counts of another process to those of this one."""
        self._totals.book.add(counts["rules"])
        if taken := counts.get("counters"):
            self._totals.stats.add(taken)


def _fail(error: BaseException) -> None:
    log.critical("a fault of the supervisor: please report this", exc_info=error)
