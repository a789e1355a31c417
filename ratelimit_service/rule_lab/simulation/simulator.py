"""Decisions at times that the caller chooses: rules, limiter and memory store without a network.

What must not live here: what is expected of a decision (`cases`, `rule_test_run`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

from ratelimit_service.errors import PolicyError
from ratelimit_service.limiter import (
    LEASE_BYTES,
    DecisionContext,
    Plan,
    Planner,
    PlanTemplate,
    answer,
    settle_without_hits,
)
from ratelimit_service.limiter.reserving import (
    HOLD_ID_BYTES,
    REMEMBERED_US,
    held_until_settled,
    hits_to_hold,
    hits_to_settle,
    is_held,
    too_large,
)
from ratelimit_service.model import Code, Decision, Entry, Hit, Request, Status
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.tree import Rule, Snapshot
from ratelimit_service.service.notes import note_unkept
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.memory_counter import UNSETTLED

__all__ = ["SimulatedDecision", "SimulatedReservation", "Simulator"]

_MAX_COUNTERS = 1_000_000


class SimulatedDecision(NamedTuple):
    """A decision, and of the descriptors the one that it hangs on.

    If any is over, that is the one with the longest wait; else the one with the fewest hits left.
    `rules` are those that the descriptors met, in their order; None for one that met none.
    """

    decision: Decision
    rules: tuple[Rule | None, ...]
    deciding: int

    @property
    def rule(self) -> Rule | None:
        """The rule that the decision hangs on."""
        return self.rules[self.deciding] if self.rules else None

    @property
    def status(self) -> Status | None:
        """What callers are told of the descriptor that the decision hangs on."""
        statuses = self.decision.statuses
        return statuses[self.deciding] if statuses else None


class SimulatedReservation(NamedTuple):
    """What became of a reservation or a settle, and the rules that its descriptors met.

    `held` is what is held from now on, or was until a settle; 0 if nothing is. What is `too_large`
    can never be held.
    """

    passed: bool
    rules: tuple[Rule | None, ...]
    held: int = 0
    too_large: bool = False


class Simulator:
    """Counters of its own, all empty, and a time that only moves when it is told to."""

    def __init__(
        self, snapshot: Snapshot, settings: Settings, max_counters: int = _MAX_COUNTERS
    ) -> None:
        """The rules that hold, and the settings that say how to decide and answer."""
        self._snapshot = snapshot
        self._settings = settings
        self._planner = Planner(settings)
        self.notes: dict[str, str] = {}
        """What a service would have noted of the requests that were decided, by subject."""
        self._now_us = 0
        self._leases = 0
        self._reserved: set[str] = set()
        """The names of reservations that have passed: who reserves again by one extends it."""
        self._stats = Stats()
        health = Health(logging.DEBUG)  # what happens in a simulation is not for the log
        self._store = MemoryStore(max_counters, self._stats, health, self._clock)
        self._settled: list[Settled] = []
        self._take = self._settled.extend

    @property
    def lost(self) -> int:
        """How many counters that still counted had to make room for others."""
        return self._stats.evictions["live"]

    def plan(self, request: Request, at_us: int) -> list[Plan]:
        """What each descriptor needs. It may be charged many times (`charge`), while `phase` stays.

        `at_us` is the moment, in microseconds since the Unix epoch.
        """
        return self._planner.plan(request, at_moment(self._snapshot, at_us))

    def template(
        self, domain: str, entries: Sequence[Entry], addend: int, at_us: int
    ) -> PlanTemplate | None:
        """As `plan` of a request that has one descriptor, for all values of the last entry.

        None if they are not all alike.
        """
        snapshot = at_moment(self._snapshot, at_us)
        rules = snapshot.domains.get(domain)
        if rules is None:
            return None
        return self._planner.template(rules, entries, addend, snapshot)

    def phase(self, at_us: int) -> int:
        """A number that is another one when other rules hold, since some depend on the time."""
        return at_moment(self._snapshot, at_us).number

    def charge(self, hits: Sequence[Hit], at_us: int) -> Settled:
        """Settles one request at that moment, in microseconds since the Unix epoch."""
        self._now_us = at_us
        self._store.charge((hits,), self._take)
        return self._settled.pop()

    def charge_alone(self, hit: Hit, key: bytes, at_us: int) -> int:
        """As `charge` of this hit on another key: the hits that remain; -1 less those if over."""
        remaining = self._store.charge_hit(key, hit.spec, hit.addend, b"", at_us)[0]
        if remaining == UNSETTLED:
            (outcome,) = self.charge((hit._replace(key=key),), at_us).outcomes
            if outcome is not None:
                remaining = -1 - outcome.remaining if outcome.over else outcome.remaining
        return remaining

    def leased(self, plans: Sequence[Plan]) -> tuple[list[Hit], bytes]:
        """The hits of a request, those that take leases with an id, and that id."""
        self._leases += 1
        lease = self._leases.to_bytes(LEASE_BYTES, "big")
        hits = [
            hit._replace(lease=lease) if planned.rule.leasing and not hit.refund else hit
            for planned in plans
            for hit in planned.hits
        ]
        return hits, lease

    def decide(self, request: Request, at_us: int) -> SimulatedDecision:
        """Decides and counts a request at that moment, in microseconds since the Unix epoch.

        Raises PolicyError if its rules never loaded and the failure policy is `error`, and
        BadRequestError if its descriptors have too many limits.
        """
        plans = self.plan(request, at_us)
        hits, lease = self.leased(plans)
        settled = self._settled_of(plans, hits, at_us)
        outcomes = iter(settled.outcomes)
        by_plan = [list(islice(outcomes, len(planned.hits))) for planned in plans]
        decision = answer(
            DecisionContext(request, plans, by_plan, settled, self._settings, lambda: at_us, lease)
        )
        if decision.code is Code.OVER_LIMIT:
            note_unkept(plans, by_plan, self.notes.setdefault)
        return _simulated(decision, plans)

    def reserve(
        self, request: Request, hits: int, name: str, ttl_us: int, at_us: int
    ) -> SimulatedReservation:
        """Holds hits beside every limit of each descriptor, or beside none, until they are settled.

        They are held for `ttl_us`, or if it is 0 for as long as the settings let. A reservation
        takes the place of one with the same name. Raises as `decide`.
        """
        plans = self.plan(request, at_us)
        rules = tuple(planned.declared for planned in plans)
        if too_large(plans, hits):
            return SimulatedReservation(False, rules, too_large=True)
        most_us = self._settings.max_reservation_ttl_us
        ttl_us, extends = min(ttl_us or most_us, most_us), name in self._reserved
        to_hold = hits_to_hold(plans, hits, _id_of(name), ttl_us, extends=extends)
        settled = self._settled_of(plans, to_hold, at_us)
        passed = settled.verdict.passes
        if passed:
            self._reserved.add(name)
        held = passed and any(map(is_held, to_hold, settled.outcomes))
        return SimulatedReservation(passed, rules, hits if held else 0)

    def settle(self, request: Request, hits: int, name: str, at_us: int) -> SimulatedReservation:
        """Ends what `reserve` holds under this name, and counts hits: once, whatever limits say.

        Raises as `decide`.
        """
        plans = self.plan(request, at_us)
        rules = tuple(planned.declared for planned in plans)
        remembered_us = self._settings.max_reservation_ttl_us + REMEMBERED_US
        to_settle = hits_to_settle(plans, hits, _id_of(name), remembered_us)
        settled = self._settled_of(plans, to_settle, at_us)
        held = held_until_settled(to_settle, settled.outcomes)
        return SimulatedReservation(True, rules, min(held, default=0))

    def _settled_of(self, plans: Sequence[Plan], hits: Sequence[Hit], at_us: int) -> Settled:
        settled = self.charge(hits, at_us) if hits else settle_without_hits(plans)
        if settled.verdict is Verdict.FAILED:
            raise PolicyError(
                "the rules of this domain have never loaded, and the failure policy is `error`"
            )
        return settled

    def _clock(self) -> int:
        return self._now_us


def _id_of(name: str) -> bytes:
    """The id of the reservation with this name."""
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[:HOLD_ID_BYTES]


def _simulated(decision: Decision, plans: Sequence[Plan]) -> SimulatedDecision:
    rules = tuple(planned.declared for planned in plans)
    deciding = max(
        range(len(plans)), key=lambda index: _weight(decision.statuses[index]), default=0
    )
    return SimulatedDecision(decision, rules, deciding)


def _weight(status: Status) -> tuple[bool, bool, int]:
    """The descriptor with the largest is the one that a decision hangs on."""
    over = status.code is Code.OVER_LIMIT
    return over, status.limit is not None, (status.reset_us or 0) if over else -status.remaining
