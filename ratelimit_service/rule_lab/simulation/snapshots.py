"""The rules of files, loaded to be tried: only if nothing is wrong in them."""

from __future__ import annotations

from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.tree import Snapshot

__all__ = ["BrokenRulesError", "snapshot_of"]


class BrokenRulesError(RulesError):
    """Rules that have problems; each line of the text is one."""


def snapshot_of(path: Path) -> Snapshot:
    """The rules of a file or directory. Raises BrokenRulesError with all that is wrong in them."""
    problems = [problem for problem in lint([path]).problems if problem.fatal(strict=False)]
    if problems:
        raise BrokenRulesError("\n".join(map(str, problems)))
    rules = Rules(FromFiles(path), stats=Stats(), health=Health())
    rules.load()
    return rules.snapshot
