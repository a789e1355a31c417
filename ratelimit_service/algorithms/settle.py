"""The rule of passing: which hits of one request pass, and what is then counted.

Refunds run first and always. The other hits are tried in order on a scratch copy, each seeing
the earlier ones. If the request passes, the scratch copy is what is counted; if it is denied,
only hits with `count_denied` are. `lua/settle.lua` is the same rule for Redis; one table of
cases runs on both. Nothing here stores, waits or asks for the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ratelimit_service.algorithms import fixed_window
from ratelimit_service.algorithms.step import Algorithm, Step
from ratelimit_service.model import Hit, Mode, Outcome

__all__ = ["ALGORITHMS", "Changes", "denies", "settle"]

ALGORITHMS: dict[str, Algorithm] = {"fixed_window": fixed_window}
"""Every algorithm by the name that rules, Lua files, metrics and docs use."""

_Read = Callable[[bytes], int | None]

Changes = dict[bytes, tuple[Hit, Step]]
"""For each counter that changed: the last hit on it and the step whose state is to be kept."""


def settle(hits: Sequence[Hit], read: _Read, now_us: int) -> tuple[list[Outcome], Changes]:
    """Settles one request; returns an outcome for each hit, in order, and what to write.

    `read` gives a counter's state. The caller makes it atomic: nobody else may read or write
    these counters between the call and the writing of the changes.
    """
    steps: list[Step] = [_ABSENT] * len(hits)
    committed = _refund(hits, steps, read, now_us)
    scratch = committed.copy()
    for index, hit in enumerate(hits):
        if not hit.refund:
            steps[index] = _charge(hit, scratch, read, now_us)
    if denies(
        (hit.mode, not steps[index].passed) for index, hit in enumerate(hits) if not hit.refund
    ):
        _deny(hits, steps, committed, read, now_us)
        scratch = committed
    return [Outcome(not s.passed, s.left, s.reset_us, s.counted) for s in steps], scratch


def denies(hits: Iterable[tuple[Mode, bool]]) -> bool:
    """Whether a request is denied, given each hit's mode and whether it is over.

    An enforced hit that is over denies; quota hits deny when all of them are over.
    """
    quotas = quotas_over = 0
    for mode, over in hits:
        if mode is Mode.ENFORCED and over:
            return True
        if mode is Mode.QUOTA:
            quotas += 1
            quotas_over += over
    return 0 < quotas == quotas_over


_ABSENT = Step(True, None, 0, 0, 0)


def _state(key: bytes, changes: Changes, read: _Read) -> int | None:
    change = changes.get(key)
    return read(key) if change is None else change[1].state


def _refund(hits: Sequence[Hit], steps: list[Step], read: _Read, now_us: int) -> Changes:
    """Fills in the steps of the refunds; returns what they changed."""
    changes: Changes = {}
    for index, hit in enumerate(hits):
        if hit.refund:
            state = _state(hit.key, changes, read)
            steps[index] = step = ALGORITHMS[hit.algorithm].refund(
                state, now_us, hit.addend, hit.limit, hit.window_us
            )
            if step.counted:
                changes[hit.key] = hit, step
    return changes


def _charge(hit: Hit, changes: Changes, read: _Read, now_us: int) -> Step:
    """Charges a hit on top of `changes`, and notes there what it counted."""
    step = ALGORITHMS[hit.algorithm].charge(
        _state(hit.key, changes, read),
        now_us,
        hit.addend,
        hit.limit,
        hit.window_us,
        hit.count_denied,
    )
    if step.counted:
        changes[hit.key] = hit, step
    return step


def _deny(
    hits: Sequence[Hit], steps: list[Step], changes: Changes, read: _Read, now_us: int
) -> None:
    """Counts what is counted although the request is denied, and what is left with that."""
    for index, hit in enumerate(hits):
        if not hit.refund:
            counted = _charge(hit, changes, read, now_us).counted if hit.count_denied else 0
            steps[index] = steps[index]._replace(counted=counted)
    for index, hit in enumerate(hits):
        if steps[index].passed:
            peek = ALGORITHMS[hit.algorithm].charge(
                _state(hit.key, changes, read), now_us, 0, hit.limit, hit.window_us, False
            )
            steps[index] = steps[index]._replace(left=peek.left)
