"""The headers of draft-ietf-httpapi-ratelimit-headers-10: `RateLimit-Policy` and `RateLimit`.

Both are lists of structured fields (RFC 9651), with an item for each limit of the request.
"""

from __future__ import annotations

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.limiter.additions.addition import DecisionContext, ResponseExtras
from ratelimit_service.limiter.additions.header_set import ChosenHeaders
from ratelimit_service.limiter.additions.names import policy_name
from ratelimit_service.limiter.statuses import ReportedLimit, remaining_of
from ratelimit_service.limiter.turns import is_soft_part
from ratelimit_service.model import SECOND_US, Calendar, Header, HeaderSet, Limit, whole_seconds

__all__ = ["IetfHeaders"]


class IetfHeaders(ChosenHeaders):
    """Shows every limit that was counted, with its policy."""

    def __init__(self) -> None:
        super().__init__(HeaderSet.IETF)

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Adds nothing if nothing was counted, but when a ban ends."""
        policies: list[str] = []
        limits: list[str] = []
        names: dict[str, int] = {}
        for planned, outcomes, _ in self._of(context):
            for compiled, outcome in zip(planned.rule.limits, outcomes, strict=True):
                if outcome is None or outcome.local or is_soft_part(planned.rule, compiled):
                    continue
                name = _unique(names, policy_name(compiled.limit))
                policies.append(f'"{name}"{_policy(compiled.limit)}')
                remaining = 0 if outcome.over else remaining_of(ReportedLimit(compiled, outcome))
                limits.append(f'"{name}";r={remaining};t={whole_seconds(outcome.reset_us)}')
        if policies:
            extras.response_headers += [
                Header("RateLimit-Policy", ", ".join(policies)),
                Header("RateLimit", ", ".join(limits)),
            ]
        if policies or self._banned(context):
            extras.retry_after(context)


def _unique(names: dict[str, int], name: str) -> str:
    """The name, with a number if there is one like it; `names` has the last number of each."""
    number = names.get(name)
    if number is None:
        names[name] = 1
        return name
    numbered = name
    while numbered in names:
        number += 1
        numbered = f"{name}-{number}"
    names[name], names[numbered] = number, 1
    return numbered


def _policy(limit: Limit) -> str:
    """The parameters of a policy. Months are of different lengths, so calendars have no window."""
    quota = f";q={limit.requests_per_unit}"
    if ALGORITHMS[limit.algorithm].leases:
        return f'{quota};qu="concurrent-requests"'
    if isinstance(limit.anchor, Calendar):
        return quota
    return f"{quota};w={limit.window_us // SECOND_US}"
