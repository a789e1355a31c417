"""The command `ratelimit`."""

from ratelimit_service.cli.main import main

__all__ = ["main"]
