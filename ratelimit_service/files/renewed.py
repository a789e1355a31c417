"""What is read from files, and read again when they change, such as certificates.

What is bad does not come into force: the last good value stays, and log, health and metric say
so. Files are looked at every second: that sees edits, files that are put in the place of others
and the turned link of a Kubernetes Secret alike. What must not live here: what the files mean.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ratelimit_service.errors import RateLimitError
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health

__all__ = ["Renewed"]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

_Value = TypeVar("_Value")
_State = tuple[tuple[int, ...] | None, ...]


class Renewed(Generic[_Value]):
    """A value, the files that it is read from, and who is told when it changes."""

    def __init__(
        self,
        component: str,
        files: Sequence[Path],
        read: Callable[[], _Value],
        health: Health,
        reloads: Counter[str],
    ) -> None:
        """Reads the value; what `read` raises is the caller's.

        Later `read` runs in a thread and raises RateLimitError for files that cannot be used.
        `component` is the name in health and log, `reloads` counts `success` and `error`.
        """
        self._component = component
        self._files = files
        self._read = read
        self._health = health
        self._reloads = reloads
        self._seen = self._tried = self._state()
        """How the files were at the last look, and when they were last read."""
        self._renewed: list[Callable[[_Value], Awaitable[None]]] = []
        self._bugs = Bugs()
        self.value = read()

    def listen(self, renewed: Callable[[_Value], Awaitable[None]]) -> None:
        """Calls `renewed` with every new value."""
        self._renewed.append(renewed)

    async def watch(self) -> None:
        """Looks every second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:  # the next change must be seen all the same
                self._bugs.note(f"{self._component}: files could not be read anew", error)

    async def look(self) -> None:
        """Reads again what has changed since it was read, and is not just changing.

        Files that differ from one look to the next may be half written, or one of a pair may
        still be the old one. They are read once two looks have found the same.
        """
        state = await asyncio.to_thread(self._state)
        still, self._seen = state == self._seen, state
        if state == self._tried or not still:
            return
        self._tried = state
        try:
            value = await asyncio.to_thread(self._read)
        except RateLimitError as error:
            self._reloads["error"] += 1
            self._health.degrade(self._component, f"{error}; what was read before stays in force")
            return
        self.value = value
        self._reloads["success"] += 1
        self._health.recover(self._component)
        log.info("%s: files read anew: %s", self._component, ", ".join(map(str, self._files)))
        for renewed in self._renewed:
            await renewed(value)

    def _state(self) -> _State:
        return tuple(map(_state_of, self._files))


def _state_of(file: Path) -> tuple[int, ...] | None:
    """What differs once a file is another or has another content; None if there is none."""
    try:
        status = os.stat(file)  # noqa: PTH116 -- through links, as whoever reads it
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
