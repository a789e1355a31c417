"""What the process says about itself: whether it serves, and what is degraded.

One object, written by whoever notices a fault (stores, rules, runtime) and read by the
health endpoints, the metrics and the log. It decides nothing and knows no protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Final

__all__ = ["MAX_NOTES", "Health", "Phase"]

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 60.0
"""So long the log says no more of a component that has recovered: it may come and go."""

CallLater = Callable[[float, Callable[[], None]], object]
"""Calls in so many seconds."""


MAX_NOTES: Final = 16
"""The most subjects that are noted."""


class Phase(StrEnum):
    """Where the process is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """Others take over what this process does: it ends, the service goes on."""
    DRAINING = "draining"


class Health:
    """The phase of the process and the reasons, by component, why it is degraded.

    Degraded is not unhealthy: requests are still answered (by count or by policy), so the
    instance stays in its load balancer. `STARTING` and `DRAINING` mean NOT_SERVING, and so does a
    component that is held: without it no request would be answered as it should be.
    """

    def __init__(self, level: int = logging.WARNING, call_later: CallLater | None = None) -> None:
        """`level` is the log's for what begins to be wrong.

        `call_later` calls in so many seconds; it is the running event loop's if none is given.
        """
        self._level = level
        self._call_later = call_later
        self._quiet: dict[str, int] = {}
        """Components of which the log has just said enough: how often they were degraded since."""
        self._phase = Phase.STARTING
        self._faults: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def phase(self) -> Phase:
        """The phase the process is in."""
        return self._phase

    @property
    def serving(self) -> bool:
        """Whether new requests are welcome."""
        return self._phase in {Phase.SERVING, Phase.LEAVING} and not self._holds

    @property
    def why_not(self) -> str:
        """Why new requests are not welcome: the phase, or what is missing; and what is degraded."""
        lines = [*self._holds.values()] if self._holds else [str(self._phase)]
        return "\n".join([*lines, *(f"{name}: {why}" for name, why in self._faults.items())])

    @property
    def faults(self) -> dict[str, str]:
        """Why the process is degraded: a sentence for each component, in the order noticed."""
        return dict(self._faults)

    @property
    def notes(self) -> dict[str, str]:
        """What is worth knowing though nothing is degraded: a sentence for each subject."""
        return dict(self._notes)

    def note(self, subject: str, text: str) -> None:
        """Records what does not degrade the process; logs it the first time.

        So many subjects are noted at most (`MAX_NOTES`).
        """
        if subject not in self._notes and len(self._notes) < MAX_NOTES:
            log.log(self._level, "%s: %s", subject, text)
            self._notes[subject] = text
            self._notify()

    def enter(self, phase: Phase) -> None:
        """Moves to a phase and tells the listeners."""
        if phase is not self._phase:
            self._phase = phase
            self._notify()

    def degrade(self, component: str, reason: str, *, logged: bool = False) -> None:
        """Records that a component is degraded; logs it when it was well before.

        With `logged` the log has the reason already, and says it once.
        If it has recovered within the last minute, the log's next summary tells it.
        """
        begins = component not in self._faults
        self._faults[component] = reason
        if not begins:
            return
        if component in self._quiet:
            self._quiet[component] += 1
        elif not logged:
            fields = {"component": component, "reason": reason}
            log.log(self._level, "degraded: %s: %s", component, reason, extra={"fields": fields})
        self._notify()

    def recover(self, component: str) -> None:
        """Records that a component is well again; logs it when it was degraded."""
        reason = self._faults.pop(component, None)
        if reason is None:
            return
        if component not in self._quiet:
            fields = {"component": component}
            level = min(self._level, logging.INFO)
            log.log(level, "recovered: %s", component, extra={"fields": fields})
            self._be_quiet(component, reason)
        self._notify()

    def _be_quiet(self, component: str, reason: str) -> None:
        """Nothing more is logged of the component for a minute; then what has happened."""
        later = self._call_later
        if later is None:
            try:
                later = asyncio.get_running_loop().call_later
            except RuntimeError:  # nobody is there to call
                return
        self._quiet[component] = 0
        later(_QUIET_SECONDS, lambda: self._sum_up(component, reason))

    def _sum_up(self, component: str, reason: str) -> None:
        """Logs how often the component was degraded in the last minute, if it was."""
        times = self._quiet.pop(component)
        if not times:
            return
        now = self._faults.get(component)
        fields = {"component": component, "reason": now or reason, "times": str(times)}
        log.log(
            self._level,
            "degraded: %s: %s (%s in the last minute; now it is %s)",
            component,
            now or reason,
            "once more" if times == 1 else f"{times} times more",
            "well" if now is None else "degraded",
            extra={"fields": fields},
        )
        if now is None:
            self._be_quiet(component, reason)

    def hold(self, component: str, reason: str) -> None:
        """New requests are not welcome, for this reason, until the component is let go."""
        if component not in self._holds:
            log.log(self._level, "not serving: %s: %s", component, reason)
            self._holds[component] = reason
            self._notify()

    def let_go(self, component: str) -> None:
        """The component is no reason any more to turn requests away."""
        if self._holds.pop(component, None) is not None:
            log.log(min(self._level, logging.INFO), "serving again: %s", component)
            self._notify()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change of phase or of the set of degraded components."""
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
