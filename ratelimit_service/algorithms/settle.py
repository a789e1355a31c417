"""The rule of passing: which hits of one request pass, and what is then counted.

Refunds run first and always. The other hits are tried in order on a scratch copy, each seeing
the earlier ones. If the request passes, the scratch copy is what is counted; if it is denied,
only hits with `count_denied` are. Several limits of one descriptor are over when one of them
is; those that pay in turn when all of them are: an id holds in one of them, and is settled there.
Grants stand before the limit that they are extra room of: the first one with room takes all of its
hits, and the limit has room then. An advance counts as many hits as may be given ahead.
`lua/settle.lua` is the same rule for Redis; one table of cases runs on both. Nothing here stores,
waits or asks for the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ratelimit_service.algorithms import holding
from ratelimit_service.model import Hit, Hold, Mode, State, Step

__all__ = ["LEAST_ADVANCE", "Changes", "denying", "descriptors_of", "settle"]

_Read = Callable[[bytes], State | None]

Changes = holding.Changes
"""What a request changes: what `holding` says of each counter, and of what is held beside it."""


def _nothing_held(_key: bytes, _hold_id: bytes) -> int:
    return 0


class _At(NamedTuple):
    """The moment of a request, and what there is then: states of counters, and what is held."""

    read: _Read
    now_us: int
    held: holding.ReadHeld


def settle(
    hits: Sequence[Hit],
    read: _Read,
    now_us: int,
    held: holding.ReadHeld = _nothing_held,
) -> tuple[list[Step], Changes, int]:
    """Settles one request; returns a step for each hit, in order, what to write, and who denies.

    Who denies is the index of the hit that denies the request, -1 if it passes.

    `read` gives a counter's state, and `held` what is held beside it. The caller makes it atomic:
    nobody else may read or write these counters between the call and the writing of the changes.
    """
    at = _At(read, now_us, held)
    hits = [*hits]
    steps: list[Step] = [_ABSENT] * len(hits)
    committed = _refund(hits, steps, at)
    scratch = committed.copy()
    descriptors = descriptors_of(hits)
    verdicts = []
    for indices in descriptors:
        mode = hits[indices[-1]].mode
        before = scratch.copy() if mode is Mode.SHADOW and len(indices) > 1 else None
        charge = _charge_first if hits[indices[0]].mode is Mode.IN_TURN else _charge_together
        charge(hits, indices, steps, scratch, at)
        over = not all(steps[index].passed for index in indices)
        if over and before is not None:
            _withhold(hits, indices, steps, before, at)
            scratch = before
        verdicts.append((mode, over))
    by = denying(verdicts)
    if by >= 0:
        by = next(index for index in descriptors[by] if not steps[index].passed)
        indices = [index for index, hit in enumerate(hits) if not hit.refund]
        _withhold(hits, indices, steps, committed, at)
        scratch = committed
    return steps, scratch, by


def denying(descriptors: Sequence[tuple[Mode, bool]]) -> int:
    """The index of the descriptor that denies the request; -1 if it passes.

    A descriptor is its mode and whether it is over. An enforced one that is over denies; quotas
    deny when all of them are over, the first of them in the name of all.
    """
    first = -1
    room = False
    for index, (mode, over) in enumerate(descriptors):
        if mode is Mode.ENFORCED and over:
            return index
        if mode is Mode.QUOTA:
            room = room or not over
            first = index if first < 0 else first
    return -1 if room else first


_ABSENT: Final = Step(True, None, 0, 0, 0, 0, False)


def descriptors_of(hits: Sequence[Hit]) -> list[list[int]]:
    """The indices of the hits that charge, those of one descriptor together."""
    groups: list[list[int]] = []
    granted = False
    for index, hit in enumerate(hits):
        if hit.refund:
            continue
        if groups and (hit.joined or granted):
            groups[-1].append(index)
        else:
            groups.append([index])
        granted = hit.mode is Mode.GRANT
    return groups


def _state(key: bytes, changes: Changes, read: _Read) -> State | None:
    change = changes.get(key)
    return read(key) if change is None else change[1].state


def _refund(hits: Sequence[Hit], steps: list[Step], at: _At) -> Changes:
    """Fills in the steps of the refunds; returns what they changed."""
    changes: Changes = {}
    for index, hit in enumerate(hits):
        if hit.refund:
            step = steps[index] = _give_back(hit, changes, at)
            if step.counted and not isinstance(hit.receipt, Hold):
                changes[hit.key] = hit, step
    return changes


def _give_back(hit: Hit, changes: Changes, at: _At) -> Step:
    """What becomes of a refund on top of `changes`."""
    state = _state(hit.key, changes, at.read)
    if hit.spec.holds or isinstance(hit.receipt, Hold):
        return holding.refund(hit, state, at.now_us, changes, at.held)
    return hit.spec.algorithm.refund(state, at.now_us, hit.addend, hit.spec, hit.lease, hit.receipt)


def _charge(hit: Hit, changes: Changes, at: _At) -> Step:
    """Charges a hit on top of `changes`, and notes there what it counted."""
    state = _state(hit.key, changes, at.read)
    if hit.spec.holds or hit.receipt is not None:
        step = holding.charge(hit, state, at.now_us, changes, at.held)
        if holding.only_holds(hit):
            return step
    else:
        addend = _given(hit, state, at.now_us) if hit.mode is Mode.ADVANCE else hit.addend
        step = hit.spec.algorithm.charge(
            state, at.now_us, addend, hit.spec, hit.count_denied, hit.lease
        )
    if step.counted:
        changes[hit.key] = hit, step
    return step


LEAST_ADVANCE: Final = 4
"""Fewer hits than this are not given ahead: they would be spent before the answer is there."""


def _given(hit: Hit, state: State | None, now_us: int) -> int:
    """How many hits of an advance are given: those asked for, as far as others find as many.

    If each process held as much, half of what is left would be out.
    """
    peek = hit.spec.algorithm.charge(state, now_us, 0, hit.spec, False, b"")
    given = min(hit.addend, peek.remaining // (2 * int.from_bytes(hit.lease, "big")))
    return given if given >= LEAST_ADVANCE else 0


def _charge_together(
    hits: list[Hit],
    indices: Sequence[int],
    steps: list[Step],
    changes: Changes,
    at: _At,
) -> None:
    """Charges the hits of one descriptor.

    A limit whose hits a grant has taken, and the grants that take none, only tell what is left.
    """
    taken = False
    for index in indices:
        hit = hits[index]
        grant = hit.mode is Mode.GRANT
        if taken:
            step = _peek(hit, changes, at)
            hits[index] = hit._replace(count_denied=False)
        else:
            step = _charge(hit, changes, at)
        if not step.passed and (taken or grant):
            steps[index] = step._replace(passed=True)
        else:
            steps[index] = step
            taken = grant
        taken = taken and grant


def _charge_first(
    hits: list[Hit],
    indices: Sequence[int],
    steps: list[Step],
    changes: Changes,
    at: _At,
) -> None:
    """Charges the first of these counters that has room for all hits. The others are looked at.

    If none has room, each step says when its counter will have. Where an id that reserves or
    settles holds already, or was settled, no other counter is charged. A settle passes only there.
    """
    addend = hits[indices[0]].addend
    # Where some of these limits give places, only the others can hold.
    holds = [hits[index].receipt for index in indices]
    hold = next((each for each in holds if isinstance(each, Hold)), None)
    payer, asked = -1, indices
    settles = hold is not None and hold.settles
    if hold is not None:
        known = [index for index in indices if holding.knows(hits[index], changes, at.held)]
        asked = known or indices
    for index in asked:
        step = steps[index] = _charge(hits[index]._replace(addend=addend), changes, at)
        # To settle by 0 hits counts nothing, but the id is known from then on.
        settled = settles and holding.knows(hits[index], changes, at.held)
        if step.passed or step.counted or settled:
            payer = index
            break
    passed = payer >= 0 and not settles
    later_us = steps[asked[0]].retry_us + 1  # who is not asked has no room sooner
    for index in indices:
        if index != payer and (payer >= 0 or index not in asked):
            hit = hits[index]
            look = _give_back(Hit(hit.key, hit.spec, 0, refund=True), changes, at)
            steps[index] = look._replace(passed=passed, retry_us=later_us)


def _peek(hit: Hit, changes: Changes, at: _At) -> Step:
    """What is left on a hit's counter."""
    state = _state(hit.key, changes, at.read)
    if hit.spec.holds:
        return holding.peek(hit, state, at.now_us, changes, at.held)
    return hit.spec.algorithm.charge(state, at.now_us, 0, hit.spec, False, b"")


def _withhold(
    hits: Sequence[Hit],
    indices: Sequence[int],
    steps: list[Step],
    changes: Changes,
    at: _At,
) -> None:
    """Counts of these hits only what is counted in any case, and what is left with that."""
    for index in indices:
        hit = hits[index]
        counted = _charge(hit, changes, at).counted if hit.count_denied else 0
        if steps[index].counted != counted:
            steps[index] = steps[index]._replace(counted=counted)
    for index in indices:
        if steps[index].passed:
            peek = _peek(hits[index], changes, at)
            steps[index] = steps[index]._replace(remaining=peek.remaining, reset_us=peek.reset_us)
