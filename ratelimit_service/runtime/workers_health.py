"""What health says of all workers together: their faults, and how many of them are missing.

What must not live here: what a worker is, and who starts another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ratelimit_service.observability.health import Health

__all__ = ["WorkersHealth"]


class WorkersHealth:
    """The health of one service, as its workers make it."""

    def __init__(self, health: Health, count: int) -> None:
        """There should be `count` workers."""
        self._health = health
        self._count = count
        self._faulty: set[str] = set()
        self._begun = False
        """Whether there were enough of them at least once."""

    def sum_up(self, workers: Iterable[Mapping[str, str]]) -> None:
        """Reports a component as degraded if it is so in any worker; these are all their faults."""
        faults: dict[str, str] = {}
        for worker in workers:
            for component, reason in worker.items():
                faults.setdefault(component, reason)
        for component in self._faulty - faults.keys():
            self._health.recover(component)
        self._faulty = set(faults)
        for component, reason in faults.items():
            self._health.degrade(component, reason)

    def note(self, notes: Mapping[str, str]) -> None:
        """Notes what a worker has noted."""
        for subject, text in notes.items():
            self._health.note(subject, text)

    def look(self, serving: int, *, stopping: bool) -> None:
        """Says how many workers are missing, if so many serve; none is missing at the start."""
        missing = self._count - serving
        self._begun = self._begun or missing <= 0
        if missing > 0 and self._begun:
            self._health.degrade(
                "workers", f"{missing} of {self._count} workers are missing: see the log"
            )
        else:
            self._health.recover("workers")
        self.hold(serving, stopping=stopping)

    def hold(self, serving: int, *, stopping: bool) -> None:
        """Turns requests away while there is nobody to take them."""
        if self._begun and not serving and not stopping:
            self._health.hold("workers", "no worker serves: see the log")
        else:
            self._health.let_go("workers")
