"""Renders the catalogue for Prometheus, in its text format or as OpenMetrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ratelimit_service.eventloop.slices import SLICE, pause
from ratelimit_service.metrics.catalogue import CATALOGUE, Metric, MetricKind, Sample
from ratelimit_service.metrics.reading import Sources
from ratelimit_service.observability.stats import LATENCY_BOUNDS_US, Histogram

__all__ = ["Metrics"]

_END = b"# EOF\n"
"""How a page in OpenMetrics' format ends."""


class _Families(Collector):
    """Families to encode."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Sequence[Family]:
        """Called by the encoder."""
        return self._families


class Metrics:
    """The page of `/metrics`, made at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)

    def render(self, accept: str) -> tuple[str, AsyncIterator[bytes]]:
        """The content type and the page for a scraper's Accept header, part by part.

        Rules by the thousand are written a few at a time, so that no request waits for them.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # it names no version, or no escaping
            encode, content_type = choose_encoder("")
        return content_type, self._pages(encode)

    async def _pages(self, encode: Callable[[Collector], bytes]) -> AsyncIterator[bytes]:
        reading = await self._sources.read()
        await pause()
        page = encode(_Families(list(self._process.collect())))
        end = _END if page.endswith(_END) else b""
        yield page.removesuffix(_END)
        for metric in CATALOGUE:
            samples = metric.read(reading)
            if samples is None:
                continue
            rest, begun = iter(samples), False
            while (some := list(islice(rest, SLICE))) or not begun:
                page = encode(_Families([_family(metric, some)]))
                if begun:
                    lines = page.splitlines(keepends=True)
                    page = b"".join(line for line in lines if not line.startswith(b"#"))
                begun = True
                yield page.removesuffix(_END)
                await pause()
        while reading.series or reading.unmet or reading.limited:  # all at once takes too long
            del reading.series[-SLICE:]
            del reading.unmet[-SLICE:]
            del reading.limited[-SLICE:]
            await pause()
        yield end

    def collect(self) -> Iterator[Family]:
        """Every family of ours, whole."""
        reading = self._sources.read_at_once()
        for metric in CATALOGUE:
            samples = metric.read(reading)
            if samples is not None:
                yield _family(metric, samples)


_FamilyWithLabels = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FAMILIES: dict[MetricKind, type[_FamilyWithLabels]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram)  # noqa: S101 -- as its kind says
            family.add_metric(labels, _buckets(value), value.sum_us / 1_000_000)
        else:
            assert not isinstance(value, Histogram)  # noqa: S101 -- as its kind says
            family.add_metric(labels, value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [str(bound / 1_000_000) for bound in LATENCY_BOUNDS_US] + ["+Inf"]
    total = 0.0
    buckets = []
    for bound, count in zip(bounds, histogram.buckets, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
