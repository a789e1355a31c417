"""A source of rules: where they come from, and how a change is noticed.

What a source finds is given to `load`, which builds it, keeps what was good and says what is
wrong; a source does none of that. `sources` lists them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from ratelimit_service.rules.build import Language
from ratelimit_service.rules.problem import Problem
from ratelimit_service.settings import Settings

__all__ = ["FileProblems", "LastGoodFiles", "RuleSource", "SourceContent"]

FileProblems = Mapping[str, Sequence[Problem]]
"""Why files are not used, by their names; what is wrong between several stands under ""."""


LastGoodFiles = Mapping[str, str]
"""The text of each file in its last good version, by name."""


class SourceContent(NamedTuple):
    """The files that could be read, in path order; and what could not, with the reason.

    Among the latter are directories, whose files are then not known. A source without a file
    system has files, too: whatever it calls them, they have names and bytes.
    """

    files: dict[str, bytes]
    unread: dict[str, str]
    languages: Mapping[str, Language] = MappingProxyType({})
    """Of those that are no YAML."""
    skipped: Mapping[str, str] = MappingProxyType({})
    """Files that hold no rules, as their names tell, with what they are."""

    def unread_above(self, name: str) -> bool:
        """Whether a file was not looked for, since it or a directory above it cannot be read."""
        return any(Path(name).is_relative_to(each) for each in self.unread)


class RuleSource(ABC):
    """One place from which rules come. It belongs to one event loop; `read` runs in a thread."""

    location: str
    """What people call it, as `--rules` names it."""

    leaves = False
    """Whether good rules are handed to the next program of this process, so that it reads none."""

    changes_often = False
    """Whether rules change all the time, so that the process that builds them stays."""

    keeps_vanished = False
    """Whether the rules of a file that is not there any more stay until SIGHUP or a restart."""

    @classmethod
    @abstractmethod
    def of(cls, settings: Settings) -> Self:
        """The source that `settings.rules` names. Raises SettingsError if it is none."""

    @abstractmethod
    def read(self) -> SourceContent:
        """All that is there now. Raises RulesError if there is nothing, with what to do next."""

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        """What to begin with; None to begin without rules, which `changes` will tell of.

        `former` is what a former program of this process had from a source that `leaves` it. Raises
        RulesError as `read`.
        """
        del former
        return self.read()

    def fetch(self) -> SourceContent:
        """As `read`, for who asks just once and so waits for an answer."""
        return self.read()

    @abstractmethod
    def changes(self) -> AsyncGenerator[str, None]:
        """Yields whenever the rules may have changed: "", or why changes are not seen at once.

        What has really changed is found out by reading.
        """

    def end(self) -> None:  # noqa: B027 -- most have nothing that would stay
        """Ends what would outlive this program, right before another takes its place."""

    def judged(self, content: SourceContent, verdict: FileProblems) -> None:  # noqa: B027 -- most need not know
        """Told after every load what became of what was read."""
