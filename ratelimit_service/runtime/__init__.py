"""The life of a process: what is built from what, signals, start and drain."""

from ratelimit_service.runtime.app import serve

__all__ = ["serve"]
