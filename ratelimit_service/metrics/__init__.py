"""The counts that operators see. The only package that knows Prometheus."""

from ratelimit_service.metrics.catalogue import CATALOGUE, Metric, MetricKind, Sample
from ratelimit_service.metrics.prometheus import Metrics
from ratelimit_service.metrics.reading import Reading, Sources, WorkerFigures

__all__ = [
    "CATALOGUE",
    "Metric",
    "MetricKind",
    "Metrics",
    "Reading",
    "Sample",
    "Sources",
    "WorkerFigures",
]
