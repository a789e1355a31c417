"""An exact, Envoy-compatible rate limit decision service."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

__all__ = ["__version__", "compiled"]


def _installed_version() -> str:
    """The version that the metadata of the installed package says.

    `importlib.metadata` would say the same, and bring along two megabytes for each process.
    """
    for metadata in _metadata():
        for line in metadata.read_text(encoding="utf-8").splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ").strip()
    return "0"


def _metadata() -> Iterator[Path]:
    for directory in sys.path:
        yield from Path(directory or ".").glob("ratelimit_service-*.dist-info/METADATA")


__version__ = _installed_version()


def compiled() -> bool:
    """Whether the hot path runs as machine code, built by mypyc, or in the interpreter."""
    found = find_spec("ratelimit_service.clock")
    return found is not None and not str(found.origin).endswith(".py")
