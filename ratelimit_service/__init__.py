"""An exact, Envoy-compatible rate limit decision service."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("ratelimit-service")
