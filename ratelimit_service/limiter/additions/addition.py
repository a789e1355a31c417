"""What an answer can say beside its statuses: headers, and metadata.

An addition is one object in the table `ADDITIONS`. It says of which rules it may speak, which is
worked out when these are compiled; of others it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ratelimit_service.limiter.compiled import CompiledLimit, Plan
from ratelimit_service.limiter.statuses import reported_limit, statuses_of
from ratelimit_service.limiter.turns import paid_by
from ratelimit_service.model import (
    Code,
    Header,
    Hit,
    Limit,
    Outcome,
    Request,
    Status,
    whole_seconds,
)
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Granted, Outcomes, Settled

__all__ = ["Addition", "CountedAddition", "DecisionContext", "ResponseExtras"]


@dataclass(slots=True)
class DecisionContext:
    """What is known of a request that passes, or is denied.

    `outcomes` has one for each hit of each plan; None where there is none. `request` is there if an
    addition needs it. `clock` is Unix time in microseconds. `lease` is the id of the leases that
    the request takes, empty if it takes none. `ban_us` is how long a banned request is to wait,
    None if its bans have no end.
    """

    request: Request | None
    plans: Sequence[Plan]
    outcomes: Sequence[Outcomes]
    settled: Settled
    settings: Settings
    clock: Callable[[], int]
    lease: bytes = b""
    ban_us: int | None = None
    _statuses: tuple[Status, ...] = field(default=(), init=False)

    @property
    def passes(self) -> bool:
        """Whether the request is admitted."""
        return self.settled.verdict.passes

    def statuses(self) -> tuple[Status, ...]:
        """What the answer says of each descriptor."""
        if not self._statuses:
            pairs = zip(self.plans, self.outcomes, strict=True)
            reported = [reported_limit(planned, several) for planned, several in pairs]
            self._statuses = statuses_of(self.plans, reported, self.ban_us)
        return self._statuses

    def passed(self) -> list[tuple[CompiledLimit, Hit, Outcome]]:
        """The hits that had room, in a request that passes; none that are given back.

        Of limits that pay in turn it is the one that paid, if any was charged.

        A hit that a grant has given is the one on the grant's counter.
        """
        passed: list[tuple[CompiledLimit, Hit, Outcome]] = []
        if not self.passes:
            return passed
        settled = self.settled
        charged = settled.hits if isinstance(settled, Granted) else ()
        start = 0
        for planned, outcomes in zip(self.plans, self.outcomes, strict=True):
            hits = charged[start : start + len(planned.hits)] if charged else planned.hits
            start += len(planned.hits)
            if planned.refund:
                continue
            paying = paid_by(planned, outcomes)
            for limit, hit, outcome in zip(planned.rule.limits, hits, outcomes, strict=True):
                if planned.rule.in_turn and limit is not paying:
                    continue
                if outcome is not None and not outcome.over:
                    passed.append((limit, hit, outcome))
        return passed


class ResponseExtras:
    """What an answer says beside its statuses; each addition adds to it in its turn."""

    __slots__ = ("_waits", "body", "holds_us", "metadata", "request_headers", "response_headers")

    def __init__(self) -> None:
        self.response_headers: list[Header] = []
        self.request_headers: list[Header] = []
        self.body = b""
        """Of a denial; Envoy answers its caller with it."""
        self.metadata: dict[str, object] = {}
        self.holds_us = 0
        """How long the same request is denied, for clients that remember that; 0 says nothing."""
        self._waits = False

    def retry_after(self, context: DecisionContext) -> None:
        """Says when a denied caller may come back; once, however many ask for it.

        That is when all limits that deny have room again, as Envoy's own `Retry-After` has it, or
        when the bans are over.
        """
        resets_us = [
            status.reset_us
            for status in context.statuses()
            if status.code is Code.OVER_LIMIT and status.reset_us is not None
        ]
        if resets_us and not context.passes and not self._waits:
            self._waits = True
            wait = str(whole_seconds(max(resets_us)))
            self.response_headers.append(Header("Retry-After", wait))


class Addition(Protocol):
    """One thing that answers can say. Has no state."""

    needs_request: bool
    """Whether it reads the request itself, which then cannot be planned from its bytes alone."""
    covers_bans: bool
    """Whether it may have something to say of a ban, too. Then it is asked of every ban, and finds
    out itself what the ban's rule and the settings chose."""

    def enabled(self, settings: Settings) -> bool:
        """Whether the settings ask for it."""

    def applies_to(self, settings: Settings, rule: Rule | None, limits: Sequence[Limit]) -> bool:
        """Whether it may have something to say of a rule with these limits.

        There are none where no rule is met, or an unlimited one. A limit that a caller brings has
        no rule.
        """

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Adds what it has to say of a request, if anything."""


class CountedAddition:
    """The base of additions that speak of what is counted, whatever the settings are."""

    needs_request = False
    covers_bans = False

    def enabled(self, settings: Settings) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def applies_to(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of rules with limits."""
        return any(self.applies_to_limit(limit) for limit in limits)

    def applies_to_limit(self, limit: Limit) -> bool:  # noqa: ARG002
        """Whether it may have something to say of a limit."""
        return True
