"""Reservations: hits that are held before a stream begins, and settled when it has ended.

Which limits a request meets is planned as for any request, so a settle finds what was held by the
descriptors alone. What must not live here: how hits are held (`stores`), and messages (`wire`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import urandom
from typing import Final, NamedTuple

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.eventloop.clock import Clock, elapsed_us, now_us
from ratelimit_service.limiter import Plan
from ratelimit_service.limiter.reserving import (
    HOLD_ID_BYTES,
    REMEMBERED_US,
    gave_place,
    held_until_settled,
    hits_to_hold,
    hits_to_settle,
    is_held,
    too_large,
)
from ratelimit_service.limiter.turns import without_grants
from ratelimit_service.model import Hit, Hold, Outcome
from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.model.refusal import Answer, Refusal
from ratelimit_service.observability.stats import Stats, Tally
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.decision_events import DecisionEvents
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.overrides.in_force import OverridesInForce
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.service.planning import Planning
from ratelimit_service.service.records import DecidedBatch, Reserved, record, refused_by
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Settled, Store, Verdict
from ratelimit_service.wire import reservations as wire

__all__ = ["Reservations"]

_LOGGED_DIGITS: Final = 8
"""So many of an id are told to others than who holds it."""

_ATTEMPTS: Final = 4
_AGAIN_SECONDS: Final = 0.05
"""A settle is sent so often at most to homes that do not answer, with a pause that doubles."""


class _Came(NamedTuple):
    """When a call came, and who has made it, if somebody has looked."""

    at_us: int
    origin: CallOrigin | None


@dataclass(frozen=True)
class _Planned:
    """A request with its overrides."""

    plans: Sequence[Plan]
    settled: Settled
    """What it comes to if it has no hits."""
    ban: PlannedRequest | None
    """What a ban of an operator makes of it: it denies what is reserved, and stops no settle."""


class Reservations:
    """Reserves and settles, one request at a time."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        store: Store,
        settings: Settings,
        stats: Stats,
        planning: Planning,
        overrides: OverridesInForce,
    ) -> None:
        """Plans and overrides are those of the service."""
        self.events: DecisionEvents | None = None
        """Who hears of what is reserved and settled, if anybody does."""
        self.clock: Clock = now_us
        """What time it is for rules and overrides."""
        self._snapshot = snapshot
        self._store = store
        self._settings = settings
        self._stats = stats
        self._planning = planning
        self._overrides = overrides
        self._faults = Faults(stats)

    async def call(
        self,
        method: str,
        message: bytes,
        deadline_us: int = NEVER,
        origin: CallOrigin | None = None,
    ) -> Answer:
        """Answers a call of one of `RESERVING_METHODS`, made by `origin`. Raises nothing.

        No room is looked for after the deadline. What was used is counted in any case.
        """
        came = _Came(elapsed_us(), origin)
        if self._settings.no_reservations:
            return Refusal(
                StatusCode.UNIMPLEMENTED,
                "reservations are not taken: this service has --no-reservations",
            )
        try:
            if method == "Reserve":
                return await self._reserve(wire.read_reserve(message), deadline_us, came)
            if method == "Commit":
                return await self._commit(wire.read_commit(message), came)
            asked = wire.read_asked(message)
            if method == "Report":
                planned = self._plan(asked)
                hits = hits_to_settle(planned.plans, asked.hits, urandom(HOLD_ID_BYTES), 0)
                outcomes = await self._settle(hits)
                _tally_settled(planned.plans, hits, outcomes)
                answer = wire.encode_code(True)
                settled = Settled(outcomes, Verdict.ADMITTED)
                self._tell(asked, planned, settled, answer, Reserved(True, "", None), came)
                return answer
            return await self._check(asked, deadline_us)
        except _RefusedError as error:
            return error.answer
        except BadRequestError as error:
            self._stats.refusals[error.reason] += 1
            return Refusal(error.code, str(error))
        except Exception as error:
            return self._faults.request(error)

    async def _reserve(self, asked: wire.Reserving, deadline_us: int, came: _Came) -> bytes:
        most_us = self._settings.max_reservation_ttl_us
        if asked.id and _id_of(asked.id) is None:
            raise BadRequestError(
                "reservation_id", "reservation_id is none: send one that Reserve has answered"
            )
        known = _id_of(asked.id)
        hold_id = urandom(HOLD_ID_BYTES) if known is None else known
        planned = self._plan(asked)
        tally = self._stats.reservations
        ttl_us = min(asked.ttl_us or most_us, most_us)
        reserved = Reserved(False, asked.id[:_LOGGED_DIGITS], asked.hits, ttl_us)
        denied = wire.encode_reserved(False)
        if planned.ban is None and too_large(planned.plans, asked.hits or 0):
            tally["too_large"] += 1
            reserved = reserved._replace(too_large=True)
            denied = wire.encode_reserved(False, too_large=True)
            self._tell(asked, planned, Settled([], Verdict.DENIED), denied, reserved, came)
            return denied
        hits = hits_to_hold(planned.plans, asked.hits, hold_id, ttl_us, extends=known is not None)
        settled = await self._charge(planned, hits, deadline_us)
        if not settled.verdict.passes:
            tally["denied"] += 1
            _tally_denied(planned.plans, settled.outcomes, asked.hits or 0)
            self._tell(asked, planned, settled, denied, reserved, came)
            return denied
        reservation_id = hold_id.hex()
        if hits and all(outcome is None for outcome in settled.outcomes):
            reservation_id = ""
            tally["by_policy"] += 1
        else:
            tally["extended" if asked.id else "held"] += 1
            _tally_held(planned.plans, hits, settled.outcomes)
        held = any(map(is_held, hits, settled.outcomes))
        answer = wire.encode_reserved(True, reservation_id, held=held)
        reserved = reserved._replace(id=reservation_id[:_LOGGED_DIGITS])
        self._tell(asked, planned, settled, answer, reserved, came)
        return answer

    async def _commit(self, asked: wire.Reserving, came: _Came) -> bytes:
        hold_id = _id_of(asked.id)
        tally = self._stats.reservations
        planned = self._plan(asked)
        remembered_us = self._settings.max_reservation_ttl_us + REMEMBERED_US
        if hold_id is None:  # nobody can have reserved by this
            hits = hits_to_settle(planned.plans, asked.hits, urandom(HOLD_ID_BYTES), 0)
        else:
            hits = hits_to_settle(planned.plans, asked.hits, hold_id, remembered_us)
        outcomes = await self._settle(hits)
        _tally_settled(planned.plans, hits, outcomes)
        held = held_until_settled(hits, outcomes)
        released = bool(held) or any(map(gave_place, hits, outcomes))
        tally["unknown" if hold_id is None else "settled" if released else "late"] += 1
        if any((asked.hits or 0) > hits_held for hits_held in held):
            tally["overrun"] += 1
        answer = wire.encode_committed(released)
        told = "" if hold_id is None else asked.id[:_LOGGED_DIGITS]
        reserved = Reserved(True, told, asked.hits, held=min(held, default=0))
        settled = Settled(outcomes, Verdict.ADMITTED)
        self._tell(asked, planned, settled, answer, reserved, came)
        return answer

    def _tell(
        self,
        asked: wire.Reserving,
        planned: _Planned,
        settled: Settled,
        answer: Answer,
        reserved: Reserved,
        came: _Came,
    ) -> None:
        """Tells whoever listens what was reserved or settled."""
        if self.events is None or not self.events.listeners:
            return
        request = PlannedRequest(list(planned.plans), (), None, 0, None, False, planned.settled)
        if planned.ban is not None and not reserved.settles:
            request = planned.ban
        took_us = elapsed_us() - came.at_us
        told = record(wire.logged(asked), request, settled, answer, came.origin, took_us)
        if reserved.too_large and (found := too_large(planned.plans, asked.hits or 0)):
            told = refused_by(told, planned.plans, *found)
        if reserved.settles:
            told = told._replace(outcome=None)  # it says what was held, not what is left
        self.events.tell(DecidedBatch.of([told._replace(reserved=reserved)]))

    async def _check(self, asked: wire.Reserving, deadline_us: int) -> bytes:
        planned = self._plan(asked)
        hits = hits_to_hold(planned.plans, asked.hits, urandom(HOLD_ID_BYTES), 0)
        settled = await self._charge(planned, hits, deadline_us)
        return wire.encode_code(settled.verdict.passes)

    def _plan(self, asked: wire.Reserving) -> _Planned:
        """The limits that a request meets now. Raises `_RefusedError` if it is answered without."""
        snapshot, now = self._snapshot(), self.clock()
        if snapshot.times is not None:
            snapshot = at_moment(snapshot, now)
        planning, body = self._planning, asked.body
        known = planning.requests.get(body, snapshot.number)
        planned: list[PlannedRequest | Answer] = [known or planning.ask(body, snapshot)]
        (first,) = planned
        if not isinstance(first, PlannedRequest):
            raise _RefusedError(first)
        by_rules = first
        if self._overrides.active:
            found = self._overrides.apply([body], planned, snapshot, now)
            (one,) = planned
            overridden = found[0] if found else None
            if isinstance(one, PlannedRequest):
                if overridden is not None and overridden.banned:
                    plans = self._overrides.without_bans(body, by_rules.plans, now)
                    return _Planned([*map(without_grants, plans)], first.settled, ban=one)
                first = one
        return _Planned([*map(without_grants, first.plans)], first.settled, ban=None)

    async def _charge(self, planned: _Planned, hits: Sequence[Hit], deadline_us: int) -> Settled:
        """What becomes of a request with these hits. Raises `_RefusedError` if it has no answer."""
        if planned.ban is not None:
            return Settled([], Verdict.DENIED)
        settled = planned.settled
        if hits:
            charged: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
            self._store.charge([hits], charged.set_result, deadline_us=deadline_us)
            (settled,) = await charged
        if settled.verdict in (Verdict.WITHIN, Verdict.ADMITTED, Verdict.DENIED):
            return settled
        raise _RefusedError(
            Refusal(StatusCode.UNAVAILABLE, "the store gave no answer in time: try again")
        )

    async def _settle(self, hits: Sequence[Hit]) -> list[Outcome | None]:
        """Settles hits, each once, also where an answer got lost; None where there was none."""
        found: list[Outcome | None] = [None] * len(hits)
        pause = _AGAIN_SECONDS
        for attempt in range(_ATTEMPTS):
            missing = [
                index
                for index, outcome in enumerate(found)
                if outcome is None and (not attempt or _counts_once(hits[index]))
            ]
            if not missing:
                break
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            charged: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
            self._store.charge([[hits[index] for index in missing]], charged.set_result)
            (settled,) = await charged
            for index, outcome in zip(missing, settled.outcomes, strict=False):
                found[index] = outcome
        return found


