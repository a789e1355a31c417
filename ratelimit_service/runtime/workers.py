"""The workers as their supervisor sees them: started, given connections, heard, replaced.

A worker that dies is started again at once, later and later if it keeps dying; one that says
nothing is killed first. What must not live here: signals, ports, where rules come from.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypedDict

from ratelimit_service import __version__
from ratelimit_service.clock import elapsed_us, now_us
from ratelimit_service.errors import RateLimitError, StatusCode
from ratelimit_service.health import Health
from ratelimit_service.metrics import WorkerFigures
from ratelimit_service.observer import Counters, Taken
from ratelimit_service.rules.records import packed
from ratelimit_service.rules.rulebook import Rulebook, Tallied
from ratelimit_service.runtime.channel import Channel, Kind, send_connection, sockets
from ratelimit_service.runtime.signals import NOT_FOR_WORKERS
from ratelimit_service.runtime.worker import BEAT_SECONDS
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.settings import Settings

__all__ = ["Counts", "Inherited", "Workers"]

log = logging.getLogger(__name__)

_SILENT_BEATS = 10
"""After so many beats missed a worker is taken to hang."""

_DOUBTED_BEATS = 2
"""After so many it gets no connections, if there are others."""

_START_SECONDS = 60.0
_YOUNG_SECONDS = 3.0
"""A worker that dies younger than this is started again with a pause."""

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_REPORT_SECONDS = 1.0
_DECIDE_SECONDS = 30.0
_SLACK_SECONDS = 2.0
"""How much longer than it was given a worker may take to end, before it is killed."""


class Counts(TypedDict, total=False):
    """What a process has counted: tallies by domain, path and value, and all else."""

    rules: list[Tallied]
    counters: Taken


class Inherited(TypedDict):
    """A worker as its supervisor hands it to the next program image. Descriptors are open."""

    number: int
    pid: int
    version: str
    messages: int
    connections: int
    rest: str
    """Bytes of a message that has not come whole, in hexadecimal digits."""
    handed: int
    taken: int
    open: int
    started_us: int
    leaving: bool


class _Worker:
    """One process, and what it has said of itself."""

    def __init__(
        self, number: int, pid: int, messages: socket.socket, connections: socket.socket
    ) -> None:
        self.number = number
        self.pid = pid
        self.messages = messages
        self.connections = connections
        self.channel: Channel | None = None
        self.version = ""
        self.started_us = now_us()
        self.born_us = elapsed_us()
        self.handed = 0
        self.lost = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        """Also set once it is known that it will not be ready."""
        self.leaving = False
        self.failure = ""
        """Why it says that it cannot start; else how it ended."""
        self.why = "died"
        """What its end will have been."""
        self.silent = 0
        """Beats missed."""
        self.taken = self.open = self.cpu_us = self.resident_bytes = 0
        self.faults: dict[str, str] = {}
        self.reports: dict[bytes, asyncio.Event] = {}
        self.asked: dict[bytes, asyncio.Future[Answer]] = {}

    @property
    def serves(self) -> bool:
        """Whether it may be given connections."""
        return self.ready.is_set() and not self.leaving and not self.lost.is_set()

    @property
    def load(self) -> int:
        """Its connections, those included that are on their way to it."""
        return self.open + self.handed - self.taken

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        if self.channel is not None:
            self.channel.send(kind, payload)

    def leave(self, grace_us: int, *, draining: bool) -> None:
        """Tells it to finish and end."""
        self.leaving = True
        said = {"grace_us": grace_us, "draining": draining}
        self.send(Kind.LEAVE, json.dumps(said).encode())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Workers:
    """So many workers of one service, at all times."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        counters: Counters,
        health: Health,
        book: Rulebook,
        changed: Callable[[], None],
        other_version: Callable[[str], None],
    ) -> None:
        """What workers count is added to `counters` and the book's tallies.

        Their faults go to `health`.
        `changed` is called when more or fewer of them take connections, `other_version` when a
        worker finds that another version is installed now.
        """
        self._settings = settings
        self._count = count
        self._counters = counters
        self._health = health
        self._book = book
        self._changed = changed
        self._other_version = other_version
        self._all: list[_Worker] = []
        self._rules: list[tuple[Kind, bytes]] = []
        """What tells a worker the rules that hold now."""
        self._failures: dict[int, int] = {}
        """How often in a row the worker of a number died young."""
        self._faulty: set[str] = set()
        self._number = 0
        self._begun = False
        """Whether there have been enough of them once."""
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    # Starting and ending

    async def start(self) -> None:
        """Starts all. Raises RateLimitError if one cannot start, for the reason that it gives."""
        self._do(self._watch_beats())
        started = [await self._spawn(number) for number in range(1, self._count + 1)]
        for worker in started:
            await self._started(worker)
            if not worker.ready.is_set():
                self.kill()
                raise RateLimitError(worker.failure)

    async def adopt(self, inherited: Sequence[Inherited]) -> None:
        """Takes over the workers of this process's former program image."""
        self._do(self._watch_beats())
        for each in inherited:
            messages, connections = sockets([each["messages"], each["connections"]])
            worker = _Worker(each["number"], each["pid"], messages, connections)
            worker.version, worker.handed = each["version"], each["handed"]
            worker.taken, worker.open = each["taken"], each["open"]
            worker.started_us, worker.leaving = each["started_us"], each["leaving"]
            worker.ready.set()
            await self._open(worker, bytes.fromhex(each["rest"]))

    async def hand_over(self) -> list[Inherited]:
        """Hears no worker any more, and returns what the next program image must know of them.

        Workers that are just being started do not come along.
        """
        self._stopping = True
        for worker in [worker for worker in self._all if not worker.ready.is_set()]:
            worker.kill()
            await worker.ended.wait()
        for worker in [worker for worker in self._all if worker.lost.is_set()]:
            await worker.ended.wait()
        handed = []
        for worker in self._all:
            if worker.channel is None:
                continue
            for end in (worker.messages, worker.connections):
                end.set_inheritable(True)
            handed.append(
                Inherited(
                    number=worker.number,
                    pid=worker.pid,
                    version=worker.version,
                    messages=worker.messages.fileno(),
                    connections=worker.connections.fileno(),
                    rest=worker.channel.suspend().hex(),
                    handed=worker.handed,
                    taken=worker.taken,
                    open=worker.open,
                    started_us=worker.started_us,
                    leaving=worker.leaving,
                )
            )
            await worker.channel.flushed()
        return handed

    async def replace(self) -> str:
        """Puts new workers in the place of all that there are, one after the other.

        Each old one is told to end when the new one serves; its clients are told to come again
        (GOAWAY). Returns why not, if a new one cannot start: then the old ones stay.
        """
        for number in range(1, self._count + 1):
            new = await self._spawn(number)
            await self._started(new)
            if not new.ready.is_set():
                return new.failure
            for worker in self._surplus():
                await self._retire(worker)
        return ""

    def _surplus(self) -> list[_Worker]:
        """Those for whom there is a newer one of the same number, or no need any more."""
        serving = [worker for worker in self._all if worker.serves]
        newest = {worker.number: worker for worker in serving if worker.number <= self._count}
        return [worker for worker in serving if newest.get(worker.number) is not worker]

    async def stop(self, grace_us: int) -> None:
        """Lets all finish for at most so long, then ends them."""
        self._stopping = True
        for worker in self._all:
            worker.leave(grace_us, draining=True)
        try:
            async with asyncio.timeout(grace_us / 1_000_000 + _SLACK_SECONDS):
                await self._all_ended()
        except TimeoutError:
            self.kill()
            await self._all_ended()

    def kill(self) -> None:
        """Ends all at once."""
        self._stopping = True
        for worker in self._all:
            worker.kill()

    async def _all_ended(self) -> None:
        for worker in list(self._all):
            await worker.ended.wait()

    # What they do

    @property
    def serving(self) -> int:
        """How many take connections."""
        return sum(worker.serves for worker in self._all)

    def give(self, connection: socket.socket) -> bool:
        """Hands a connection to the worker with the fewest; tells whether one took it."""
        serving = [worker for worker in self._all if worker.serves]
        well = [worker for worker in serving if worker.silent < _DOUBTED_BEATS]
        for worker in sorted(well or serving, key=lambda worker: worker.load):
            try:
                send_connection(worker.connections, connection)
            except OSError:  # it takes none just now, or is gone
                continue
            worker.handed += 1
            return True
        return False

    async def tell_rules(self) -> None:
        """Tells all workers, and those to come, the rules that hold now."""
        snapshot = self._book.snapshot
        rules = []
        for part in packed(snapshot.domains.values()):
            rules.append((Kind.RULES, part))
            await asyncio.sleep(0)
        unserved = json.dumps(sorted(snapshot.unserved)).encode()
        self._rules = [*rules, (Kind.RULES_END, unserved)]
        for worker in self._all:
            if worker.version == __version__:
                self._tell_rules_to(worker)

    async def decide(self, bodies: Sequence[bytes]) -> list[Answer]:
        """As `Service.decide`, in one of the workers."""
        return [await self._decide(body) for body in bodies]

    async def collect(self) -> None:
        """Has all workers say what they have counted until now; waits for a second at most."""
        number = self._next_number()
        reports = []
        for worker in self._all:
            if worker.ready.is_set() and worker.version == __version__:
                reports.append(worker.reports.setdefault(number, asyncio.Event()))
                worker.send(Kind.REPORT, number)
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                for report in reports:
                    await report.wait()
        except TimeoutError:
            log.warning("a worker did not say in time what it has counted")
        for worker in self._all:
            worker.reports.pop(number, None)

    def figures(self) -> list[WorkerFigures]:
        """What metrics show of each worker that is not on its way out."""
        return [
            WorkerFigures(worker.number, worker.load, worker.cpu_us, worker.resident_bytes)
            for worker in self._all
            if worker.serves
        ]

    def told(self) -> list[dict[str, object]]:
        """What `/processes` shows of every worker."""
        return [
            {
                "worker": worker.number,
                "pid": worker.pid,
                "version": worker.version,
                "state": "leaving"
                if worker.leaving
                else "serving"
                if worker.ready.is_set()
                else "starting",
                "connections": worker.load,
                "seconds": (now_us() - worker.started_us) // 1_000_000,
            }
            for worker in self._all
        ]

    async def _decide(self, body: bytes) -> Answer:
        serving = [worker for worker in self._all if worker.serves]
        if not serving:
            return Refusal(StatusCode.UNAVAILABLE, "no worker serves: see the log")
        worker = min(serving, key=lambda worker: worker.load)
        number = self._next_number()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        worker.asked[number] = answer
        worker.send(Kind.DECIDE, number + body)
        try:
            async with asyncio.timeout(_DECIDE_SECONDS):
                return await answer
        except TimeoutError:
            return Refusal(StatusCode.UNAVAILABLE, "the worker did not answer: see the log")
        finally:
            worker.asked.pop(number, None)

    def _next_number(self) -> bytes:
        self._number = (self._number + 1) % (1 << 32)
        return self._number.to_bytes(4, "big")

    # One worker's life

    async def _spawn(self, number: int) -> _Worker:
        messages, its_messages = socket.socketpair()
        connections, its_connections = socket.socketpair()
        with its_messages, its_connections:
            pid = _spawned(its_messages, its_connections)
        connections.setblocking(False)
        worker = _Worker(number, pid, messages, connections)
        await self._open(worker)
        return worker

    async def _open(self, worker: _Worker, rest: bytes = b"") -> None:
        self._all.append(worker)
        self._do(self._see_off(worker))
        worker.channel = await Channel.open(
            worker.messages, partial(self._received, worker), worker.lost.set, rest
        )

    async def _started(self, worker: _Worker) -> None:
        """Waits until it is ready, or has failed."""
        waits = [asyncio.ensure_future(each.wait()) for each in (worker.ready, worker.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _retire(self, worker: _Worker) -> None:
        """Lets it finish, for as long as the settings say, and end."""
        if worker.ended.is_set():
            return
        worker.why = "replaced"
        worker.leave(self._settings.grace_us, draining=False)
        try:
            async with asyncio.timeout(self._settings.grace_us / 1_000_000 + _SLACK_SECONDS):
                await worker.ended.wait()
        except TimeoutError:
            worker.kill()
            await worker.ended.wait()

    async def _see_off(self, worker: _Worker) -> None:
        """Waits for its end; sees to it that another takes its place."""
        await worker.lost.wait()
        self._changed()
        # Not reaped before it is forgotten, so that its pid stays its own.
        how = os.WEXITED | os.WNOWAIT
        waiting = asyncio.create_task(asyncio.to_thread(os.waitid, os.P_PID, worker.pid, how))
        done, _ = await asyncio.wait({waiting}, timeout=_SLACK_SECONDS)
        if not done:
            worker.kill()  # it has hung up, and does not end
        await waiting
        self._all.remove(worker)
        ended = _reaped(worker.pid)
        worker.messages.close()
        worker.connections.close()
        if worker.channel is not None:
            worker.channel.close()
        gone = Refusal(StatusCode.UNAVAILABLE, "the worker ended before it answered")
        for answer in worker.asked.values():
            if not answer.done():
                answer.set_result(gone)
        for report in worker.reports.values():
            report.set()
        worker.failure = worker.failure or f"a worker ended before it served: {ended}"
        worker.ended.set()
        if self._stopping:
            return
        self._sum_up_faults()
        if worker.ready.is_set() or worker.why == "hung":
            self._counters.worker_ends[worker.why] += 1
        if worker.why == "replaced":
            log.info("worker %d (pid %d) has ended", worker.number, worker.pid)
            return
        if worker.ready.is_set():
            log.error(
                "worker %d (pid %d) %s: another is started; %d connections broke",
                worker.number,
                worker.pid,
                "hung and was killed" if worker.why == "hung" else ended,
                worker.load,
            )
            await self._start_again(worker)

    async def _start_again(self, worker: _Worker) -> None:
        """Fills the place of one that died, unless that has happened; later if it died young."""
        number = worker.number
        self._tell_health()
        young = elapsed_us() - worker.born_us < _YOUNG_SECONDS * 1_000_000
        failures = self._failures[number] = self._failures.get(number, 0) + 1 if young else 0
        while not self._stopping and not self._is_filled(number):
            if failures > 1:
                pause = min(_PAUSE_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
                if self._stopping or self._is_filled(number):
                    return
            try:
                new = await self._spawn(number)
            except RateLimitError as error:
                log.error("%s", error)  # noqa: TRY400 -- it says all
            else:
                await self._started(new)
                if new.ready.is_set() or self._stopping:
                    return
                log.error("worker %d cannot start: %s", number, new.failure)
            failures = self._failures[number] = max(2, failures + 1)

    def _is_filled(self, number: int) -> bool:
        return any(each.number == number and not each.leaving for each in self._all)

    async def _watch_beats(self) -> None:
        """Counts the beats that each misses. One that is stopped misses them, so do we then."""
        while not self._stopping:
            await asyncio.sleep(BEAT_SECONDS)
            for worker in self._all:
                worker.silent += 1
                age_us = elapsed_us() - worker.born_us
                bound = _SILENT_BEATS if worker.ready.is_set() else _START_SECONDS / BEAT_SECONDS
                if worker.silent > bound and age_us > _SILENT_BEATS * BEAT_SECONDS * 1_000_000:
                    worker.why = "hung"
                    worker.kill()

    # What they say

    def _received(self, worker: _Worker, kind: int, payload: bytes) -> None:
        if kind == Kind.HELLO:
            self._greet(worker, json.loads(payload)["version"])
        elif kind == Kind.READY:
            worker.silent = 0
            worker.ready.set()
            log.info("worker %d (pid %d) serves", worker.number, worker.pid)
            self._tell_health()
            self._changed()
        elif kind == Kind.FAILED:
            worker.failure = payload.decode()
        elif kind == Kind.BEAT:
            said = json.loads(payload)
            worker.silent = 0
            worker.taken, worker.open = said["taken"], said["open"]
            worker.cpu_us, worker.resident_bytes = said["cpu_us"], said["resident_bytes"]
            if worker.faults != said["faults"]:
                worker.faults = said["faults"]
                self._sum_up_faults()
        elif kind == Kind.COUNTS:
            self.add_counts(json.loads(payload))
        elif kind == Kind.REPORTED:
            if payload in worker.reports:
                worker.reports[payload].set()
        elif kind == Kind.DECIDED:
            answer = worker.asked.get(payload[:4])
            if answer is not None and not answer.done():
                code, said = payload[4], payload[5:]
                answer.set_result(Refusal(StatusCode(code), said.decode()) if code else said)
        elif kind == Kind.LEAVING:
            self._do(self._let_leave(worker))

    def _greet(self, worker: _Worker, version: str) -> None:
        worker.version = version
        if version != __version__:
            worker.failure = f"version {version} is installed now, this is {__version__}"
            worker.kill()
            self._other_version(version)
            return
        worker.send(Kind.SETTINGS, pickle.dumps((worker.number, self._settings)))
        self._tell_rules_to(worker)

    def _tell_rules_to(self, worker: _Worker) -> None:
        for kind, payload in self._rules:
            worker.send(kind, payload)

    async def _let_leave(self, worker: _Worker) -> None:
        """One that somebody else told to end: another takes its place before it does."""
        if worker.leaving or self._stopping:
            return
        worker.leaving, worker.why = True, "replaced"
        self._changed()
        log.warning("worker %d (pid %d) was told to end", worker.number, worker.pid)
        await self._start_again(worker)
        worker.leave(self._settings.grace_us, draining=False)

    def add_counts(self, said: Counts) -> None:
        """Adds what somebody else has counted to what is counted here."""
        self._book.add(said["rules"])
        if counters := said.get("counters"):
            self._counters.add(counters)

    def _sum_up_faults(self) -> None:
        """What any worker has to say of a component holds for the service."""
        faults: dict[str, str] = {}
        for worker in self._all:
            for component, reason in worker.faults.items():
                faults.setdefault(component, reason)
        for component in self._faulty - faults.keys():
            self._health.recover(component)
        self._faulty = set(faults)
        for component, reason in faults.items():
            self._health.degrade(component, reason)

    def _tell_health(self) -> None:
        missing = self._count - self.serving
        self._begun = self._begun or missing <= 0
        if missing > 0 and self._begun:
            self._health.degrade(
                "workers", f"{missing} of {self._count} workers are missing: see the log"
            )
        else:
            self._health.recover("workers")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.critical("a fault of the supervisor: please report this", exc_info=error)


def _spawned(messages: socket.socket, connections: socket.socket) -> int:
    """The pid of a new worker, which has these ends. Raises RateLimitError."""
    code = "from ratelimit_service.runtime.worker import main; main()"
    command = [sys.executable, "-P", "-c", code]  # -P: not what lies in the working directory
    for end in (messages, connections):
        end.set_inheritable(True)
        command.append(str(end.fileno()))
    try:
        environment = os.environ  # noqa: TID251 -- handed on, not read
        return os.posix_spawn(sys.executable, command, environment, setsigmask=NOT_FOR_WORKERS)
    except OSError as error:
        raise RateLimitError(f"a worker cannot be started: {error.strerror}") from error


def _reaped(pid: int) -> str:
    """How a process ended that has; its pid may be another's from now on."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
