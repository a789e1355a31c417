"""The counts that operators see, in Prometheus's format. The only package that knows Prometheus."""

from ratelimit_service.metrics.prometheus import Metrics

__all__ = ["Metrics"]
