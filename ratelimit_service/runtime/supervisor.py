"""The process that was started: it keeps its pid through every restart.

It holds the ports and accepts connections for its workers, reads the rules for all of them, adds
up what they count, and replaces them. It decides nothing itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from ratelimit_service import __version__, compiled
from ratelimit_service.decision_log.process import LogProcess
from ratelimit_service.errors import RateLimitError, RulesError, TransportError
from ratelimit_service.http import HttpPort, Operating, Shown
from ratelimit_service.metrics import Metrics, Sources
from ratelimit_service.net import listening
from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes.low_priority import aside
from ratelimit_service.rule_lab.comparison import difference
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.rules.source import LastGoodFiles
from ratelimit_service.rules.sources import source_of
from ratelimit_service.rules.watch import watched
from ratelimit_service.runtime import handover
from ratelimit_service.runtime.admin_port import AdminPort, check_admin_free
from ratelimit_service.runtime.announcement import announce
from ratelimit_service.runtime.certificates import Certificates
from ratelimit_service.runtime.channel import sockets
from ratelimit_service.runtime.connections import Connections
from ratelimit_service.runtime.cpus import usable_cpus
from ratelimit_service.runtime.exporting import Exporting, check_free
from ratelimit_service.runtime.handover import Handover
from ratelimit_service.runtime.process import collect, spare_the_old
from ratelimit_service.runtime.signals import Signals, end_requested, hold_signals, log
from ratelimit_service.runtime.sole_worker import (
    cannot_restart,
    keeps_counters,
    why_one_worker,
)
from ratelimit_service.runtime.stores import open_store
from ratelimit_service.runtime.workers import Counts, Listeners, Totals, Workers
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.otlp import Otlp

__all__ = ["supervise"]

_CHECK_SECONDS = 60.0
_AGAIN_SECONDS = 1.0
"""After this the rules are read again that could not be read in a restart."""

_NOTICED_SECONDS = 0.02
"""How long the event loop may take to see a signal that has come."""


async def supervise(settings: Settings, count: int, inherited: int | None) -> int:
    """Serves with so many workers until a signal ends it; returns the exit code.

    `inherited` is the descriptor of what a former image of this process has left.
    """
    supervisor = _Supervisor(settings, count)
    former = handover.take_over(inherited) if inherited is not None else None
    return await supervisor.run(former)


@dataclass(slots=True)
class _Restart:
    """What has come of restarts."""

    count: int = 0
    under_way: bool = False
    error: str = ""
    """Why the last one has failed; empty if it has not."""
    task: asyncio.Task[None] | None = None
    """The one that a worker of another version has begun."""


class _Supervisor:
    """The parts, and the way from one state to the next."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._stats, self._health = Stats(), Health()
        self._certificates = Certificates(settings, self._health, self._stats)
        self._rules = Rules(
            source_of(settings),
            stats=self._stats,
            health=self._health,
            policy=LoadPolicy(
                strict=settings.strict_rules,
                waits=not settings.start_without_rules,
                needed=settings.healthy_with_rules,
            ),
            reloaded=self._rules_changed,
            difference=difference,
        )
        limiter = ConnectionLimiter(settings.max_connections, settings.max_connections_per_peer)
        self._otlp = Otlp(settings)
        self._decision_log = LogProcess(settings, self._stats, self._health)
        self._workers = Workers(
            settings,
            count,
            Totals(self._stats, self._health, self._rules.book),
            limiter,
            Listeners(
                self._workers_changed,
                self._other_version,
                self._otlp.send_spans,
                self._decision_log.take,
            ),
            self._certificates.grpc,
        )
        self._grpc = Connections(self._workers.give, limiter, self._stats)
        self._http: list[socket.socket] = []
        sources = Sources(
            self._stats,
            self._health,
            lambda: self._rules.snapshot,
            self._workers.live_counters if keeps_counters(settings) else None,
            workers=self._workers.figures,
            loaded=lambda: self._rules.loaded,
        )
        self._http_port = self._new_http_port(sources)
        self._admin = AdminPort(
            Operating(
                settings,
                lambda: self._rules.snapshot,
                self._stats,
                self._health,
                self._workers,
                sources,
                self._workers.collect,
                self._processes,
                self._rules.problems,
            )
        )
        self._exporting = Exporting(
            settings,
            sources,
            lambda: self._rules.snapshot,
            self._stats.http_closed,
            self._workers.collect,
            self._otlp,
        )
        self._follows = False
        self._restart = _Restart()
        self._stays = asyncio.Event()
        """Not set once the next image of the program is about to take over: that one does what is
        left."""
        self._stays.set()
        self._signals = Signals(self._rules.reload, self._on_restart_signal, self._workers.kill)

    async def run(self, former: Handover | None) -> int:
        """Serves until a signal ends it; returns the exit code."""
        if former is not None and _end_was_requested(former):
            self._signals.end()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._otlp.running())
            await stack.enter_async_context(self._decision_log.running())
            stack.callback(self._grpc.close)
            if former is not None:
                await self._resume(former, stack)
            elif not await self._start(stack):
                return 0
            await self._serve_http(stack)
            await self._follow_changes(stack)
            await stack.enter_async_context(self._exporting.running())
            await stack.enter_async_context(self._admin.running(self._certificates.admin))
            spare_the_old()
            collect()
            self._health.enter(Phase.SERVING)
            self._workers_changed()
            replacing = None
            if former is None:
                grpc_port = (
                    listening.port_of(self._grpc.port) if self._grpc.port else self._workers.port
                )
                http_port = listening.port_of(self._http)
                count = 0 if why_one_worker(self._settings) else self._count
                announce(
                    self._settings,
                    self._rules.snapshot,
                    grpc_port,
                    http_port,
                    count,
                    self._admin.announced,
                )
            else:
                replacing = asyncio.create_task(self._replace_workers())
            await self._signals.ended()
            await self._stays.wait()

            log.info("draining, for at most %g s", self._settings.grace_us / 1_000_000)
            self._health.enter(Phase.DRAINING)
            if replacing is not None:
                replacing.cancel()
            self._grpc.close()
            await self._workers.stop(self._settings.grace_us)
        log.info("stopped")
        return 0

    async def _start(self, stack: AsyncExitStack) -> bool:
        """Reads the rules, starts the workers, then opens the ports, which were free before.

        First it finds out whether a worker could start at all with these settings. Until rules have
        come only the HTTP port is open, and says that nothing is served. Returns False if the
        process was told to end meanwhile.
        """
        await open_store(self._settings, Stats(), Health()).store.close()
        listening.check_free(self._settings.http, "HTTP")
        listening.check_free(self._settings.grpc, "gRPC")
        check_admin_free(self._settings)
        check_free(self._settings)
        await self._rules.load_aside()
        if not (self._rules.begun or self._settings.start_without_rules):
            self._http = listening.listen(self._settings.http, "HTTP")
            await self._serve_http(stack)
            await self._follow_changes(stack)
            await self._signals.or_ended(self._rules.begin())
            if self._signals.end_requested:
                return False
        if not (self._settings.workers or why_one_worker(self._settings)):
            number, why = self._count, usable_cpus().why
            log.info(
                "%d worker%s: %s; --workers says otherwise", number, "" if number == 1 else "s", why
            )
        try:
            await self._workers.start()
        except RateLimitError:
            if self._signals.end_requested:  # and so were they, as by systemd
                return False
            raise
        try:
            self._http = self._http or listening.listen(self._settings.http, "HTTP")
            if self._settings.transport == "h2":  # grpcio's worker opens its port itself
                self._grpc.port = listening.listen(self._settings.grpc, "gRPC")
        except TransportError:
            self._workers.kill()
            raise
        return True

    async def _serve_http(self, stack: AsyncExitStack) -> None:
        """Answers on the HTTP port from now on."""
        if not self._http_port.serves:
            stack.push_async_callback(self._http_port.close)
            await self._http_port.start(self._http, self._certificates.http)

    async def _follow_changes(self, stack: AsyncExitStack) -> None:
        """Hears of changes of rules and certificates from now on."""
        if self._follows:
            return
        self._follows = True
        await stack.enter_async_context(watched(self._rules))
        await stack.enter_async_context(
            self._certificates.watched(
                self._workers.send_tls, self._http_port.renew, self._admin.renew
            )
        )

    async def _resume(self, former: Handover, stack: AsyncExitStack) -> None:
        """Goes on where the former image of this process stopped, with connections first."""
        self._restart = _Restart(former["restarts"], under_way=True)
        self._http, self._grpc.port = sockets(former["http"]), sockets(former["grpc"])
        self._exporting.inherit(former.get("pages", {}))
        self._admin.inherit(former.get("admin", []))
        await self._workers.adopt(former["workers"])
        self._workers_changed()
        await self._load_rules(former.get("rules"), stack)
        self._workers.add_counts(former["counts"])

    async def _load_rules(self, former: LastGoodFiles | None, stack: AsyncExitStack) -> None:
        """Loads the rules in a restart; until it succeeds workers go on with those they have."""
        logged = ""
        while True:
            try:
                return await self._rules.load_aside(former)
            except RulesError as error:  # they were good when the restart was checked
                if logged != str(error):
                    logged = str(error)
                    log.error("workers go on with the rules that they have: %s", logged)
            self._health.enter(Phase.SERVING)
            await self._serve_http(stack)
            await self._signals.or_ended(asyncio.sleep(_AGAIN_SECONDS))
            if self._signals.end_requested:
                return None

    async def _rules_changed(self) -> None:
        await self._workers.send_rules()

    # Connections

    def _workers_changed(self) -> None:
        """Accepts connections as long as there is somebody to give them to."""
        if not self._workers.serving:
            self._grpc.pause()
        elif self._grpc.port and self._stays.is_set() and self._health.phase is not Phase.DRAINING:
            self._grpc.accept()

    # Restarting

    async def _on_restart_signal(self) -> None:
        if why := cannot_restart(self._settings):
            log.warning("not restarted: %s", why)
        else:
            await self._begin_restart()

    async def _begin_restart(self) -> None:
        """Goes on as the program that is installed now, and replaces all workers.

        Nothing changes if that program could not start.
        """
        if self._restart.under_way or self._health.phase is not Phase.SERVING:
            log.warning("not restarted: it is just starting, restarting or ending")
            return
        self._restart.under_way = True
        command = [*handover.successor_command(), "--check"]
        why = await asyncio.to_thread(aside, partial(_why_not, command))
        if self._signals.end_requested:
            return
        if why:
            self._restart_failed(why)
            self._restart.under_way = False
            return
        self._stays.clear()
        try:
            await self._hand_over()
        except Exception as error:
            # Ports are closed and workers are not heard any more: this image cannot go on.
            bug = None if isinstance(error, RateLimitError) else error
            log.critical("not restarted, so the service ends: %s", error, exc_info=bug)
            listening.unlink(self._grpc.port)
            os._exit(1)  # workers see it, and finish what they have

    async def _hand_over(self) -> None:
        """Leaves all to the next image; does not return."""
        listeners = [listener.dup() for listener in self._http]  # the port closes those that it has
        pages, admin = self._exporting.leave(), self._admin.leave()
        await self._http_port.close()
        await self._admin.stop()  # while workers still answer its questions
        self._grpc.pause()
        log.info("restarting")
        workers = await self._workers.hand_over()
        noted = hold_signals()  # from here on they are the next image's
        await asyncio.sleep(_NOTICED_SECONDS)
        await self._exporting.stop()
        await self._otlp.stop()
        await self._decision_log.stop()  # what workers send from now on is for the next image
        counts = await self._counted()  # nobody adds to it any more
        rules = self._rules.leave()
        self._rules.end()
        handover.become_successor(
            Handover(
                grpc=[listener.fileno() for listener in self._grpc.port],
                http=[listener.fileno() for listener in listeners],
                pages={
                    address: [listener.fileno() for listener in some]
                    for address, some in pages.items()
                },
                admin=[listener.fileno() for listener in admin],
                workers=workers,
                counts=counts,
                rules=None if rules is None else dict(rules),
                restarts=self._restart.count,
                ended=self._signals.end_requested,
                noted=noted,
            )
        )

    async def _counted(self) -> Counts:
        """Takes all that was counted, which is then forgotten here."""
        rules = [tallied async for tallied in self._rules.book.take()]
        return Counts(rules=rules, counters=self._stats.take())

    async def _replace_workers(self) -> None:
        why = await self._workers.replace()
        if why:
            self._restart_failed(why)
        else:
            log.info("restarted: version %s", __version__)
            self._stats.restarts["success"] += 1
            self._restart.error = ""
        self._restart.count += 1
        self._restart.under_way = False

    def _restart_failed(self, why: str) -> None:
        log.error("not restarted: %s", why)
        self._stats.restarts["error"] += 1
        self._restart.error = why

    def _other_version(self, version: str) -> None:
        if not self._restart.under_way:
            log.warning("version %s is installed now: restarting into it", version)
            self._restart.task = asyncio.create_task(self._begin_restart())

    # HTTP

    def _new_http_port(self, sources: Sources) -> HttpPort:
        metrics = Metrics(sources)

        def render(accept: str) -> tuple[str, AsyncIterator[bytes]]:
            content_type, pages = metrics.render(accept)
            return content_type, self._collected(pages)

        return HttpPort(
            self._settings,
            self._workers.decide,
            self._health,
            self._stats,
            Shown(lambda: self._rules.snapshot, render, self._processes),
        )

    async def _collected(self, pages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The pages, begun once all workers have reported their counts."""
        await self._workers.collect()
        async for page in pages:
            yield page

    def _processes(self) -> object:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "compiled": compiled(),
            "restarts": self._restart.count,
            "restarting": self._restart.under_way,
            "restart_error": self._restart.error,
            "cannot_restart": cannot_restart(self._settings),
            "workers": self._workers.described(),
        }


def _end_was_requested(former: Handover) -> bool:
    """Whether the service was told to end while its former image was handing over."""
    since = "noted" in former and end_requested(former["noted"])
    return since or former["ended"]


def _why_not(command: list[str]) -> str:
    """Why a command fails; empty if it does not."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own command
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"what is installed now did not start within {_CHECK_SECONDS:g} s"
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1].removeprefix("ratelimit: ") if lines else f"exit code {done.returncode}"
