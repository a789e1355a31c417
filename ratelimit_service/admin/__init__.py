"""The HTTP port: health, metrics, rules, and decisions in JSON."""

from ratelimit_service.admin.http import Admin

__all__ = ["Admin"]
