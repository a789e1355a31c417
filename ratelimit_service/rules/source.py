"""A source of rules: where they come from, and how a change is noticed.

What a source finds is given to `load`, which builds it, keeps what was good and says what is
wrong; a source does none of that. `sources` lists them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from ratelimit_service.rules.problem import Problem
from ratelimit_service.settings import Settings

__all__ = ["Found", "RuleSource", "Verdict"]

Verdict = Mapping[str, Sequence[Problem]]
"""Why files are not used, by their names; what is wrong between several stands under ""."""


class Found(NamedTuple):
    """The files that could be read, in path order; and what could not, with the reason.

    Among the latter are directories, whose files are then not known. A source without a file
    system has files, too: whatever it calls them, they have names and bytes.
    """

    files: dict[str, bytes]
    unread: dict[str, str]

    def unread_above(self, name: str) -> bool:
        """Whether a file was not looked for, since it or a directory above it cannot be read."""
        return any(Path(name).is_relative_to(each) for each in self.unread)


class RuleSource(ABC):
    """One place from which rules come. It belongs to one event loop; `read` runs in a thread."""

    place: str
    """What people call it, as `--rules` names it."""

    keeps_vanished = False
    """Whether the rules of a file that is not there any more stay until SIGHUP or a restart."""

    @classmethod
    @abstractmethod
    def of(cls, settings: Settings) -> Self:
        """The source that `settings.rules` names. Raises SettingsError if it is none."""

    @abstractmethod
    def read(self) -> Found:
        """All that is there now. Raises RulesError if there is nothing, with what to do next."""

    @abstractmethod
    def changes(self) -> AsyncGenerator[str, None]:
        """Yields whenever the rules may have changed: "", or why changes are not seen at once.

        What has really changed is found out by reading.
        """

    def judged(self, found: Found, verdict: Verdict) -> None:  # noqa: B027 -- most need not know
        """Told after every load what became of what was read."""