class _RefusedError(Exception):
    """A request that is answered without being held or settled."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _by_plan(
    plans: Sequence[Plan], hits: Sequence[Hit], outcomes: Sequence[Outcome | None]
) -> Iterator[tuple[Tally, list[tuple[Hit, Outcome]]]]:
    """Of each rule that tallies, what became of its hits; not of places, which are no hits."""
    in_order = zip(hits, outcomes, strict=True)
    for plan in plans:
        found = [
            (hit, outcome)
            for hit, outcome in islice(in_order, len(plan.hits))
            if outcome is not None and not hit.spec.algorithm.leases
        ]
        if plan.node.tally is not None and found:
            yield plan.node.tally, found


def _tally_held(
    plans: Sequence[Plan], hits: Sequence[Hit], outcomes: Sequence[Outcome | None]
) -> None:
    """Adds what is held from now on to the rules' metrics; of several limits the most."""
    for tally, found in _by_plan(plans, hits, outcomes):
        tally.held += max(outcome.charged for _, outcome in found)


def _tally_settled(
    plans: Sequence[Plan], hits: Sequence[Hit], outcomes: Sequence[Outcome | None]
) -> None:
    """Adds what was used to the rules' metrics: once, as it is counted."""
    for tally, found in _by_plan(plans, hits, outcomes):
        charged = max(outcome.charged for _, outcome in found)
        tally.hits += charged
        tally.within += charged
        held = max(held_until_settled(*zip(*found, strict=True)), default=0)
        if held:
            used = max(hit.addend for hit, _ in found)
            tally.settled += min(used, held)
            tally.released += max(0, held - used)
            tally.overrun += max(0, used - held)


def _tally_denied(plans: Sequence[Plan], outcomes: Sequence[Outcome | None], number: int) -> None:
    """Adds what was denied to the metrics of those rules that had no room."""
    in_order = iter(outcomes)
    for plan in plans:
        several = [next(in_order, None) for _ in plan.hits]
        is_over = any(outcome is not None and outcome.over for outcome in several)
        if plan.node.tally is not None and is_over:
            plan.node.tally.hits += number
            plan.node.tally.over += number


def _id_of(text: str) -> bytes | None:
    """The bytes of an id; None if it is none of ours."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == HOLD_ID_BYTES else None


def _counts_once(hit: Hit) -> bool:
    """Whether a hit that was settled can be sent again: an id is remembered, or gone."""
    hold = hit.receipt
    return hit.refund or (isinstance(hold, Hold) and hold.ttl_us > 0)
