"""Renders the process's plain counters as Prometheus metrics. It counts nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ratelimit_service.health import Health
from ratelimit_service.model import FailurePolicy
from ratelimit_service.observer import LATENCY_BOUNDS_US, Counters, Tally
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.slices import SLICE, slowly

__all__ = ["Metrics", "WorkerFigures"]

_RULE_METRICS: Mapping[str, tuple[str, Callable[[Tally], int]]] = {
    "hits": ("Hits that the rule matched.", lambda tally: tally.hits),
    "over_limit": ("Hits without room.", lambda tally: tally.over),
    "near_limit": (
        "Hits with room, above the near-limit ratio of the limit.",
        lambda tally: tally.near,
    ),
    "within_limit": ("Hits with room that were counted.", lambda tally: tally.within),
    "shadow_mode": (
        "Hits without room that the rule's shadow mode let through.",
        lambda tally: tally.shadow,
    ),
    "uncharged": (
        "Hits with room that were not counted, since another descriptor denied the request.",
        lambda tally: tally.uncharged,
    ),
    "refunded": ("Hits given back.", lambda tally: tally.refunded),
    "by_policy": (
        "Hits that the failure policy decided instead of a count.",
        lambda tally: tally.by_policy,
    ),
}
_OVERRIDES = "(override)"


_END = b"# EOF\n"
"""How a page in OpenMetrics' format ends."""


class WorkerFigures(NamedTuple):
    """A worker by its number, with what it uses."""

    number: int
    connections: int
    cpu_us: int
    resident_bytes: int


class _Series(NamedTuple):
    """A tally with its labels: domain, rule and value."""

    labels: tuple[str, str, str]
    tally: Tally


