"""Prometheus' text with the names of envoyproxy/ratelimit, for its dashboards and alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client import ProcessCollector

from ratelimit_service.eventloop.slices import SLICE, pause, slowly
from ratelimit_service.metrics.exporter import Page
from ratelimit_service.metrics.reading import Reading
from ratelimit_service.metrics.reference import (
    PER_RULE,
    SCALARS,
    TOTAL_REQUESTS,
    clean,
    segments,
)
from ratelimit_service.observability.stats import LATENCY_BOUNDS_US, Histogram
from ratelimit_service.settings import Settings

__all__ = ["exports"]

_PREFIX = "ratelimit_service"
_METHOD = {"grpc_method": "ShouldRateLimit"}
_ERRORS = f"{_PREFIX}_should_rate_limit_error"

_MAPPED: dict[str, tuple[str, Mapping[str, str]]] = {
    "ratelimit.service.config_load_success": (f"{_PREFIX}_config_load_success", {}),
    "ratelimit.service.config_load_error": (f"{_PREFIX}_config_load_error", {}),
    "ratelimit.service.call.should_rate_limit.redis_error": (_ERRORS, {"err_type": "redis_error"}),
    "ratelimit.service.call.should_rate_limit.service_error": (
        _ERRORS,
        {"err_type": "service_error"},
    ),
    TOTAL_REQUESTS: (f"{_PREFIX}_total_requests", _METHOD),
}
"""By their names in statsd: names and labels here. What is not listed has none."""


def exports(settings: Settings) -> Iterator[Page]:
    """The page, if a port is set."""
    if settings.reference_metrics:
        yield Page(
            "--reference-metrics",
            settings.reference_metrics,
            settings.reference_metrics_path,
            "text/plain; version=0.0.4; charset=utf-8",
            _page,
        )


async def _page(reading: Reading) -> AsyncIterator[bytes]:
    async for part in _of_rules(reading):
        yield part
    lines_of: dict[str, list[str]] = {}
    for name, read in SCALARS.items():
        if name in _MAPPED:
            family, labels = _MAPPED[name]
            lines_of.setdefault(family, []).append(_line(family, labels, read(reading)))
    for family, lines in lines_of.items():
        async for part in _family(family, "counter", lines):
            yield part
    async for part in _of_process(reading):
        yield part
    name = f"{_PREFIX}_response_time_seconds"
    async for part in _family(name, "histogram", _histogram(name, reading.stats.latency)):
        yield part


async def _of_rules(reading: Reading) -> AsyncIterator[bytes]:
    by_rule: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in PER_RULE}
    async for series in slowly(reading.known):
        named = (clean(series.domain), *segments(series)[:2])  # deeper levels add up
        for name, read in PER_RULE.items():
            by_rule[name][named] += read(series.tally)
    for name, counts in by_rule.items():
        family = f"{_PREFIX}_rate_limit_{name}"
        lines = (_line(family, _labels(named), number) for named, number in counts.items())
        async for part in _family(family, "counter", lines):
            yield part


async def _of_process(reading: Reading) -> AsyncIterator[bytes]:
    """What its dashboards show of memory: of this process, and what its workers have in use."""
    own = {family.name: family for family in ProcessCollector(registry=None).collect()}
    of_workers = sum(worker.resident_bytes for worker in reading.workers or ())
    for name, more in (
        ("process_resident_memory_bytes", of_workers),
        ("process_virtual_memory_bytes", 0),
    ):
        if name in own:  # not every system tells it
            lines = [_line(name, {}, sample.value + more) for sample in own[name].samples]
            async for part in _family(name, "gauge", lines):
                yield part


async def _family(name: str, kind: str, lines: Iterable[str]) -> AsyncIterator[bytes]:
    """The lines of one metric under its type; nothing if there are none."""
    rest = iter(lines)
    head = f"# TYPE {name} {kind}\n"
    while some := list(islice(rest, SLICE)):
        yield (head + "".join(some)).encode()
        head = ""
        await pause()


def _labels(names: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(("domain", "key1", "key2"), names, strict=False))


def _line(name: str, names: Mapping[str, str], number: float) -> str:
    text = ",".join(f'{label}="{_escaped(value)}"' for label, value in names.items())
    return f"{name}{{{text}}} {number}\n" if text else f"{name} {number}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _histogram(name: str, histogram: Histogram) -> Iterator[str]:
    total = 0
    bounds = [f"{bound / 1_000_000:g}" for bound in LATENCY_BOUNDS_US] + ["+Inf"]
    for bound, count in zip(bounds, histogram.buckets, strict=True):
        total += count
        yield _line(f"{name}_bucket", {**_METHOD, "le": bound}, total)
    yield _line(f"{name}_sum", _METHOD, histogram.sum_us / 1_000_000)
    yield _line(f"{name}_count", _METHOD, total)
