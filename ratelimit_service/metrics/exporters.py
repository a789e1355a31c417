"""All exporters beside `/metrics`. To add one, write its module and register it here."""

from __future__ import annotations

from ratelimit_service.metrics import reference_prometheus, stats_page, statsd
from ratelimit_service.metrics.exporter import Exporter

__all__ = ["EXPORTERS"]

EXPORTERS: tuple[Exporter, ...] = (
    stats_page.exports,
    reference_prometheus.exports,
    statsd.exports,
)
