"""What the log says of a load: problems, and which rules are others now.

What must not live here: what is loaded, and what holds (`load`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from ratelimit_service.rules.problem import Problem
from ratelimit_service.text.display import count

__all__ = ["ReloadDifference", "log_problems", "log_reload"]

log = logging.getLogger(__name__)

_LINES = 10
"""Problems that are logged in a step."""

_MOST_LOGGED = 1_000
"""Problems that the log tells of one load: a management server may send as many at any time."""


class ReloadDifference(NamedTuple):
    """How many rules have come, gone, and become others in meaning; and some of these in words."""

    added: int
    removed: int
    changed: int
    examples: tuple[str, ...]

    def in_words(self) -> list[str]:
        """`1 added, 2 changed (api: user 5 → 20 per minute; …)`."""
        words = []
        if self.added:
            words.append(f"{self.added} added")
        if self.changed:
            more = self.changed - len(self.examples)
            examples = [*self.examples, f"and {more} more"] if more else self.examples
            words.append(f"{self.changed} changed ({'; '.join(examples)})")
        if self.removed:
            words.append(f"{self.removed} removed")
        return words or ["nothing changed in meaning"]


def log_reload(
    sizes: Mapping[str, int], problems: int, revision: str, difference: ReloadDifference | None
) -> None:
    """Says what has been loaded; `sizes` are the numbers of rules by domain."""
    rules, domains = sum(sizes.values()), len(sizes)
    fields: dict[str, object] = {"rules": rules, "domains": domains, "problems": problems}
    words = [f"{count(rules, 'rule')} in {count(domains, 'domain')}"]
    if difference is not None:
        fields |= {
            "added": difference.added,
            "removed": difference.removed,
            "changed": difference.changed,
        }
        words += difference.in_words()
    if problems:
        words.append(count(problems, "problem"))
    fields["revision"] = revision
    words.append(f"revision {revision}")
    log.info("rules reloaded: %s", ", ".join(words), extra={"fields": fields})


def log_problems(problems: Sequence[Problem], *, strict: bool) -> Generator[None, None, None]:
    """Says what is new of the problems; of very many only how many more there are."""
    for number, problem in enumerate(problems[:_MOST_LOGGED], 1):
        level = logging.ERROR if problem.fatal(strict=strict) else logging.WARNING
        fields = {
            "file": problem.source.file,
            "line": problem.source.line,
            "rule": problem.path,
            "kind": problem.kind,
        }
        level = logging.INFO if problem.hint else level
        log.log(level, "%s", problem, extra={"fields": fields})
        if number % _LINES == 0:
            yield
    if len(problems) > _MOST_LOGGED:
        log.warning("%d more problems in the rules", len(problems) - _MOST_LOGGED)
