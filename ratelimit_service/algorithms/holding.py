"""What is held beside a counter: hits that a request has reserved, and will settle.

What is held never counts. A limit with reservations has room for hits while counted + held + hits
is within it, whatever its algorithm. To settle ends the hold and counts what was used, as of now.
Two things are kept of a counter: the sum of its holds, and each hold's hits by its id. Their names
stand among those of counters in `Changes`, so that a request is tried and settled as ever.
`lua/holding.lua` is the same arithmetic. Nothing is stored here and no time is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ratelimit_service.model import SECOND_US, CounterSpec, Hit, Hold, Mode, State, Step

__all__ = [
    "KEEPS_END",
    "SETTLED",
    "Changes",
    "ReadHeld",
    "charge",
    "held_by",
    "knows",
    "only_holds",
    "peek",
    "refund",
]

ReadHeld = Callable[[bytes, bytes], int]
"""The hits that a counter's key and an id hold, 0 for none; without an id all hits that are held.
`SETTLED` if the id was settled."""

Changes = dict[bytes, tuple[Hit, Step]]
"""For each counter that changed: the last hit on it and the step whose state is to be kept. Names
that begin with a zero byte are of what is held: `held_by` tells which."""

SETTLED: Final = -1
"""Stands for the hits of an id that was settled. It is remembered, so that it counts once."""

KEEPS_END: Final = -1
"""In the place of a hold's life: it ends when it would have ended."""

_MOST_HOLDS: Final = 10_000
"""A hold counts as so small a part of its limit at least: so a counter has no more of them."""

_TOTAL: Final = b"\0h"
_ONE: Final = b"\0i"


def only_holds(hit: Hit) -> bool:
    """Whether a hit leaves its counter as it is, whatever it holds beside it."""
    return isinstance(hit.receipt, Hold) and not hit.receipt.settles


def held_by(name: bytes, key: bytes) -> bytes | None:
    """By which id hits are held under a name of a counter's changes; None for the counter itself.

    It is empty for the sum of all that is held.
    """
    if name == key:
        return None
    return name[len(_ONE) : -len(key)] if name.startswith(_ONE) else b""


def knows(hit: Hit, changes: Changes, held: ReadHeld) -> bool:
    """Whether the hit's id holds beside its counter, or was settled there."""
    return isinstance(hit.receipt, Hold) and _held(hit.key, hit.lease, changes, held) != 0


