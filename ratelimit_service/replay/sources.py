"""From the words of a command line to what is replayed: rules, and logs of any kind."""

from __future__ import annotations

from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.replay.csv_log import CsvLog
from ratelimit_service.replay.logs import LogError, LogReader
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.tree import Snapshot

__all__ = ["reader_of", "rules_of"]


def rules_of(path: Path) -> Snapshot:
    """The rules of a file or directory. Raises RulesError with all that is wrong in them."""
    problems = [problem for problem in lint([path]).problems if problem.fatal(strict=False)]
    if problems:
        raise RulesError("\n".join(map(str, problems)))
    rules = Rules(FromFiles(path), stats=Stats(), health=Health())
    rules.load()
    return rules.snapshot


def reader_of(name: str, first: str) -> LogReader:
    """What reads a log with this first line. Raises LogError if nothing does."""
    if first.lstrip().startswith("{"):
        raise LogError(f"{name}:1: this is JSON; a log must be CSV")
    return CsvLog(name, first)
