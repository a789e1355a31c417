"""The composition root: builds every part from the settings, starts them, drains them.

The only module that knows all parts. It decides no request and parses nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from ratelimit_service.admin import Admin
from ratelimit_service.errors import SettingsError
from ratelimit_service.health import Health, Phase
from ratelimit_service.metrics import Metrics
from ratelimit_service.observer import Counters
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.watch import watch
from ratelimit_service.runtime import logs
from ratelimit_service.runtime.example import example
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings, redacted
from ratelimit_service.stores import Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.transport import TRANSPORTS
from ratelimit_service.transport.tls import TLS

try:
    import uvloop
except ImportError:  # not built for this platform: asyncio's own loop does as well, only slower
    uvloop = None  # type: ignore[assignment]

__all__ = ["serve"]

log = logging.getLogger(__name__)

_COLLECT_SECONDS = 0.01


def serve(settings: Settings) -> int:
    """Serves until a signal ends it; returns the exit code of the process.

    SIGTERM and SIGINT drain (a second one ends at once), SIGHUP reloads the rules. Raises
    RateLimitError for what the user must mend before anything can be served.
    """
    logs.configure(settings.log_level, settings.log_format)
    if uvloop is not None:
        return uvloop.run(_serve(settings))
    return asyncio.run(_serve(settings))


def _spare_the_old() -> None:
    """Takes the garbage collector in hand: it sees young objects only, a few at a time.

    A full collection over a million counters and plans stops the process for tens of
    milliseconds, in which Envoy lets requests through. The hot path makes no cycles; those of
    the libraries die young, or are so few that they may stay. Left to itself the collector
    counts new objects less dropped ones, so where plans replace each other it waits for long
    and then has as much to do: hence the clock.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def _collect_young() -> None:
    gc.collect(0)
    asyncio.get_running_loop().call_later(_COLLECT_SECONDS, _collect_young)


async def _serve(settings: Settings) -> int:
    tls = TLS.of(settings)
    counters, health = Counters(), Health()
    rules = Rules(settings.rules, counters=counters, health=health, strict=settings.strict_rules)
    await asyncio.to_thread(rules.load)
    _spare_the_old()
    async with AsyncExitStack() as stack:
        store: Store
        if settings.store == "memory":
            if settings.second_store:
                raise SettingsError("--second-store needs a --store in Redis")
            store = memory = MemoryStore(settings.max_counters, counters, health)
            live_counters = memory.__len__
        else:
            store = RedisStore(
                settings.store,
                settings.store_timeout_us,
                counters,
                health,
                second_url=settings.second_store,
            )
            if settings.local_cache_bytes:
                store = LocalCache(store, settings.local_cache_bytes, counters)
            live_counters = None
        stack.push_async_callback(store.close)
        await store.start()

        service = Service(lambda: rules.snapshot, store, settings, counters)
        grpc_server = TRANSPORTS[settings.transport](
            settings.grpc, service, health, settings.max_connection_age_us, tls
        )
        metrics = Metrics(counters, health, lambda: rules.snapshot, live_counters)
        admin = Admin(
            settings.http, service, health, counters, lambda: rules.snapshot, metrics.render
        )
        stack.push_async_callback(admin.close)
        http_port = await admin.start()
        grpc_port = await grpc_server.start()
        await stack.enter_async_context(_watched(rules))

        ended = _handle_signals(rules)
        _collect_young()
        health.enter(Phase.SERVING)
        _announce(settings, rules, grpc_port, http_port)
        await ended.wait()

        log.info("draining, for at most %g s", settings.grace_us / 1_000_000)
        health.enter(Phase.DRAINING)
        await grpc_server.stop(settings.grace_us)
    log.info("stopped")
    return 0


@asynccontextmanager
async def _watched(rules: Rules) -> AsyncIterator[None]:
    """Reloads changed rules for as long as the context lasts."""
    task = asyncio.create_task(watch(rules))
    await asyncio.sleep(0)  # its first step sets the watch up: no change after this is missed
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _handle_signals(rules: Rules) -> asyncio.Event:
    """Takes over the process's signals; the event is set by the first that ends it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    reloads = set()

    def end() -> None:
        if ended.is_set():
            os._exit(1)
        ended.set()

    def reload() -> None:
        log.info("SIGHUP: reading the rules again")
        task = loop.create_task(rules.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end)
    loop.add_signal_handler(signal.SIGHUP, reload)
    return ended


def _announce(settings: Settings, rules: Rules, grpc_port: int, http_port: int) -> None:
    """Prints what is served, and a command that tries it."""
    snapshot = rules.snapshot
    place = f"port {grpc_port}" if grpc_port else settings.grpc
    lines = [
        f"ratelimit serves gRPC on {place} and HTTP on port {http_port}",
        f"counters in {redacted(settings.store)}"
        + (f", of seconds in {redacted(settings.second_store)}" if settings.second_store else ""),
        f"rules from {settings.rules}: {_domains(snapshot.domains) or 'no domain'}",
    ]
    if snapshot.unserved:
        lines.append(f"NOT served, see the errors above: {_domains(snapshot.unserved)}")
    options = []
    if settings.grpc.startswith("unix:") or grpc_port != 8081:
        options += ["--address", f"localhost:{grpc_port}" if grpc_port else settings.grpc]
    if settings.tls_cert:
        options += ["--tls-ca", settings.tls_cert]
    command = example(snapshot, sys.argv[0], options)
    if command:
        lines += ["make a decision with", command]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _domains(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"{'domain' if len(listed) == 1 else 'domains'} {', '.join(listed)}" if listed else ""
