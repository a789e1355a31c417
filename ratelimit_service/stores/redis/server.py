"""One Redis server: its connection, its clock, and whether it is well.

A task of its own keeps the connection up. A server is judged by how often it was late, and once it
is sick by pings, so that no request has to find out that it is sick. What must not live here:
script calls, and what becomes of requests while the server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from ratelimit_service.errors import StoreError
from ratelimit_service.eventloop.backoff import Backoff
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.stores.redis.address import Address, Sentinels
from ratelimit_service.stores.redis.batch import Urgency
from ratelimit_service.stores.redis.breaker import Breaker
from ratelimit_service.stores.redis.config import ShardConfig
from ratelimit_service.stores.redis.connection import (
    Argument,
    RedisConnection,
    Reply,
    all_read,
    expect,
    open_connection,
)
from ratelimit_service.stores.redis.error_replies import is_refused
from ratelimit_service.stores.redis.processes import (
    HEARTBEAT_SECONDS,
    Process,
    farewell,
    heartbeat,
    others,
)
from ratelimit_service.stores.redis.script import SCRIPT
from ratelimit_service.stores.redis.sentinel import find, moved
from ratelimit_service.stores.redis.server_clock import ServerClock

__all__ = ["Server", "ServerObserver"]

log = logging.getLogger(__name__)

_HUNG_SECONDS: Final = 1.0
"""It may take so long to connect, and for each answer to a greeting. Later a connection is given up
if calls are pending and the server is silent for so long."""

_STALLED_SECONDS: Final = 5.0
"""It is given up as well if no reply is whole for so long, though bytes of one trickle in."""

_CALM_SECONDS: Final = 1.0
"""Replies are a recovery only after so long without a fault."""

_BACK_OFF_SECONDS: Final = 0.05
_LONGEST_BACK_OFF_SECONDS: Final = 0.5
"""The first and the longest time from one attempt to connect to the next. One that takes longer is
followed at once."""

_UP_AFTER: Final = 3
"""A sick server is well again when it has answered so many pings in a row in time."""

_PING_SECONDS: Final = 0.05
"""The pause between two pings."""


class ServerObserver(Protocol):
    """Hears of the server."""

    def up(self) -> None:
        """The server can be asked from now on."""

    def down(self, reason: str) -> None:
        """The server cannot be asked any more: it is away, or sick."""

    async def greet(self, connection: RedisConnection) -> None:
        """Called on a new connection before it is used."""

    async def every_second(self) -> None:
        """Called once a second while there is a connection, and when the server is well again."""

    def saw_processes(self, processes: Sequence[Process]) -> None:
        """These processes count in the server, this one included."""

    def heartbeat_key(self) -> str | None:
        """The key under which processes are listed in the server."""


class Server:
    """The way to one server (6.2 or later), or to the master that Sentinel names."""

    def __init__(
        self,
        address: Address | Sentinels,
        process: Process,
        observer: ServerObserver,
        config: ShardConfig,
    ) -> None:
        self._address = address
        self.name = str(address)
        """How the log calls it."""
        self.timeout_us = config.timeout_us
        """How long it may take to answer."""
        self._config = config
        self._process = process
        self._observer = observer
        self.clock = ServerClock(config.clock)
        self.breaker = Breaker(config.timeout_us)
        self._refused: set[str] = set()
        """The commands that the server has refused for good."""
        self._bugs = Bugs()
        self._loop = asyncio.get_running_loop()
        self.connection: RedisConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._alarm: asyncio.Future[str] = self._loop.create_future()
        """Done when somebody should look at the connection."""
        self._fault_at: float | None = None
        self.at = ""
        """Where it is connected; a master that Sentinel names may be elsewhere the next time."""
        self.round_trip_us: int | None = None
        """How long the last heartbeat took there and back."""

    async def start(self) -> None:
        """Tries to connect once, at most a second for each answer, and then in the background."""
        tried = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep_connected(tried))
        await tried.wait()

    async def close(self) -> None:
        """Disconnects for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self.connection is not None:
            if key := self._observer.heartbeat_key():
                self.connection.send(farewell(self._process, key), _ignore)
            self.connection.close()
            self.connection = None
        self._observer.down("disconnected")

    def forget_faults(self) -> None:
        """Takes the server out of health's faults, because nobody needs it any more."""
        self._config.health.recover(self._config.component)

    @property
    def available(self) -> bool:
        """Whether it can be asked now."""
        return self.connection is not None and not self.breaker.open

    @property
    def unavailable(self) -> str:
        """Why it cannot be asked now."""
        return "disconnected" if self.connection is None else "circuit_open"

    def call(self, *command: Argument) -> asyncio.Future[Reply] | None:
        """Sends it a command; None if it is away."""
        return self.connection.call(*command) if self.connection else None

    def when_handed_on(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` once every reply that has been read until now is handed on.

        Returns whether there is any; if not, `callback` is not called.
        """
        return self.connection is not None and self.connection.when_handed_on(callback)

    def late(self, read_us: int, patience_us: int) -> bool:
        """Whether the server, and not this process, keeps calls waiting for so long.

        Everything that had come by `read_us` has been read. So the server is late if a command left
        that long before `read_us` and still has no reply.
        """
        return self._waited_us(read_us) >= patience_us

    def held_up(self, us: int) -> None:
        """Hears that this process did not run for so long, which is not the server's time."""
        if self.connection is not None:
            self.connection.held_up(us)

    def left_us(self, read_us: int, urgency: Urgency) -> int:
        """How long until the server is late for who waits, if it does not answer; below 1 if it is.

        Nobody else's waiting counts against the time that the server has for this one.
        """
        due_us = urgency.due_us(self.timeout_us)
        return max(self.timeout_us - self._waited_us(read_us), due_us - read_us)

    def _waited_us(self, read_us: int) -> int:
        since_us = self.connection.waiting_since_us if self.connection else None
        return 0 if since_us is None else read_us - since_us

    async def answers(self, reply: asyncio.Future[Reply], patience_us: int) -> bool:
        """Whether a reply comes before the server has kept it waiting for so long."""
        left_us = patience_us
        while left_us > 0 and not reply.done():
            await asyncio.wait([reply], timeout=left_us / 1_000_000)
            read_us = elapsed_us()
            if not reply.done():
                await all_read()
                left_us = patience_us - self._waited_us(read_us)
        return reply.done()

    def missed(self, read_us: int) -> None:
        """Hears that a batch had no answer in time, which counts against a server that is late."""
        if not self.late(read_us, self.timeout_us):
            return
        self._slow()
        if self.breaker.missed(read_us, self.name):
            self._raise_alarm()
            self._observer.down("circuit_open")

    @property
    def _is_too_far(self) -> bool:
        """Whether the way alone takes as long as an answer may."""
        return self.clock.way_us >= self.timeout_us

    def _slow(self) -> None:
        """Says in health that answers come too late, and if that is so because of the way alone."""
        fault = f"is slower than {self.timeout_us / 1000:g} ms"
        if self._is_too_far:
            fault += (
                f", since the way there and back takes {self.clock.way_us / 1000:.1f} ms: "
                "give it more time, as with ?timeout=300ms in the store's URL"
            )
        self.degrade(fault)

    def _raise_alarm(self) -> None:
        if not self._alarm.done():
            self._alarm.set_result("")

    def answered(self, connection: RedisConnection, at_us: int, sent_us: int, now_us: int) -> None:
        """Notes that it has answered a script call that ran at `at_us` by its clock.

        The call was made at `sent_us`, and the answer is looked at now, both by `elapsed_us`.
        """
        self.clock.learn(at_us, sent_us, now_us)
        if self._fault_at is not None:  # else it was not late either
            self.breaker.answered(connection.answered_left_us)
            self._calm_down()

    def _calm_down(self) -> None:
        """Says that all is well once there has been no fault for a while."""
        if (
            self._fault_at is not None
            and self.breaker.in_time
            and not self._is_too_far
            and self._loop.time() - self._fault_at > _CALM_SECONDS
        ):
            self._fault_at = None
            self._config.health.recover(self._config.component)

    def degrade(self, fault: str) -> None:
        """Says in health what is wrong with the server."""
        self._fault_at = self._loop.time()
        self._config.health.degrade(self._config.component, f"Redis at {self._address} {fault}")

    async def _keep_connected(self, tried: asyncio.Event) -> None:
        backoff = Backoff(_BACK_OFF_SECONDS, _LONGEST_BACK_OFF_SECONDS)
        while True:
            lasted, began = 0.0, self._loop.time()
            try:
                async with asyncio.timeout(_HUNG_SECONDS) as patience:
                    address = await find(self._address)
                    greet = partial(self._greet, address, patience)
                    connection = await open_connection(
                        address, self._config.contexts, greeted=greet
                    )
            except StoreError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"Redis at {self._address} does not answer"
            except Exception as error:
                self._bugs.note(f"Redis at {self._address} cannot be connected to", error)
                reason = f"Redis at {self._address} cannot be connected to: see the log"
            else:
                log.info("connected to Redis at %s", address)
                self.at = str(address)
                backoff.reset()
                since = self._loop.time()
                self._came_up(connection)
                tried.set()
                following = asyncio.create_task(self._follow(connection, address))
                try:
                    await self._look_after(connection)
                except Exception as error:
                    self._bugs.note(f"Redis at {self._address} is not looked after", error)
                    connection.close("the service failed: see its log")
                finally:
                    following.cancel()
                self.connection, self.at, self.round_trip_us = None, "", None
                self.clock.way_us = 0
                lasted = self._loop.time() - since
                reason = f"Redis at {address} is away: {connection.lost.result()}"
                self._observer.down("disconnected")
            self._config.health.degrade(self._config.component, reason)
            tried.set()
            if lasted > _CALM_SECONDS:
                continue  # the connection was a good one: the next attempt comes at once
            await asyncio.sleep(began + backoff.next_seconds() - self._loop.time())

    async def _greet(
        self, address: Address, patience: asyncio.Timeout, connection: RedisConnection
    ) -> None:
        """Brings the script, learns the clock, and lets the user ask. Raises StoreError.

        What a proxy or the rights of our user refuse is done without.
        """
        # Nothing else is sent meanwhile: to a client without a password Redis replies, and resets.
        self._wait_longer(patience)
        loaded = await connection.call("SCRIPT", "LOAD", SCRIPT)
        if not self.does_without(connection, "SCRIPT", loaded, "the first call brings the script"):
            expect(loaded, ("SCRIPT",), address, connection)
        self.clock.forget()  # this may be another server than before
        self._wait_longer(patience)
        sent_us = elapsed_us()
        reply = await connection.call("TIME")
        if not self.does_without(connection, "TIME", reply, "the first reply tells the time"):
            self._learn_time(reply, sent_us)
        self._wait_longer(patience)
        await self._observer.greet(connection)

    def _wait_longer(self, patience: asyncio.Timeout) -> None:
        """Gives the next answer as much time as all before it: a far server needs it for each."""
        patience.reschedule(self._loop.time() + _HUNG_SECONDS)

    def does_without(
        self, connection: RedisConnection, command: str, reply: Reply, instead: str
    ) -> bool:
        """Whether the command is refused for good. Then the log says once what is `instead`."""
        if not (isinstance(reply, Exception) and is_refused(reply)):
            return False
        if command not in self._refused:
            self._refused.add(command)
            shown = connection.shown(reply)
            log.info("Redis at %s refuses %s (%s): %s", self._address, command, shown, instead)
        return True

    def _learn_time(self, reply: Reply, sent_us: int) -> None:
        try:
            seconds, micros = map(int, reply)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise StoreError(f"Redis at {self._address} does not tell its time") from error
        self.clock.learn(seconds * 1_000_000 + micros, sent_us, elapsed_us())

    def _came_up(self, connection: RedisConnection) -> None:
        """The server can be asked from now on."""
        self.connection = connection
        self.breaker.close()
        self._fault_at = None
        self._config.health.recover(self._config.component)
        self._observer.up()

    async def _look_after(self, connection: RedisConnection) -> None:
        """Watches over a connection until it is lost."""
        while not connection.lost.done():
            self._send_heartbeat(connection)
            await self._observer.every_second()
            alarm = self._alarm = self._loop.create_future()
            started = self._loop.time()
            await asyncio.wait(
                [connection.lost, alarm],
                timeout=HEARTBEAT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            connection.forgive(max(0.0, self._loop.time() - started - HEARTBEAT_SECONDS))
            if self._is_too_far:
                self._slow()  # callers with less time are not counted, so no charge will show it
            await self._give_up_if_hung(connection)
            if self.breaker.open and not connection.lost.done():
                await self._probe(connection)

    async def _follow(self, connection: RedisConnection, address: Address) -> None:
        """Leaves a master as soon as Sentinel names another."""
        if isinstance(self._address, Sentinels):
            with contextlib.suppress(StoreError):  # the next attempt to connect reports it
                await moved(self._address, address)
                connection.close("Sentinel names another master")

    def _send_heartbeat(self, connection: RedisConnection) -> None:
        """Says that this process counts here, and hears who else does."""

        def replied(reply: Reply) -> None:
            if reply is not None:
                self.round_trip_us = elapsed_us() - connection.answered_left_us
                self.clock.took(self.round_trip_us)
            processes = others(reply)
            if processes is not None and self._process not in processes:
                connection.distrust()
            elif processes is not None:
                self._calm_down()
                self._observer.saw_processes(processes)

        key = self._observer.heartbeat_key()
        if key:
            connection.send(heartbeat(self._process, key), replied)

    async def _give_up_if_hung(self, connection: RedisConnection) -> None:
        """Closes a connection on which calls have been pending for too long.

        That is in silence, or while no reply becomes whole.
        """
        if connection.silence > _HUNG_SECONDS or connection.stalled > _STALLED_SECONDS:
            await all_read()
        if connection.silence > _HUNG_SECONDS and not connection.lost.done():
            connection.close(f"no reply for {connection.silence:.1f} s")
        elif connection.stalled > _STALLED_SECONDS and not connection.lost.done():
            connection.close(f"no whole reply for {connection.stalled:.1f} s")

    async def _probe(self, connection: RedisConnection) -> None:
        """Pings a sick server until it is well; gives a silent one up."""
        answered = 0
        while answered < _UP_AFTER and not connection.lost.done():
            ping = connection.ping()
            if await self.answers(ping, self.timeout_us):
                answered += 1
                await asyncio.sleep(_PING_SECONDS)
            else:
                answered = 0
                await asyncio.wait([ping], timeout=_PING_SECONDS)
            await self._give_up_if_hung(connection)
        if not connection.lost.done():
            self._came_up(connection)


def _ignore(_: Reply) -> None: ...
