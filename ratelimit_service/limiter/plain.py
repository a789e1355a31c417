"""What requests are told of nothing but plain descriptors: one limit each, with nothing to mark.

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
from ratelimit_service.model import FailurePolicy
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Outcomes, Settled

__all__ = [
    "COUNTED_OK",
    "COUNTED_OVER",
    "UNCOUNTED_OK",
    "UNCOUNTED_OVER",
    "Plain",
    "plain",
    "tally_plain",
]

COUNTED_OK: Final = 0
COUNTED_OVER: Final = 1
UNCOUNTED_OK: Final = 2
UNCOUNTED_OVER: Final = 3
"""What a status says: its code, and whether a count stands behind it or a failure policy."""

_CLOSED: Final = FailurePolicy.CLOSED


class Plain(NamedTuple):
    """What a request of plain descriptors is told.

    `statuses` says for each descriptor one of the four above. `by_policy` lists the descriptors
    that a failure policy decided, with its name.
    """

    statuses: list[int]
    by_policy: tuple[tuple[int, str], ...]


def plain(plans: Sequence[Plan], outcomes: Outcomes) -> Plain | None:
    """Renders a request; each descriptor has one hit and one outcome.

    None if it takes the long way after all, since of several hits some would have passed.
    """
    statuses: list[int] = []
    by_policy: list[tuple[int, str]] = []
    for place, planned in enumerate(plans):
        rule, outcome = planned[0], outcomes[place]
        if outcome is None:
            policy = rule.policy
            statuses.append(UNCOUNTED_OVER if policy is _CLOSED else UNCOUNTED_OK)
            by_policy.append((place, policy.value))
            continue
        over = outcome[0] and not (rule.declared is not None and rule.declared.shadow_mode)
        if outcome[4]:
            statuses.append(UNCOUNTED_OVER if over else UNCOUNTED_OK)
            by_policy.append((place, rule.policy.value))
        elif outcome[0] and outcome[1]:
            return None
        else:
            statuses.append(COUNTED_OVER if over else COUNTED_OK)
    return Plain(statuses, tuple(by_policy))


def tally_plain(
    plans: Sequence[Plan],
    settled: Settled,
    counters: Counters,
    times: int = 1,
) -> None:
    """Adds a request to the rules' tallies and the process's counters.

    Or so many such requests.
    """
    outcomes, verdict, _ = settled
    counters.decisions["ok" if verdict.passes else "over_limit"] += times
    for place, planned in enumerate(plans):
        rule, outcome = planned[0], outcomes[place]
        if outcome is None or outcome[4]:
            counters.policy_decisions[rule.policy] += times
        if rule.tally is not None:
            shown = Shown(rule.limits[0], outcome) if outcome is not None else None
            if times > 1:
                planned = planned._replace(addend=planned.addend * times)  # noqa: PLW2901
            add(planned, shown, rule.tally)
