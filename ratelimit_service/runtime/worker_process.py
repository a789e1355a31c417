"""One worker as its supervisor sees it: a process, two sockets, and what it has reported.

What must not live here: decisions about workers (`workers`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from typing import Literal, NotRequired, TypedDict

from ratelimit_service.errors import RateLimitError, StatusCode
from ratelimit_service.eventloop.clock import elapsed_us, now_us
from ratelimit_service.runtime.channel import Channel, MessageKind, Received, sockets
from ratelimit_service.runtime.signals import NOT_FOR_WORKERS
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.service.questions import unanswered

__all__ = ["SLACK_SECONDS", "Inherited", "WorkerProcess", "worker_command"]

SLACK_SECONDS = 2.0
"""If a worker takes so much longer to end than it was given, it is killed."""


class Inherited(TypedDict):
    """A worker as its supervisor hands it to the next program image. Its descriptors are open."""

    number: int
    pid: int
    version: str
    messages: int
    connections: int
    rest: str
    """The part that has come of an incomplete message, in hexadecimal digits."""
    handed: int
    taken: int
    open: int
    started_us: int
    leaving: bool
    peers: NotRequired[dict[str, str]]


class WorkerProcess:
    """One process, and what it has reported."""

    def __init__(
        self, number: int, pid: int, messages: socket.socket, connections: socket.socket
    ) -> None:
        self.number = number
        self.pid = pid
        self.connections = connections
        self._messages = messages
        self._channel: Channel | None = None
        self._unsent: list[tuple[MessageKind, bytes]] = []
        """Messages to it from before `listen`."""
        self._rest = b""
        """The part that has come of an incomplete message; set between two program images."""
        self._mute = False
        """Whether it is told nothing more: the next program image would cut a message off."""
        self.version = ""
        self._started_us = now_us()
        self._born_us = elapsed_us()
        self.handed = 0
        """How many connections it was given. `taken` is how many it says that it has got."""
        self.peers: dict[int, str] = {}
        """The origin of each connection, by its number in the order of being handed over."""
        self.taken = self.open = self.cpu_us = self.resident_bytes = 0
        self.faults: dict[str, str] = {}
        self.silent = 0
        """How many beats it has missed."""
        self.missed = False
        """Whether it counts as hung, and is not killed."""
        self.lost = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when it is ready, or when it is known that it will not be."""
        self.outgoing = False
        """Whether somebody else told it to end. It serves until another takes its place."""
        self.leaving = False
        """Whether we have told it to end. It takes no new connections."""
        self.why: Literal["died", "hung", "replaced"] = "died"
        """Will say how it ended."""
        self.failure = ""
        """The reason why it cannot start, if it gave one; else how it ended."""
        self.reports: dict[bytes, asyncio.Event] = {}
        """Who waits for its counts, by the number of the request."""
        self.asked: dict[bytes, asyncio.Future[Answer]] = {}
        """The requests that it was asked to decide, by number."""
        self.questions: dict[bytes, asyncio.Future[bytes]] = {}
        """The questions that it was asked, by number."""

    @classmethod
    def spawn(cls, number: int, *, beside: bool) -> WorkerProcess:
        """Starts a worker, which gives way to others as it starts if that is `beside` them.

        Raises RateLimitError if the system cannot start a process.
        """
        with ExitStack() as ours, ExitStack() as its:
            try:
                messages, its_messages = _pair(ours, its)
                connections, its_connections = _pair(ours, its)
                pid = _spawned(worker_command(beside=beside), its_messages, its_connections)
            except OSError as error:
                raise RateLimitError(f"a worker cannot be started: {error.strerror}") from error
            connections.setblocking(False)
            ours.pop_all()  # they stay open
        return cls(number, pid, messages, connections)

    @classmethod
    def adopt(cls, inherited: Inherited) -> WorkerProcess:
        """Takes over a serving worker from the former image of this program."""
        messages, connections = sockets([inherited["messages"], inherited["connections"]])
        worker = cls(inherited["number"], inherited["pid"], messages, connections)
        worker.version, worker.handed = inherited["version"], inherited["handed"]
        worker.taken, worker.open = inherited["taken"], inherited["open"]
        worker.leaving = inherited["leaving"]
        worker.peers = {int(key): peer for key, peer in inherited.get("peers", {}).items()}
        worker._rest = bytes.fromhex(inherited["rest"])
        worker._started_us = inherited["started_us"]
        worker.ready.set()
        return worker

    async def listen(self, received: Received) -> None:
        """Listens to the worker from now on, and sends what was to be sent before.

        Must not be cancelled: of a socket that is opened and given up again uvloop never says
        that it is lost, so nobody would see the worker's end.
        """
        self._channel = await Channel.open(self._messages, received, self.lost.set, self._rest)
        for kind, payload in self._unsent:
            self._channel.send(kind, payload)
        self._unsent.clear()

    async def told_all(self) -> bool:
        """Tells it nothing more, and waits until all is sent; returns whether that was in time.

        If not, the worker is killed and has ended.
        """
        self._mute = True
        if self._channel is None:
            return True
        try:
            async with asyncio.timeout(SLACK_SECONDS):
                await self._channel.flushed()
        except TimeoutError:
            self.why = "hung"
            self.kill()
            await self.ended.wait()
            return False
        return True

    def suspend(self) -> None:
        """Stops listening to it: its messages and its end are for the next program image."""
        if self._channel is not None:
            self._rest = self._channel.suspend()

    async def hand_over(self) -> Inherited:
        """What the next program image must know of it. All messages to it must be sent."""
        if self._channel is not None:
            await self._channel.flushed()
        for end in (self._messages, self.connections):
            end.set_inheritable(True)
        return Inherited(
            number=self.number,
            pid=self.pid,
            version=self.version,
            messages=self._messages.fileno(),
            connections=self.connections.fileno(),
            rest=self._rest.hex(),
            handed=self.handed,
            taken=self.taken,
            open=self.open,
            started_us=self._started_us,
            leaving=self.leaving,
            peers={str(number): peer for number, peer in self.peers.items()},
        )

    @property
    def serves(self) -> bool:
        """Whether it may be given connections."""
        return self.ready.is_set() and not self.leaving and not self.lost.is_set()

    @property
    def load(self) -> int:
        """How many connections it has, with those that are on their way to it."""
        return self.open + self.handed - self.taken

    @property
    def age_us(self) -> int:
        """For how long this program image has known it."""
        return elapsed_us() - self._born_us

    def told(self) -> dict[str, object]:
        """What `/processes` shows."""
        starting_or_serving = "serving" if self.ready.is_set() else "starting"
        return {
            "worker": self.number,
            "pid": self.pid,
            "version": self.version,
            "state": "leaving" if self.leaving or self.outgoing else starting_or_serving,
            "connections": self.load,
            "seconds": (now_us() - self._started_us) // 1_000_000,
        }

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Sends it a message, once somebody listens to it; does nothing if it is gone."""
        if self._mute:
            return
        if self._channel is None:
            self._unsent.append((kind, payload))
        else:
            self._channel.send(kind, payload)

    def answered(self, kind: int, payload: bytes) -> None:
        """Gives its answer to who waits for it, if anybody still does."""
        number, said = payload[:4], payload[4:]
        if kind == MessageKind.REPORTED:
            if number in self.reports:
                self.reports[number].set()
        elif kind == MessageKind.DECIDED:
            answer = self.asked.get(number)
            if answer is not None and not answer.done():
                code, said = said[0], said[1:]
                answer.set_result(Refusal(StatusCode(code), said.decode()) if code else said)
        elif kind == MessageKind.TOLD:
            told = self.questions.get(number)
            if told is not None and not told.done():
                told.set_result(said)

    def leave(self, grace_us: int, *, draining: bool) -> None:
        """Tells it to finish and end."""
        self.leaving = True
        said = {"grace_us": grace_us, "draining": draining}
        self.send(MessageKind.LEAVE, json.dumps(said).encode())

    def kill(self) -> None:
        """Ends it at once."""
        os.kill(self.pid, signal.SIGKILL)

    async def settled(self) -> None:
        """Waits until it is ready, or has failed."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self.ready, self.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def retire(self, grace_us: int) -> None:
        """Lets it finish and end, for a newer one; kills it if it takes longer than it may."""
        if self.ended.is_set():
            return
        self.why = "replaced"
        self.leave(grace_us, draining=False)
        try:
            async with asyncio.timeout(grace_us / 1_000_000 + SLACK_SECONDS):
                await self.ended.wait()
        except TimeoutError:
            self.kill()
            await self.ended.wait()

    async def exited(self) -> None:
        """Waits until it has hung up and its process has ended; the pid stays until `bury`."""
        await self.lost.wait()
        until_us, pause = elapsed_us() + int(SLACK_SECONDS * 1_000_000), 0.001
        # No thread waits for it: there may be none, and then nobody would ever see its end.
        while not self._has_exited():
            if elapsed_us() > until_us:
                self.kill()  # it has closed its socket, but its process goes on
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _has_exited(self) -> bool:
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.pid, how) is not None

    def bury(self) -> str:
        """Lets go of a worker that has `exited` and of who waits for it; returns how it ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        self._messages.close()
        self.connections.close()
        if self._channel is not None:
            self._channel.close()
        gone = Refusal(StatusCode.UNAVAILABLE, "the worker ended before it answered")
        for answer in self.asked.values():
            if not answer.done():
                answer.set_result(gone)
        for told in self.questions.values():
            if not told.done():
                told.set_result(unanswered(gone.message, StatusCode.UNAVAILABLE))
        for report in self.reports.values():
            report.set()
        self.failure = self.failure or f"a worker ended before it served: {how}"
        self.ended.set()
        return how


def worker_command(*, beside: bool) -> list[str]:
    """The command that starts a worker; its file descriptors are added to that."""
    code = "from ratelimit_service.runtime.worker import main; main()"
    if beside:
        name = "ratelimit_service.runtime.worker"
        importing = "from ratelimit_service.processes.low_priority import imported"
        code = f"{importing}; imported({name!r}).main()"
    return [sys.executable, "-P", "-c", code]  # -P: import nothing from the working directory


def _pair(ours: ExitStack, its: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Two sockets that are connected; each is closed with its stack."""
    here, there = socket.socketpair()
    return ours.enter_context(here), its.enter_context(there)


def _spawned(command: list[str], messages: socket.socket, connections: socket.socket) -> int:
    """Starts a process that has these ends; returns its pid. Raises OSError."""
    for end in (messages, connections):
        end.set_inheritable(True)
        command.append(str(end.fileno()))
    environment = os.environ  # noqa: TID251 -- handed on, not read
    return os.posix_spawn(sys.executable, command, environment, setsigmask=NOT_FOR_WORKERS)
