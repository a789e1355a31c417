"""The catalogue over OTLP: what is told of each metric, as plain values.

Counters tell what has been counted since this program began to send, as OTLP has it: their names
are those of the catalogue. What must not live here: how it is sent (`telemetry`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.eventloop.slices import SLICE, slowly
from ratelimit_service.metrics.catalogue import CATALOGUE, Metric, MetricKind
from ratelimit_service.metrics.reading import Reading
from ratelimit_service.observability.stats import LATENCY_BOUNDS_US, Histogram
from ratelimit_service.settings import Settings

__all__ = ["OtlpMetrics"]

_Number = float | list[int]
"""Of a sample; of a histogram the sum in microseconds and all buckets."""

_UNITS = {"_seconds": "s", "_bytes": "By"}
"""By how a name ends."""

_BOUNDS = [bound / 1_000_000 for bound in LATENCY_BOUNDS_US]


class OtlpMetrics:
    """Sends all metrics every so often, some at a time."""

    def __init__(self, settings: Settings, send: Callable[[object], None]) -> None:
        """`send` takes a part: when counting began, when it was read, and metrics."""
        self.every_us = settings.otel_metrics_interval_us
        self._send = send
        self._start_us = 0
        self._before: dict[tuple[str, tuple[str, ...]], _Number] = {}
        """What had been counted when this program began to send."""

    async def begin(self, reading: Reading) -> None:
        """What a former program of this process has told is not told again."""
        self._start_us = now_us()
        self._before = {}
        async for metric, labels, number in slowly(_numbers(reading)):
            if metric.kind is not MetricKind.GAUGE and number:
                self._before[metric.name, labels] = number

    async def send(self, reading: Reading) -> None:
        """Sends all numbers."""
        part: list[dict[str, object]] = []
        last = ""
        samples: list[object] = []
        for count, (metric, labels, number) in enumerate(_numbers(reading), 1):
            if metric.name != last or not part:
                samples, last = [], metric.name
                part.append(_head(metric, samples))
            samples.append([labels, _encoded(self._grown(metric, labels, number))])
            if count % SLICE == 0:
                self._hand_on(part)
                part = []
                await asyncio.sleep(0)
        if part:
            self._hand_on(part)

    def _hand_on(self, part: list[dict[str, object]]) -> None:
        self._send({"start_us": self._start_us, "now_us": now_us(), "metrics": part})

    def _grown(self, metric: Metric, labels: tuple[str, ...], number: _Number) -> _Number:
        before = self._before.get((metric.name, labels))
        if before is None:
            return number
        if isinstance(number, list):
            assert isinstance(before, list)  # noqa: S101 -- the same metric
            return [now - then for now, then in zip(number, before, strict=True)]
        assert not isinstance(before, list)  # noqa: S101 -- the same metric
        if number < before:  # a rule of this name was gone meanwhile: it counts from 0 again
            del self._before[metric.name, labels]
            return number
        return number - before


def _numbers(reading: Reading) -> Iterator[tuple[Metric, tuple[str, ...], _Number]]:
    """Every sample of the catalogue."""
    for metric in CATALOGUE:
        for labels, value in metric.read(reading) or ():
            if isinstance(value, Histogram):
                yield metric, labels, [value.sum_us, *value.buckets]
            else:
                yield metric, labels, value


def _head(metric: Metric, samples: list[object]) -> dict[str, object]:
    units = [unit for end, unit in _UNITS.items() if metric.name.endswith(end)]
    return {
        "name": metric.name,
        "help": metric.help,
        "kind": metric.kind.value,
        "unit": units[0] if units else "",
        "labels": metric.labels,
        "bounds": _BOUNDS if metric.kind is MetricKind.HISTOGRAM else [],
        "samples": samples,
    }


def _encoded(number: _Number) -> object:
    if isinstance(number, list):
        return {"sum": number[0] / 1_000_000, "buckets": number[1:]}
    return number
