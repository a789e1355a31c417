"""The command `ratelimit`."""

from ratelimit_service.cli.main import main
from ratelimit_service.cli.words import format_descriptor, parse_descriptor

__all__ = ["format_descriptor", "main", "parse_descriptor"]
