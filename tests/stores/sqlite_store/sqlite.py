"""Counters in a file, by SQLite: exact for all processes of one machine.

What must not live here: how hits are judged (`algorithms`) and how keys look (`keys`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from ratelimit_service.algorithms.settle import settle
from ratelimit_service.errors import StoreError
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.model import SECOND_US, Hit, Outcome, State, Step
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import BROKEN, NEVER, Done, Look, Settled, Wanted, always, judge
from ratelimit_service.stores.corrupt_state import CorruptState

__all__ = ["SqliteStore"]

_TABLE: Final = "CREATE TABLE IF NOT EXISTS counters (key BLOB PRIMARY KEY, state) WITHOUT ROWID"


class SqliteStore:
    """A row for each counter. A transaction settles a request, so each request is atomic."""

    waits = False

    def __init__(
        self, path: str, timeout_us: int, stats: Stats, health: Health, clock: Clock = now_us
    ) -> None:
        self._path = path
        self._timeout_s = timeout_us / SECOND_US
        self._stats = stats
        self._health = health
        self._clock = clock
        self._corrupt_state = CorruptState(stats)
        self._bugs = Bugs()
        self._file: sqlite3.Connection | None = None

    def wait_us(self, priority: int) -> int:
        """Nothing waits here."""
        return 0

    async def start(self) -> None:
        """Opens the file. If that fails, health says so, and each charge tries again."""
        self._settled([])

    async def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Settles the requests one after the other, each atomically by itself."""
        done([self._settled(hits) for hits in requests])

    def _settled(self, hits: Sequence[Hit]) -> Settled:
        try:
            steps = self._steps(hits)
        except sqlite3.Error as error:  # nothing was counted; the failure policy decides
            self._health.degrade("store", f"the counters in {self._path} are away: {error}")
            return judge(hits, [None] * len(hits))
        except Exception as error:  # a fault of ours
            self._bugs.note(f"a request could not be counted in {self._path}", error)
            return BROKEN
        self._health.recover("store")
        damaged = [hit.key for hit, step in zip(hits, steps, strict=True) if step.damaged]
        if damaged:
            self._corrupt_state.note(len(damaged), damaged[0])
        return judge(hits, [_outcome(step) for step in steps])

    def _steps(self, hits: Sequence[Hit]) -> list[Step]:
        """Settles a request in one transaction, which a fault takes back. Raises sqlite3.Error."""
        file = self._opened()
        with file:
            file.execute("BEGIN IMMEDIATE")  # from here on no other process reads or writes
            steps, changes, _ = settle(hits, self._read, self._clock())
            rows = [(key, step.state) for key, (_, step) in changes.items()]
            file.executemany("REPLACE INTO counters VALUES (?, ?)", rows)
        return steps

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            file = sqlite3.connect(self._path, self._timeout_s, isolation_level=None)
            file.execute("PRAGMA synchronous = OFF")  # nobody needs counters after a power cut
            file.execute(_TABLE)
            self._file = file
        return self._file

    def _read(self, key: bytes) -> State | None:
        rows = self._opened().execute("SELECT state FROM counters WHERE key = ?", (key,))
        found: tuple[State] | None = rows.fetchone()
        return found[0] if found else None

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand, for `ratelimit inspect`."""
        now = self._clock()
        found: list[Look | None] = []
        for peek in peeks:
            try:
                state = self._read(peek.key)
            except sqlite3.Error:
                found.append(None)
                continue
            step = peek.spec.algorithm.charge(state, now, 0, peek.spec, False, b"")
            found.append(Look(_outcome(step), state, now))
        return found

    async def forget(self, hits: Sequence[Hit]) -> None:
        """Lets these counters start anew, for `ratelimit reset`. Raises StoreError."""
        try:
            with self._opened() as file:
                file.execute("BEGIN IMMEDIATE")
                keys = [(hit.key,) for hit in hits]
                file.executemany("DELETE FROM counters WHERE key = ?", keys)
        except sqlite3.Error as error:
            raise StoreError(f"the counters in {self._path} are away: {error}") from error


def _outcome(step: Step) -> Outcome:
    until_us = step.reset_us if step.passed else step.retry_us
    return Outcome(not step.passed, step.remaining, until_us, step.counted)
