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
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal, NotRequired, TypedDict

from ratelimit_service.errors import RateLimitError
from ratelimit_service.eventloop.clock import elapsed_us, now_us
from ratelimit_service.metrics import WorkerFigures
from ratelimit_service.runtime.channel import (
    Channel,
    Lost,
    MessageKind,
    Received,
    send_connection,
    sockets,
)
from ratelimit_service.runtime.signals import NOT_FOR_WORKERS

__all__ = ["SLACK_SECONDS", "Heartbeat", "Inherited", "WorkerProcess", "worker_command"]

SLACK_SECONDS = 2.0
"""If a worker takes so much longer to end than it was given, it is killed."""

_numbers: Final = count(1)
"""Of messages that have an answer; the answer brings the number back."""


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


class Heartbeat(TypedDict):
    """The state that a worker reports."""

    taken: int
    open: int
    gone: NotRequired[list[int]]
    """Connections that have ended. Older versions do not send it."""
    cpu_us: int
    resident_bytes: int
    faults: dict[str, str]
    notes: NotRequired[dict[str, str]]
    overrides: NotRequired[dict[str, int]]
    """Those in force, by kind."""
    live_counters: NotRequired[int]
    """Those in its memory."""


class _Connections:
    """The connections that a worker was handed, and the socket over which they go."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.handed = 0
        """How many it was given. `taken` is how many it says that it has got."""
        self.taken = self.open = 0
        self.peers: dict[int, str] = {}
        """The origin of each, by its number in the order of being handed over."""

    @property
    def load(self) -> int:
        """How many there are, with those that are on their way to it."""
        return self.open + self.handed - self.taken

    def give(self, connection: socket.socket, peer: str) -> None:
        """Hands one over. Raises OSError if the worker takes none just now, or is gone."""
        send_connection(self.end, connection)
        self.handed += 1
        self.peers[self.handed] = peer


class _Messages:
    """The messages to a worker, and the socket over which they go."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._channel: Channel | None = None
        self._unsent: list[tuple[MessageKind, bytes]] = []
        """From before `listen`."""
        self.rest = b""
        """The part that has come of an incomplete message; set between two program images."""
        self._silenced = False

    async def listen(self, received: Received, lost: Lost) -> None:
        self._channel = await Channel.open(self.end, received, lost, self.rest)
        for kind, payload in self._unsent:
            self._channel.send(kind, payload)
        self._unsent.clear()

    def send(self, kind: MessageKind, payload: bytes) -> None:
        if self._silenced:
            return
        if self._channel is None:
            self._unsent.append((kind, payload))
        else:
            self._channel.send(kind, payload)

    def silence(self) -> None:
        """Sends nothing more: the next program image would cut a message off."""
        self._silenced = True

    async def flushed(self) -> None:
        if self._channel is not None:
            await self._channel.flushed()

    def suspend(self) -> None:
        if self._channel is not None:
            self.rest = self._channel.suspend()

    def close(self) -> None:
        self.end.close()
        if self._channel is not None:
            self._channel.close()


@dataclass(frozen=True, slots=True)
class _Reported:
    """What a worker has said of itself in its last heartbeat."""

    cpu_us: int = 0
    resident_bytes: int = 0
    faults: dict[str, str] = field(default_factory=dict)