class _Families(Collector):
    """Families to encode."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """Called by the encoder."""
        return self._families


def _rule_metric(name: str, series: Iterable[_Series]) -> Metric:
    text, read = _RULE_METRICS[name]
    family = CounterMetricFamily(f"ratelimit_rule_{name}", text, labels=["domain", "rule", "value"])
    for labels, tally in series:
        family.add_metric(labels, read(tally))
    return family


class Metrics:
    """The process's counters, read at each scrape."""

    def __init__(
        self,
        counters: Counters,
        health: Health,
        snapshot: Callable[[], Snapshot],
        live_counters: Callable[[], int] | None = None,
        workers: Callable[[], Sequence[WorkerFigures]] | None = None,
    ) -> None:
        """`live_counters` is the size of an in-memory store, None where there is none.

        `workers` gives the figures of those that serve, None where one process does all.
        """
        self._counters = counters
        self._health = health
        self._snapshot = snapshot
        self._live_counters = live_counters
        self._workers = workers
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)

    def render(self, accept: str) -> tuple[str, AsyncIterator[bytes]]:
        """The content type and the page for a scraper's Accept header, part by part.

        Rules by the thousand are written a few at a time, so that no request waits for them.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # a version or an escaping that is none
            encode, content_type = choose_encoder("")
        return content_type, self._pages(encode)

    async def _pages(self, encode: Callable[[Collector], bytes]) -> AsyncIterator[bytes]:
        series = [each async for each in slowly(self._series())]
        await asyncio.sleep(0)
        page = encode(_Families([*self._process.collect(), *self._others()]))
        end = _END if page.endswith(_END) else b""
        yield page.removesuffix(_END)
        for name in _RULE_METRICS:
            for start in range(0, max(1, len(series)), SLICE):
                page = encode(_Families([_rule_metric(name, series[start : start + SLICE])]))
                if start:
                    lines = page.splitlines(keepends=True)
                    page = b"".join(line for line in lines if not line.startswith(b"#"))
                yield page.removesuffix(_END)
                await asyncio.sleep(0)
        while series:  # all at once takes as long as a slice may not
            del series[-SLICE:]
            await asyncio.sleep(0)
        yield end

    def collect(self) -> Iterator[Metric]:
        """Every family of ours, whole."""
        series = list(self._series())
        yield from (_rule_metric(name, series) for name in _RULE_METRICS)
        yield from self._others()

    def _others(self) -> Iterator[Metric]:
        counters = self._counters
        yield _counter(
            "ratelimit_decisions",
            "Requests decided.",
            "code",
            ("ok", "over_limit"),
            counters.decisions,
        )
        yield self._latency()
        yield _counter(
            "ratelimit_refused_requests",
            "Requests answered with an error instead of a decision.",
            "reason",
            (),
            counters.refusals,
        )
        yield _counter(
            "ratelimit_policy_decisions",
            "Descriptors decided by failure policy instead of a count.",
            "policy",
            FailurePolicy,
            counters.policy_decisions,
        )
        yield _counter(
            "ratelimit_overloaded_calls",
            "Calls that there was no time to count.",
            "answer",
            ("hurried", "unanswered"),
            counters.overloaded,
        )
        yield _counter(
            "ratelimit_store_errors",
            "Hits that the store gave no answer for.",
            "reason",
            (
                "disconnected",
                "circuit_open",
                "timeout",
                "overloaded",
                "refused",
                "unknown",
                "internal",
            ),
            counters.store_errors,
        )
        yield _counter(
            "ratelimit_local_cache",
            "Requests by whether the local cache knew all of their keys to be over.",
            "result",
            ("hit", "miss"),
            counters.local_cache,
        )
        yield CounterMetricFamily(
            "ratelimit_given_back_hits",
            "Hits that one shard had counted when another denied their request.",
            value=counters.given_back,
        )
        yield _counter(
            "ratelimit_lost_give_backs",
            "Hits that were to be given back and may still be counted.",
            "reason",
            ("overflow", "unknown", "refused", "internal"),
            counters.lost_give_backs,
        )
        yield _counter(
            "ratelimit_evicted_counters",
            "Counters put out of a full memory store; live ones admit too much.",
            "state",
            ("expired", "live"),
            counters.evictions,
        )
        yield CounterMetricFamily(
            "ratelimit_damaged_counters",
            "Counters that started anew, since they were last used more than a window ahead.",
            value=counters.damaged,
        )
        yield _counter(
            "ratelimit_closed_connections",
            "gRPC connections that were ended for what their clients did.",
            "reason",
            (
                "flood_frames",
                "flood_headers",
                "flood_parts",
                "flood_resets",
                "flood_settings",
                "flood_windows",
                "flood_memory",
                "memory",
                "protocol",
                "stuck",
                "timeout",
            ),
            counters.closed_connections,
        )
        yield _counter(
            "ratelimit_refused_connections",
            "gRPC connections that were closed before they were served.",
            "reason",
            ("handshake", "max_connections", "max_connections_per_peer", "no_files"),
            counters.refused_connections,
        )
        yield _counter(
            "ratelimit_rule_loads",
            "Loads of changed rules; error means that something kept its last good version.",
            "result",
            ("success", "error"),
            counters.rule_loads,
        )
        yield _counter(
            "ratelimit_tls_reloads",
            "Changed TLS files that were read anew; error means that the old content stays.",
            "result",
            ("success", "error"),
            counters.tls_reloads,
        )
        yield _counter(
            "ratelimit_http_closed_connections",
            "Connections of the HTTP port that were slow, too many, or failed to speak TLS.",
            "reason",
            ("slow", "crowded", "handshake"),
            counters.http_closed,
        )
        yield CounterMetricFamily(
            "ratelimit_unknown_domain",
            "Descriptors of domains that no rule file names.",
            value=counters.unknown_domains,
        )
        yield CounterMetricFamily(
            "ratelimit_global_shadow_mode",
            "Requests over their limit that the global shadow mode let through.",
            value=counters.global_shadow_mode,
        )
        degraded = GaugeMetricFamily(
            "ratelimit_degraded", "1 while the component is degraded.", labels=["component"]
        )
        faults = self._health.faults
        for component in sorted({"rules", "store"} | faults.keys()):
            degraded.add_metric([component], component in faults)
        yield degraded
        if self._live_counters is not None:
            yield GaugeMetricFamily(
                "ratelimit_memory_counters",
                "Counters in the memory store.",
                value=self._live_counters(),
            )
        if self._workers is not None:
            yield from self._of_workers(self._workers())

    def _of_workers(self, workers: Sequence[WorkerFigures]) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ratelimit_workers", "Workers that take connections.", value=len(workers)
        )
        connections = GaugeMetricFamily(
            "ratelimit_worker_connections", "A worker's gRPC connections.", labels=["worker"]
        )
        cpu = CounterMetricFamily(
            "ratelimit_worker_cpu_seconds", "CPU time that a worker has used.", labels=["worker"]
        )
        resident = GaugeMetricFamily(
            "ratelimit_worker_resident_bytes", "Memory that a worker uses.", labels=["worker"]
        )
        for worker in workers:
            label = [str(worker.number)]
            connections.add_metric(label, worker.connections)
            cpu.add_metric(label, worker.cpu_us / 1_000_000)
            resident.add_metric(label, worker.resident_bytes)
        yield from (connections, cpu, resident)
        yield _counter(
            "ratelimit_worker_ends",
            "Workers that have ended while the service went on.",
            "reason",
            ("died", "hung", "replaced"),
            self._counters.worker_ends,
        )
        yield _counter(
            "ratelimit_restarts",
            "Rolling restarts; error means that the old version serves on.",
            "result",
            ("success", "error"),
            self._counters.restarts,
        )

    def _series(self) -> Iterator[_Series]:
        for domain in self._snapshot().domains.values():
            for rule in domain.rules:
                for value, tally in rule.tallies.items():
                    yield _Series((domain.name, rule.path, value), tally)
            for value, tally in domain.overrides.items():
                yield _Series((domain.name, _OVERRIDES, value), tally)

    def _latency(self) -> Metric:
        histogram = self._counters.latency
        bounds = [str(bound / 1_000_000) for bound in LATENCY_BOUNDS_US] + ["+Inf"]
        total = 0.0
        buckets = []
        for bound, count in zip(bounds, histogram.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(
            "ratelimit_decision_duration_seconds",
            "Time from a request's bytes to its answer's, in this process.",
            buckets=buckets,
            sum_value=histogram.sum_us / 1_000_000,
        )


def _counter(
    name: str, text: str, label: str, known: Iterable[str], counts: Mapping[str, int]
) -> Metric:
    """A counter with one label; known values are there from the start."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value in {str(value): None for value in [*known, *list(counts)]}:
        family.add_metric([value], counts.get(value, 0))
    return family
