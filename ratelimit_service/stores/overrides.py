"""Where overrides are kept: the interface, and this process's memory with a file.

Redis' side of it is `redis.overrides`. What must not live here: which overrides are in force in a
process, and what they do.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ratelimit_service.errors import OverrideError, SettingsError, StoreError
from ratelimit_service.files.whole_file import MOST_BYTES, read_whole
from ratelimit_service.model import MAX_OVERRIDES, Override, read_override, too_many_overrides
from ratelimit_service.text.display import reason
from ratelimit_service.text.json_slips import json_slip

__all__ = ["MOST_AUDITED", "Audited", "OverrideStore", "OverridesInMemory"]

MOST_AUDITED: Final = 10_000
"""So many changes are kept, the newest."""

_FILE_VERSION: Final = 1


class Audited(NamedTuple):
    """Some lines of changes, and a cursor to the lines after them; "" if there are no more."""

    lines: Sequence[str]
    cursor: str


class OverrideStore(Protocol):
    """Keeps overrides, and a record of each change."""

    async def changed(self) -> Mapping[str, Override] | None:
        """All overrides by id, ended ones too; None if nothing has changed since the last call.

        Raises StoreError if nobody can say.
        """

    async def change(self, added: Sequence[Override], removed: Sequence[str], *audit: str) -> None:
        """Adds and removes overrides, and keeps these lines of it; all of it or nothing.

        What is to be removed and is not there is no error. Raises StoreError, then nobody knows
        whether it was done; and OverrideError if there are too many.
        """

    async def audited(self, most: int, after: str = "") -> Audited:
        """The last changes, the newest first, or those after the cursor of an earlier answer.

        What changes between two answers moves none. Raises StoreError.
        """


class OverridesInMemory:
    """Keeps them in this process, and in a file if one is named, so that they outlive it."""

    def __init__(self, path: str = "") -> None:
        """Reads the file, if it is there. Raises SettingsError if it cannot be used."""
        self._path = Path(path) if path else None
        self._audited: deque[str] = deque(maxlen=MOST_AUDITED)
        self._changes = 0
        """How many lines there ever were. A cursor is how many of them are older than the last one
        told."""
        self._changed = True
        self._turn = asyncio.Lock()
        """Held by a change while it writes the file: the next one begins with what it leaves."""
        self._overrides = {} if self._path is None else _read(self._path)

    async def changed(self) -> Mapping[str, Override] | None:
        """As `OverrideStore`."""
        changed, self._changed = self._changed, False
        return self._overrides if changed else None

    async def change(self, added: Sequence[Override], removed: Sequence[str], *audit: str) -> None:
        """As `OverrideStore`. The file is replaced by another one."""
        async with self._turn:
            await self._change(added, removed, audit)

    async def _change(
        self, added: Sequence[Override], removed: Sequence[str], audit: Sequence[str]
    ) -> None:
        gone = set(removed)
        overrides = {name: each for name, each in self._overrides.items() if name not in gone}
        overrides |= {each.id: each for each in added}
        if len(overrides) > MAX_OVERRIDES:
            raise too_many_overrides()
        if self._path is not None and (added or removed):
            text = await asyncio.to_thread(_text, overrides.values())
            if len(text) > MOST_BYTES:  # JSON as written here is ASCII
                raise OverrideError(
                    f"the overrides file {self._path} would have more than {MOST_BYTES >> 20} MiB, "
                    "and could not be read again: remove some (ratelimit overrides remove ID)"
                )
            await asyncio.to_thread(_replace, self._path, text)
        self._overrides, self._changed = overrides, True
        self._audited.extendleft(audit)
        self._changes += len(audit)

    async def audited(self, most: int, after: str = "") -> Audited:
        """As `OverrideStore`. Only changes of this process are kept here."""
        first = self._changes - int(after) if after else 0
        lines = list(islice(self._audited, first, first + most))
        behind = self._changes - first - len(lines)
        return Audited(lines, str(behind) if first + len(lines) < len(self._audited) else "")


def _text(overrides: Iterable[Override]) -> str:
    lines = [json.dumps(each.fields()) for each in overrides]
    return f'{{"v": {_FILE_VERSION}, "overrides": [\n' + ",\n".join(lines) + "\n]}\n"


def _replace(path: Path, text: str) -> None:
    """Replaces the file, whole or not at all, also if the machine stops. Raises StoreError."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreError(
            f"the overrides file {path} cannot be written: {error.strerror}; nothing was changed"
        ) from error


def _read(path: Path) -> dict[str, Override]:
    try:
        text = read_whole(path).decode()
    except FileNotFoundError:
        if path.parent.is_dir():
            return {}
        raise SettingsError(f"--overrides-file {path}: there is no such directory") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--overrides-file {path} cannot be read: {reason(error)}") from error
    try:
        overrides = _listed(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"it is no JSON: {json_slip(error)}") from error
    except OverrideError as error:
        raise _unusable(path, str(error)) from error
    return {each.id: each for each in overrides}


def _listed(said: object) -> list[Override]:
    """The overrides of a file, as JSON has it. Raises OverrideError."""
    if not isinstance(said, dict) or not isinstance(said.get("overrides"), list):
        raise OverrideError("it is no object with a list of overrides")
    if said.get("v") != _FILE_VERSION:
        raise OverrideError(
            f'its format ("v") is not {_FILE_VERSION}: another version of this program wrote it'
        )
    found = []
    for number, fields in enumerate(said["overrides"], 1):
        if not isinstance(fields, dict):
            raise OverrideError(f"override {number} is no object")
        found.append(read_override(fields))
    return found


def _unusable(path: Path, why: str) -> SettingsError:
    return SettingsError(f"--overrides-file {path} cannot be used: {why}; mend it, or move it away")