def charge(hit: Hit, state: State | None, now_us: int, changes: Changes, held: ReadHeld) -> Step:
    """What becomes of a hit beside what is held; what it holds or settles is noted in `changes`."""
    hold = hit.receipt
    total = _held(hit.key, b"", changes, held)
    if not isinstance(hold, Hold):
        return _beside(hit, state, now_us, hit.addend, total)
    own = _held(hit.key, hit.lease, changes, held)
    if hold.settles:
        return _settle(hit, hold, state, now_us, changes, (total, own))
    hits, spec = hit.addend, hit.spec
    holds = bool(hits and spec.holds and hold.ttl_us)
    if holds:
        hits = max(hits, -(-spec.limit // _MOST_HOLDS))
    beside = total - max(0, own) if spec.holds else 0
    step = _together(hit, state, now_us, hits, beside, False)
    passed = step.passed and not (holds and own == SETTLED)
    more = 0
    if passed and holds:
        life_us = hold.ttl_us
        if hold.charged:
            life_us += _counts_for(hits, spec, now_us + life_us)
        _note(hit, hits, life_us, beside + hits, changes)
        more = max(0, hits - max(0, own))
    return step._replace(passed=passed, state=state, counted=more)


def _counts_for(hits: int, spec: CounterSpec, now_us: int) -> int:
    """For how long these hits count, had they been charged at that moment."""
    charge = spec.algorithm.charge
    state = charge(None, now_us, hits, spec, True, b"").state
    return charge(state, now_us, spec.limit, spec, False, b"").retry_us  # until all fit again


def refund(hit: Hit, state: State | None, now_us: int, changes: Changes, held: ReadHeld) -> Step:
    """Gives hits back: those of the counter, or with a hold some that it holds."""
    hold, algorithm = hit.receipt, hit.spec.algorithm
    total = _held(hit.key, b"", changes, held)
    if not isinstance(hold, Hold):
        step = algorithm.refund(state, now_us, hit.addend, hit.spec, hit.lease, hold)
        return step._replace(remaining=max(0, step.remaining - total))
    own = _held(hit.key, hit.lease, changes, held)
    given_back = min(max(0, own), hit.addend)
    if given_back:
        total -= given_back
        _note(hit, own - given_back, KEEPS_END, total, changes)
    step = algorithm.refund(state, now_us, 0, hit.spec, b"", None)
    remaining = max(0, step.remaining - total)
    return Step(True, state, remaining, step.reset_us, 0, given_back, step.damaged)


def peek(hit: Hit, state: State | None, now_us: int, changes: Changes, held: ReadHeld) -> Step:
    """What is left on the counter of a hit, beside what is held."""
    total = _held(hit.key, b"", changes, held) if hit.spec.holds else 0
    return _beside(hit._replace(count_denied=False, lease=b""), state, now_us, 0, total)


def _beside(hit: Hit, state: State | None, now_us: int, addend: int, held: int) -> Step:
    """Charges hits if they fit beside what is held, or in any case if they count when denied."""
    algorithm, spec, force = hit.spec.algorithm, hit.spec, hit.count_denied
    if not held:
        return algorithm.charge(state, now_us, addend, spec, force, hit.lease)
    both = _together(hit, state, now_us, addend, held, force)
    if not both.passed and not both.counted:
        return both._replace(state=state)
    step = algorithm.charge(state, now_us, addend, spec, force, hit.lease)
    return step._replace(passed=both.passed, remaining=both.remaining, retry_us=both.retry_us)


def _together(
    hit: Hit, state: State | None, now_us: int, hits: int, held: int, force: bool
) -> Step:
    """What becomes of hits together with those that are held beside them.

    Without room, what remains is what is left beside those. They can go at any moment: so the wait
    is no longer than without them, or a second if that is more.
    """
    charge, spec = hit.spec.algorithm.charge, hit.spec
    both = charge(state, now_us, held + hits, spec, force, hit.lease)
    if both.passed:
        return both
    peek = charge(state, now_us, 0, spec, False, b"")
    alone_us = charge(state, now_us, hits, spec, False, b"").retry_us
    return both._replace(
        remaining=max(0, peek.remaining - held) if peek.passed else 0,
        retry_us=min(both.retry_us, max(alone_us, SECOND_US)),
    )


def _settle(
    hit: Hit,
    hold: Hold,
    state: State | None,
    now_us: int,
    changes: Changes,
    amounts: tuple[int, int],
) -> Step:
    """Ends a hold, and counts what was used; of an id that was settled nothing more.

    The step has passed if there was a hold. What remains is then what it has held. What counts
    hits beyond its limit counts all of them; a bucket is full at the most. Of limits that pay in
    turn one without the hold counts only what it has room for.
    """
    (total, own), algorithm = amounts, hit.spec.algorithm
    beside = total if hit.spec.holds else 0
    if own == SETTLED or (
        hit.mode is Mode.IN_TURN
        and not own
        and not _beside(hit, state, now_us, hit.addend, beside).passed
    ):
        return Step(False, state, 0, 0, 0, 0, False)
    step = algorithm.charge(state, now_us, hit.addend, hit.spec, True, b"")
    if not step.counted and step.remaining and not step.passed:
        step = algorithm.charge(state, now_us, step.remaining, hit.spec, False, b"")
    if hold.ttl_us:
        _note(hit, SETTLED, hold.ttl_us, total - own, changes)
    held = min(own, hit.spec.limit)
    return Step(own > 0, step.state, held, step.reset_us, 0, step.counted, step.damaged)


def _held(key: bytes, hold_id: bytes, changes: Changes, held: ReadHeld) -> int:
    change = changes.get(_ONE + hold_id + key if hold_id else _TOTAL + key)
    if change is None:
        return held(key, hold_id)
    hits = change[1].state
    assert isinstance(hits, int)  # noqa: S101 -- as `_note` has written it
    return hits


def _note(hit: Hit, hits: int, life_us: int, total: int, changes: Changes) -> None:
    """Notes what an id holds from now on, for how long, and what is held with that."""
    changes[_ONE + hit.lease + hit.key] = hit, Step(True, hits, 0, life_us, 0, 0, False)
    changes[_TOTAL + hit.key] = hit, Step(True, total, 0, 0, 0, 0, False)
