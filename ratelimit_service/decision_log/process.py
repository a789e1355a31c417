"""The process that writes the decision log, as its parent sees it.

It is given packets, and what became of their decisions is counted. A process that decides has no
work with lines and files. What must not live here: how packets are written (`writer`).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from ratelimit_service.decision_log import writer
from ratelimit_service.decision_log.key import read_key
from ratelimit_service.decision_log.packets import decisions_in
from ratelimit_service.decision_log.writer import Progress
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes.pipes import FedProcess, start
from ratelimit_service.settings import Settings

__all__ = ["LogProcess"]

log = logging.getLogger(__name__)

_END_SECONDS: Final = 2.0
"""How long it may take to write what is left."""


class LogProcess:
    """Has packets written, if the settings ask for a log."""

    def __init__(self, settings: Settings, stats: Stats, health: Health) -> None:
        """Raises SettingsError if the key for values cannot be read."""
        key = read_key(settings.decision_log_key_file)
        stdout = _stdout() if settings.decision_log == "stdout" else -1
        self._wanted = bool(settings.decision_log)
        self._process = FedProcess(
            partial(
                start,
                writer.__name__,
                subprocess.DEVNULL,
                inherited=(stdout,) if stdout >= 0 else (),
            ),
            pickle.dumps((settings, key, stdout)),
            self._note_progress,
            _pausing,
            _END_SECONDS,
            self._note_end,
        )
        self._counts = stats.decision_log
        self._health = health
        self._under_way = 0
        """Decisions that it was given, and has not said what became of."""
        self._bugs = Bugs()

    def take(self, packet: bytes) -> None:
        """Has a packet written. It never waits: where there is no room it is dropped."""
        count = decisions_in(packet)
        if self._process.give(packet):
            self._under_way += count
        else:
            self._counts["dropped_slow"] += count

    def running(self) -> AbstractAsyncContextManager[FedProcess]:
        """Runs until the end of the block, or until `stop`."""
        return self._process.running(self._wanted)

    async def stop(self) -> None:
        """Has all written that can be in time. A second call does nothing."""
        await self._process.stop()

    def _note_progress(self, line: bytes) -> None:
        """Counts what became of decisions."""
        done = Progress(*json.loads(line))
        self._under_way -= done.written + done.failed
        self._counts["written"] += done.written
        self._counts["dropped_error"] += done.failed
        if done.fault:
            self._health.degrade("decision_log", done.fault)
        else:
            self._health.recover("decision_log")
        if done.bug:
            self._bugs.note("decisions could not be written down", ValueError(done.bug))

    def _note_end(self) -> None:
        """Counts what is lost with the process."""
        self._counts["dropped_slow"] += self._under_way
        self._under_way = 0


def _pausing(seconds: float, why: str) -> None:
    log.warning("no process writes the decision log for %.1f s: %s", seconds, why)


def _stdout() -> int:
    """A copy of standard output's descriptor, which a process of ours can inherit; -1 if closed."""
    try:
        return os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return -1
