"""The counts that operators see, in Prometheus's format. The only package that knows Prometheus."""

from ratelimit_service.metrics.prometheus import Metrics, WorkerFigures

__all__ = ["Metrics", "WorkerFigures"]