class WorkerProcess:
    """One process, and what it has reported."""

    def __init__(
        self, number: int, pid: int, messages: socket.socket, connections: socket.socket
    ) -> None:
        self.number = number
        self.pid = pid
        self.connections = _Connections(connections)
        self._messages = _Messages(messages)
        self.version = ""
        self._started_us = now_us()
        self._born_us = elapsed_us()
        self.reported = _Reported()
        self.silent = 0
        """How many heartbeats it has missed."""
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
        self._pending: dict[bytes, asyncio.Future[bytes | None]] = {}
        """Who waits for an answer of it, by the number of the message."""

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
        worker.version, worker.leaving = inherited["version"], inherited["leaving"]
        held = worker.connections
        held.handed, held.taken, held.open = (inherited[of] for of in ("handed", "taken", "open"))
        held.peers = {int(key): peer for key, peer in inherited.get("peers", {}).items()}
        worker._messages.rest = bytes.fromhex(inherited["rest"])
        worker._started_us = inherited["started_us"]
        worker.ready.set()
        return worker

    async def listen(self, received: Received) -> None:
        """Listens to the worker from now on, and sends what was to be sent before.

        Must not be cancelled: of a socket that is opened and given up again uvloop never says
        that it is lost, so nobody would see the worker's end.
        """
        await self._messages.listen(received, self.lost.set)

    async def silenced(self) -> bool:
        """Tells it nothing more, and waits until all is sent; returns whether that was in time.

        If not, the worker is killed and has ended.
        """
        self._messages.silence()
        try:
            async with asyncio.timeout(SLACK_SECONDS):
                await self._messages.flushed()
        except TimeoutError:
            self.why = "hung"
            self.kill()
            await self.ended.wait()
            return False
        return True

    def suspend(self) -> None:
        """Stops listening to it: its messages and its end are for the next program image."""
        self._messages.suspend()

    async def hand_over(self) -> Inherited:
        """What the next program image must know of it. All messages to it must be sent."""
        await self._messages.flushed()
        messages, held = self._messages, self.connections
        for end in (messages.end, held.end):
            end.set_inheritable(True)
        return Inherited(
            number=self.number,
            pid=self.pid,
            version=self.version,
            messages=messages.end.fileno(),
            connections=held.end.fileno(),
            rest=messages.rest.hex(),
            handed=held.handed,
            taken=held.taken,
            open=held.open,
            started_us=self._started_us,
            leaving=self.leaving,
            peers={str(number): peer for number, peer in held.peers.items()},
        )

    @property
    def serves(self) -> bool:
        """Whether it may be given connections."""
        return self.ready.is_set() and not self.leaving and not self.lost.is_set()

    @property
    def age_us(self) -> int:
        """For how long this program image has known it."""
        return elapsed_us() - self._born_us

    def figures(self) -> WorkerFigures:
        """What metrics show of it."""
        cpu_us, resident_bytes = self.reported.cpu_us, self.reported.resident_bytes
        return WorkerFigures(self.number, self.connections.load, cpu_us, resident_bytes)

    def described(self) -> dict[str, object]:
        """What `/processes` shows."""
        starting_or_serving = "serving" if self.ready.is_set() else "starting"
        return {
            "worker": self.number,
            "pid": self.pid,
            "version": self.version,
            "state": "leaving" if self.leaving or self.outgoing else starting_or_serving,
            "connections": self.connections.load,
            "seconds": (now_us() - self._started_us) // 1_000_000,
        }

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Sends it a message, once somebody listens to it; does nothing if it is gone."""
        self._messages.send(kind, payload)

    async def ask(self, kind: MessageKind, payload: bytes, seconds: float) -> bytes | None:
        """Its answer to a message that has one; None if it ends before. Raises TimeoutError."""
        number = (next(_numbers) % (1 << 32)).to_bytes(4, "big")
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        self.send(kind, number + payload)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            self._pending.pop(number, None)

    def answered(self, payload: bytes) -> None:
        """Gives its answer to who waits for it, if anybody still does."""
        answer = self._pending.get(payload[:4])
        if answer is not None and not answer.done():
            answer.set_result(payload[4:])

    def note(self, heartbeat: Heartbeat) -> list[str]:
        """Notes what it says of itself; returns whose connections have ended."""
        held = self.connections
        held.taken, held.open = heartbeat["taken"], heartbeat["open"]
        self.reported = _Reported(
            heartbeat["cpu_us"], heartbeat["resident_bytes"], heartbeat["faults"]
        )
        gone = [number for number in heartbeat.get("gone", ()) if number in held.peers]
        return [held.peers.pop(number) for number in gone]

    def leave(self, grace_us: int, *, draining: bool) -> None:
        """Tells it to finish and end."""
        self.leaving = True
        fields = {"grace_us": grace_us, "draining": draining}
        self.send(MessageKind.LEAVE, json.dumps(fields).encode())

    def kill(self) -> None:
        """Ends it at once."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes both sockets: nothing is sent or received any more."""
        self._messages.close()
        self.connections.end.close()

    async def settled(self) -> None:
        """Waits until it is ready, or has failed."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in waits:
                event.cancel()

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
        self.close()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_result(None)
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
