"""Rules from files under one path, and how their changes are seen. `files` reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Self

from watchfiles import awatch

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.files import NoRulesError, read_rule_files
from ratelimit_service.rules.source import LastGoodFiles, RuleSource, SourceContent
from ratelimit_service.settings import Settings
from ratelimit_service.text.display import printable

__all__ = ["FromFiles"]

_LOOK_MS = 5_000
"""How long it can take to see a change of which the system does not tell.

That happens on network file systems, and when a link above the watched directory is turned.
A look compares bytes; nothing is parsed that has not changed.
"""

_RETRY_SECONDS = 1.0


class FromFiles(RuleSource):
    """The rule files under one path. A file vanishes by mistake more often than on purpose."""

    keeps_vanished = True

    def __init__(self, path: Path, *, may_lack: bool = False) -> None:
        """`may_lack` lets a start do without any rules, which are taken when they come."""
        self._may_lack = may_lack
        self.location = str(path)
        self._path = path

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The path may not exist yet: `read` says so."""
        return cls(Path(settings.rules), may_lack=settings.start_without_rules)

    def read(self) -> SourceContent:
        """Raises RulesError if there are no files."""
        try:
            return read_rule_files(self._path)
        except RulesError as error:
            raise RulesError(f"{error}; name another with --rules PATH") from error

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        """What is there. Raises RulesError, which tells who has no rules yet how to get some."""
        try:
            return super().first(former)
        except RulesError as error:
            if not isinstance(error.__cause__, NoRulesError):
                raise
            if self._may_lack:
                return None
            first = self._path if self._path.suffix else self._path / "first.yaml"
            message = f"{error}, or write a first rule file: ratelimit init {first}"
            raise RulesError(message) from error

    async def changes(self) -> AsyncGenerator[str, None]:
        """Sees edits, files that are replaced, added or removed, and a turned link.

        The latter is how Kubernetes changes a ConfigMap. Bursts of changes become one.
        """
        while True:
            target = self._path.parent if self._path.is_file() else self._path
            try:
                async for _ in awatch(
                    target, watch_filter=None, rust_timeout=_LOOK_MS, yield_on_timeout=True
                ):
                    yield ""
            except FileNotFoundError:
                yield ""
            except Exception as error:  # the system's means can end in many ways
                yield (
                    "the system does not tell of changed rules, looking every "
                    f"{_LOOK_MS // 1_000} s: {printable(str(error) or type(error).__name__)}"
                )
                await asyncio.sleep(_LOOK_MS / 1_000 - _RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
