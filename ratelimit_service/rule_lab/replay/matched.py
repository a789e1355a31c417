"""A request's way through rules, found once: what it meets, and what it is charged.

What must not live here: what comes of it (`trace`, `use`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter import Plan
from ratelimit_service.model import Hit, Mode, Request
from ratelimit_service.rule_lab.replay.sketches import hash_of
from ratelimit_service.rule_lab.replay.use import Caller, RuleUse
from ratelimit_service.rules.paths import path_text

__all__ = ["Matched", "PreparedRequest", "alone_of"]

_MOST_NAME = 200
"""Characters that are shown of a caller."""


class Matched:
    """One descriptor of a request, and the use of the rule that it meets."""

    __slots__ = (
        "_name",
        "_name_hash",
        "addend",
        "caller",
        "enforced",
        "entries",
        "key",
        "refund",
        "start",
        "template_hits",
        "times",
        "use",
    )

    def __init__(
        self,
        use: RuleUse,
        planned: Plan,
        start: int,
        entries: Sequence[tuple[str, str]],
        key: bytes = b"",
    ) -> None:
        """`entries` are those that name the caller; its hits begin at `start` of the request's.

        With a `key` the plan is one of its kind: its own only hit differs in this key.
        """
        hits = planned.hits
        self.use = use
        self.template_hits = hits
        """Its hits, but for the key of its own."""
        self.addend = planned.addend
        self.refund = planned.refund
        self.start = start
        self.enforced = not hits or hits[-1].mode is not Mode.SHADOW
        self.entries = entries
        self._name = ""
        self._name_hash = -1
        self.times: list[int] = []
        """When it came since its caller was last followed."""
        self.key = key or (hits[0].key if hits else self.name.encode("utf-8", "replace"))
        self.caller = self._caller(self.key)
        """Who is looked at; None if it is not in the sample, or no more."""

    @property
    def hits(self) -> Sequence[Hit]:
        """What it is charged. Most requests are charged without these."""
        template_hits = self.template_hits
        if not template_hits or template_hits[0].key == self.key:
            return template_hits
        return (template_hits[0]._replace(key=self.key),)

    @property
    def name(self) -> str:
        """The caller as people know it: what its counter counts."""
        if not self._name:
            name = path_text(self.entries)
            self._name = name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"
        return self._name

    @property
    def name_hash(self) -> int:
        """Where its name stands among all names."""
        if self._name_hash < 0:
            self._name_hash = hash_of(self.name.encode("utf-8", "replace"))
        return self._name_hash

    def _caller(self, key: bytes) -> Caller | None:
        if self.use.brief:
            return None
        key_hash, callers = hash_of(key), self.use.callers
        if not callers.wants(key_hash):
            return None
        return callers.get(key_hash) or self.use.new_caller(key_hash)

    def follow(self) -> None:
        """Follows the caller at the times that it came, if it still is in the sample."""
        caller, times = self.caller, self.times
        self.times = []
        if caller is None:
            return
        caller.waiting = False
        if caller.followed:
            self.use.follow(caller, self.template_hits, times)
        else:
            self.caller = None


class PreparedRequest:
    """A request with its plans, which is asked as often as it comes."""

    __slots__ = ("hits", "leasing", "matched", "plans", "request", "unmatched")

    def __init__(
        self,
        request: Request,
        plans: Sequence[Plan],
        hits: Sequence[Hit],
        matched: Sequence[Matched],
        unmatched: bool,
    ) -> None:
        self.request = request
        self.plans = plans
        self.hits = hits
        self.matched = matched
        self.unmatched = unmatched
        self.leasing = sum([planned.rule.leasing for planned in plans]) > 0


def alone_of(prepared: PreparedRequest) -> Matched | None:
    """What a request meets if that is one hit, of a rule with one limit, and nothing else.

    Then no hits are made for it (`MemoryStore.charge_hit`).
    """
    if not len(prepared.hits) == len(prepared.matched) == len(prepared.plans) == 1:
        return None
    hit, matched = prepared.hits[0], prepared.matched[0]
    if prepared.leasing or matched.refund or hit.count_denied or len(matched.use.limits) != 1:
        return None
    return matched
