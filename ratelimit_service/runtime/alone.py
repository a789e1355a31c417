"""One process that does everything: for counters in its own memory, and for grpcio."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ratelimit_service import __version__, compiled
from ratelimit_service.grpc.transports import TRANSPORTS
from ratelimit_service.http import Here, HttpPort, Operating
from ratelimit_service.metrics import Metrics, Sources
from ratelimit_service.net import listening
from ratelimit_service.net.accepting import Guests
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.comparison import difference
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.sources import source_of
from ratelimit_service.rules.watch import watched
from ratelimit_service.runtime.admin_port import AdminPort, check_admin_free
from ratelimit_service.runtime.announcement import announce
from ratelimit_service.runtime.certificates import Certificates
from ratelimit_service.runtime.deciding import deciding
from ratelimit_service.runtime.decision_feed import DecisionFeed
from ratelimit_service.runtime.decision_scribe import DecisionScribe
from ratelimit_service.runtime.exporting import Exporting, check_free
from ratelimit_service.runtime.process import collect, spare_the_old
from ratelimit_service.runtime.signals import Signals, log
from ratelimit_service.service.questions import Deciding
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.otlp import Otlp
from ratelimit_service.telemetry.spans import Spans

__all__ = ["serve_alone"]


async def serve_alone(settings: Settings) -> int:
    """Serves until a signal ends it; returns the exit code."""
    stats, health = Stats(), Health()
    certificates = Certificates(settings, health, stats)
    listening.check_free(settings.http, "HTTP")
    listening.check_free(settings.grpc, "gRPC")
    check_admin_free(settings)
    check_free(settings)
    source = source_of(settings)
    rules = Rules(
        source,
        stats=stats,
        health=health,
        strict=settings.strict_rules,
        difference=difference,
        waits=not settings.start_without_rules,
        needed=settings.healthy_with_rules,
    )
    await rules.load_aside()
    spare_the_old()
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(
            deciding(settings, lambda: rules.book.snapshot, stats, health)
        )
        otlp = await stack.enter_async_context(Otlp(settings).running())
        if settings.otel_traces:
            spans = Spans(settings, otlp.send_spans, here.shard_of)
            here.service.telling.tracer = spans
            stack.callback(spans.flush)
        await stack.enter_async_context(_decisions_logged(settings, here, stats, health))
        grpc_server = TRANSPORTS[settings.transport](
            settings.grpc,
            here.service,
            health,
            settings.max_connection_age_us,
            certificates.grpc,
            stats=stats,
            guests=Guests(settings.max_connections, settings.max_connections_per_peer),
            reflection=not settings.no_reflection,
        )
        sources = Sources(
            stats, health, lambda: rules.snapshot, here.live_counters, loaded=lambda: rules.loaded
        )
        metrics = Metrics(sources)
        http_port = HttpPort(
            settings,
            here.service.decide,
            health,
            stats,
            lambda: rules.snapshot,
            metrics.render,
            _processes,
        )
        stack.push_async_callback(http_port.close)
        admin = AdminPort(
            Operating(
                settings,
                lambda: rules.snapshot,
                stats,
                health,
                Here(here),
                sources,
                _nothing_to_collect,
                _processes,
                rules.problems,
            )
        )
        signals = Signals(rules.reload, _cannot_restart)
        http = listening.listen(settings.http, "HTTP")
        await http_port.start(http, certificates.http)
        exporting = Exporting(
            settings, sources, lambda: rules.snapshot, stats.http_closed, _nothing_to_collect, otlp
        )
        await stack.enter_async_context(exporting.running())
        await stack.enter_async_context(admin.running(certificates.admin))
        await stack.enter_async_context(watched(rules))
        if not (rules.begun or settings.start_without_rules):
            await signals.or_ended(rules.begin())
            if signals.told_to_end:
                return 0
        grpc_port = await grpc_server.start()
        await stack.enter_async_context(
            certificates.watched(grpc_server.renew, http_port.renew, admin.renew)
        )
        collect()
        health.enter(Phase.SERVING)
        announce(settings, rules.snapshot, grpc_port, listening.port_of(http), 0, admin.told)
        await signals.ended()

        log.info("draining, for at most %g s", settings.grace_us / 1_000_000)
        health.enter(Phase.DRAINING)
        await grpc_server.stop(settings.grace_us)
    log.info("stopped")
    return 0


@asynccontextmanager
async def _decisions_logged(
    settings: Settings, here: Deciding, stats: Stats, health: Health
) -> AsyncIterator[None]:
    """Writes the decision log until the end of the block, if the settings ask for it."""
    scribe = DecisionScribe(settings, stats, health)
    if not settings.decision_log:
        yield
        return
    async with scribe.running():
        feed = DecisionFeed.attach(settings, here.service, stats, scribe.take, here.shard_of)
        try:
            yield
        finally:
            feed.flush()


async def _nothing_to_collect() -> None:
    """Does nothing: all is counted in this process."""


async def _cannot_restart() -> None:
    log.warning(
        "one process with its counters in memory, or over grpcio, cannot hand over to another: "
        "stop it and start it again"
    )


def _processes() -> object:
    return {"pid": os.getpid(), "version": __version__, "compiled": compiled(), "workers": []}
