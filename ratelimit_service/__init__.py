"""An exact, Envoy-compatible rate limit decision service."""

from importlib.metadata import version
from importlib.util import find_spec

__all__ = ["__version__", "compiled"]

__version__ = version("ratelimit-service")


def compiled() -> bool:
    """Whether the hot path runs as machine code, built by mypyc, or in the interpreter."""
    found = find_spec("ratelimit_service.clock")
    return found is not None and not str(found.origin).endswith(".py")
