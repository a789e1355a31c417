"""Rules from what a command prints: `--rules exec://COMMAND`."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import AsyncGenerator
from typing import Self

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.source import RuleSource, SourceContent
from ratelimit_service.settings import Settings

__all__ = ["FromCommand"]

_LOOK_SECONDS = 5.0


class FromCommand(RuleSource):
    """One rule file: what a command prints."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._command = shlex.split(location.removeprefix("exec://"))

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Whether the command can be started is found out by reading."""
        return cls(settings.rules)

    def read(self) -> SourceContent:
        """Raises RulesError if the command fails."""
        try:
            done = subprocess.run(self._command, capture_output=True, check=True)  # noqa: S603 -- whoever starts us names it
        except (OSError, subprocess.CalledProcessError) as error:
            raise RulesError(f"{self.location}: {error}; name another with --rules") from error
        return SourceContent({self.location: done.stdout}, {})

    async def changes(self) -> AsyncGenerator[str, None]:
        """Nobody tells of changes, so it looks now and then."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            yield ""
