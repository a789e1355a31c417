"""The counts that operators see. The only package that knows Prometheus."""

from ratelimit_service.metrics.catalogue import CATALOGUE, Metric, MetricKind, Sample
from ratelimit_service.metrics.exporter import Exporter, Page, Push
from ratelimit_service.metrics.exporters import EXPORTERS
from ratelimit_service.metrics.otlp import OtlpMetrics
from ratelimit_service.metrics.prometheus import Metrics
from ratelimit_service.metrics.reading import Reading, Sources, WorkerFigures

__all__ = [
    "CATALOGUE",
    "EXPORTERS",
    "Exporter",
    "Metric",
    "MetricKind",
    "Metrics",
    "OtlpMetrics",
    "Page",
    "Push",
    "Reading",
    "Sample",
    "Sources",
    "WorkerFigures",
]
