"""The verdict on requests of nothing but plain descriptors: one limit each, with nothing to mark.

These are nearly all requests, and a flood of denied ones, or of those that no store answers, must
not cost more than the others. So what `answer` and `tally` do for any request is done here
without a `Decision`; a test holds the two against each other, byte by byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.limiter.answer import Shown
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.tally import add
from ratelimit_service.model import FailurePolicy, Mode, Outcome
from ratelimit_service.observer import Counters

__all__ = [
    "COUNTED_OK",
    "COUNTED_OVER",
    "UNCOUNTED_OK",
    "UNCOUNTED_OVER",
    "Verdict",
    "tally_plain",
    "verdict",
]

COUNTED_OK: Final = 0
COUNTED_OVER: Final = 1
UNCOUNTED_OK: Final = 2
UNCOUNTED_OVER: Final = 3
"""What a status says: its code, and whether a count stands behind it or a failure policy."""

_ENFORCED: Final = Mode.ENFORCED
_QUOTA: Final = Mode.QUOTA
_ERROR: Final = FailurePolicy.ERROR
_CLOSED: Final = FailurePolicy.CLOSED


class Verdict(NamedTuple):
    """What a request of plain descriptors comes to.

    `statuses` says for each descriptor one of the four above. `by_policy` lists the descriptors
    that a failure policy decided, with its name.
    """

    denied: bool
    statuses: list[int]
    by_policy: tuple[tuple[int, str], ...]


def verdict(plans: Sequence[Plan], outcomes: Sequence[Outcome | None]) -> Verdict | None:
    """Judges a request; each descriptor has one hit and one outcome.

    None if it takes the long way after all: quotas, the policy `error`, and several hits of which
    some would have passed.
    """
    denied = False
    statuses: list[int] = []
    by_policy: list[tuple[int, str]] = []
    for place, (rule, _, hits) in enumerate(plans):
        outcome, mode = outcomes[place], hits[0][3]
        if mode is _QUOTA:
            return None
        if outcome is None or outcome[4]:
            policy = rule.policy
            if outcome is not None:
                over = outcome[0] and not (rule.declared is not None and rule.declared.shadow_mode)
            elif policy is _ERROR:
                return None
            else:
                over = policy is _CLOSED
            statuses.append(UNCOUNTED_OVER if over else UNCOUNTED_OK)
            by_policy.append((place, policy.value))
        else:
            over = outcome[0]
            if over:
                if outcome[1]:
                    return None
                over = not (rule.declared is not None and rule.declared.shadow_mode)
            statuses.append(COUNTED_OVER if over else COUNTED_OK)
        if over and mode is _ENFORCED:
            denied = True
    return Verdict(denied, statuses, tuple(by_policy))


def tally_plain(
    plans: Sequence[Plan],
    outcomes: Sequence[Outcome | None],
    found: Verdict,
    counters: Counters,
    times: int = 1,
) -> None:
    """Adds a request with its verdict to the rules' tallies and the process's counters.

    Or so many such requests.
    """
    counters.decisions["over_limit" if found.denied else "ok"] += times
    for place, planned in enumerate(plans):
        rule, outcome = planned[0], outcomes[place]
        if outcome is None or outcome[4]:
            counters.policy_decisions[rule.policy] += times
        if rule.tally is not None:
            shown = Shown(rule.limits[0], outcome) if outcome is not None else None
            if times > 1:
                planned = planned._replace(addend=planned.addend * times)  # noqa: PLW2901
            add(planned, shown, rule.tally)
