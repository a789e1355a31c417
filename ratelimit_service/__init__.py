"""An exact, Envoy-compatible rate limit decision service."""

from ratelimit_service.processes.installed import compiled, installed_version

__all__ = ["__version__", "compiled"]

__version__ = installed_version()
