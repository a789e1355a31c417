"""What a request means by the documents: its descriptors' rules, and so its counters and hits.

Each rule stands beside the sentence of `docs/rules.md` that it comes from. Nothing of the service
is imported: rules are the mappings that are written into rule files, requests are `Asked`. What
a request comes to, and what is told of it, is `model`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.machine.answers import Asked, Counted
from tests.machine.terms import SECOND, Terms, period

Rule = Mapping[str, Any]
"""A descriptor of a rule file, as YAML has it."""

WAITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000}


@dataclass(frozen=True)
class Settings:
    """The switches of `ratelimit serve` that change what is counted."""

    count_denied: bool = False
    quota_mode: bool = False
    shadow_mode: bool = False
    count_reported: bool = False


def terms_of(limit: Mapping[str, Any]) -> Terms:
    """A limit from its mapping."""
    wait = re.fullmatch(r"(\d+)(ms|s|m)", limit.get("max_wait", ""))
    calendar = limit.get("per") == "calendar"
    return Terms(
        limit["requests_per_unit"],
        limit["unit"],
        limit.get("algorithm", "fixed_window"),
        limit.get("anchor") == "first_hit",
        limit.get("time_zone", "UTC") if calendar else "",
        limit.get("burst"),
        limit.get("refill") == "stepped",
        limit.get("buckets", 0),
        int(wait[1]) * WAITS_US[wait[2]] if wait else 0,
        int(limit.get("soft", "0%").removesuffix("%")),
        limit.get("count_denied", False),
        limit.get("name", ""),
        reservations=limit.get("reservations", False),
        most_percent=int(limit.get("max_reservation", "100%").removesuffix("%")),
        longest_us=int(limit.get("max_reservation_ttl", "0s").removesuffix("s")) * SECOND,
        charged_at_end=limit.get("on_expiry") == "charge",
    )


def limits_of(rule: Rule) -> list[Mapping[str, Any]]:
    return rule["rate_limits"] if "rate_limits" in rule else [rule["rate_limit"]]


Identity = tuple[object, ...]


class Away(NamedTuple):
    """A shard that a process has lost, and of how many processes this one gets its part there."""

    process: int
    shard: int
    share: int


class Alone(NamedTuple):
    """A counter that a process counts by itself, while it has lost the shard of that counter."""

    process: int
    shard: int
    name: Identity


class Override(NamedTuple):
    """What an operator has said of a descriptor: a `ban`, an `exempt`, a `limit` or a `grant`."""

    kind: str
    entries: tuple[tuple[str, str], ...]
    number: int
    made: int
    """Its place among all that were made."""
    at: int = 0
    """When a grant was made."""

    def takes(self, entries: Sequence[tuple[str, str]]) -> bool:
        """It takes descriptors "that have just these keys, in this order"; `*` is any text."""
        return [key for key, _ in entries] == [key for key, _ in self.entries] and all(
            value == of or _matches(of, value)
            for (_, of), (_, value) in zip(self.entries, entries, strict=True)
        )

    @property
    def precedence(self) -> tuple[bool, int, int, int]:
        """The first of several decides.

        "Exact ones come before patterns. Then a ban comes before an exempt, an exempt before a
        limit, a limit before a grant. Then [...] the newer before the older."
        """
        wide = any("*" in value for _, value in self.entries)
        kind = ("ban", "exempt", "limit", "grant").index(self.kind)
        return wide, kind, -(self.at or self.made), self.made

    def end(self, terms: Terms) -> int:
        """Until when a grant gives hits of a limit.

        "A grant ends with the window in which it was made [...]. With sliding windows, logs,
        buckets, and windows from the first hit, a grant ends a window's length after it was made."
        """
        if terms.algorithm == "fixed_window" and not terms.first_hit:
            return period(terms, self.at)[1]
        return self.at + terms.window_us


class Grant(NamedTuple):
    """Extra hits of one limit, which are counted by themselves."""

    name: Identity
    terms: Terms
    made: int
    """As in `Override`."""


@dataclass
class Meant:
    """A descriptor with the rule that it meets."""

    rule: Rule | None = None
    path: str = ""
    """The rule's place, as metrics have it."""
    terms: list[Terms] = field(default_factory=list)
    counters: list[Identity] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    grants: list[list[Grant]] = field(default_factory=list)
    """Of each limit, those that are spent before it, in their order."""
    unlimited: bool = False
    shadow: bool = False
    quota: bool = False
    first: bool = False
    """Whether the first of its limits that has room is charged, and no other."""
    refund: bool = False
    uncounted: bool = False
    """Whether it passes without being counted, since there is no store."""
    missing: bool = False
    """Whether some of its limits have no store that could count."""
    denied_without: bool = False
    """Whether it is denied for that, if none of its other limits is over."""
    banned: bool = False
    exempt: bool = False
    reported: bool = False
    """Whether its hits are what was used: they count whoever denies."""
    lease: str = ""
    results: list[Counted] = field(default_factory=list)
    """Of each limit, with what its grants have."""
    counted: list[Counted] = field(default_factory=list)
    """Of each grant and each limit by itself, a limit behind its grants."""
    delays: list[int] = field(default_factory=list)
    """Of each limit, how long what was in front of the hits takes to leak."""

    def twice(self, terms: Terms) -> bool:
        """Whether a limit stands in the list once more, with its soft part."""
        return self.first and terms.soft_percent > 0

    @property
    def payer(self) -> int | None:
        """The place of the limit that paid."""
        places = [place for place, result in enumerate(self.results) if result.counted]
        return places[0] if self.first and places and not self.refund else None

    @property
    def names(self) -> list[Identity]:
        """The counters of its grants and limits, in the order of `counted`."""
        return [
            name
            for counter, grants in zip(self.counters, self.grants, strict=True)
            for name in (*(grant.name for grant in grants), counter)
        ]

    def uncount(self) -> None:
        """Nothing of it is counted."""
        self.terms, self.counters, self.hits, self.grants = [], [], [], []

    @property
    def known_over(self) -> bool:
        return any(result.over for result in self.results)

    @property
    def over_alone(self) -> bool:
        """Whether a limit that this process counts by itself is over."""
        return any(
            result.over and isinstance(name, Alone)
            for name, result in zip(self.counters, self.results, strict=True)
        )

    @property
    def over_by_count(self) -> bool:
        """Whether a limit is over in the store."""
        return any(
            result.over and not isinstance(name, Alone)
            for name, result in zip(self.counters, self.results, strict=True)
        )

    @property
    def over(self) -> bool:
        return self.known_over or self.denied_without

    @property
    def without_rule(self) -> bool:
        return not (self.terms or self.unlimited or self.uncounted)


def meanings(
    descriptors: Sequence[Asked],
    hits: int,
    rules: Sequence[Rule],
    settings: Settings,
    share: int = 1,
    overrides: tuple[Sequence[Override], int] = ((), 0),
) -> list[Meant]:
    """What each descriptor of a request means; each of `share` processes gets its part.

    `overrides` are those that there are, and what time it is.
    """
    meant = [_meant(asked, hits, rules, settings, share) for asked in descriptors]
    _replace(meant)
    for one, asked in zip(meant, descriptors, strict=True):
        one.grants = [[] for _ in one.terms]
        taking = [each for each in overrides[0] if each.takes(asked.entries)]
        if taking:
            _override(one, sorted(taking, key=lambda each: each.precedence), overrides[1])
    if any(one.banned for one in meant):
        # "The request is denied, and nothing of it is counted"; "Only hits that it gives back".
        # "Other descriptors of the request show no counts then".
        for one in meant:
            one.unlimited = False
            if not one.refund:
                one.exempt = False
                one.uncount()
    return meant


def _override(one: Meant, taking: Sequence[Override], now: int) -> None:
    """What an operator has said: "The first one decides".

    "If it is a limit or a grant, bans and exempts that come after it do nothing [...]: the first
    limit holds, and the grants are added to it, eight at most for one caller."
    """
    override = taking[0]
    if override.kind in ("limit", "grant"):
        limits = [each for each in taking if each.kind == "limit"]
        if limits:
            _relimit(one, limits[0])
        _grant(one, [each for each in taking if each.kind == "grant"][:8], now)
    elif not one.refund:
        one.banned = override.kind == "ban"
        one.exempt = override.kind == "exempt" and bool(one.terms)
        if one.exempt:
            # "The descriptor passes, and is not counted."
            one.uncounted = True
            one.uncount()
    elif override.kind == "exempt":
        # "an exempt caller gives none back, since none were counted": leases from before are.
        one.hits = [
            hits if terms.algorithm == "concurrency" else 0
            for hits, terms in zip(one.hits, one.terms, strict=True)
        ]


def _grant(one: Meant, grants: Sequence[Override], now: int) -> None:
    """Rule: "So many extra hits [...]. They are spent before the limit's own".

    "Where `concurrency` counts, a grant raises the limit instead."
    """
    for at, (name, terms) in enumerate(zip(one.counters, one.terms, strict=True)):
        held = [each for each in grants if now < each.end(terms)]
        if terms.algorithm == "concurrency":
            number = terms.requests_per_unit + sum(each.number for each in held)
            one.terms[at] = replace(terms, requests_per_unit=number)
        elif not one.refund:
            one.grants[at] = [
                Grant((name, "grant", each.made), _granted(each, terms), each.made) for each in held
            ]


def _granted(grant: Override, terms: Terms) -> Terms:
    """How its hits are counted: from the first one on, for longer than the grant lives."""
    seconds = -(-(grant.end(terms) - grant.at) // SECOND)
    least = 1 if terms.window_us == SECOND else 2
    return Terms(
        grant.number, "second", first_hit=True, share=terms.share, units=max(least, seconds)
    )


def _relimit(one: Meant, override: Override) -> None:
    """Another number holds."""
    # "Another number of requests holds. It is counted on as before [...]. A bucket's burst
    # grows and shrinks with it."
    for at, terms in enumerate(one.terms):
        burst = terms.burst
        if burst is not None:
            burst = -(-burst * override.number // terms.requests_per_unit)
        number = override.number
        one.terms[at] = replace(terms, requests_per_unit=number, burst=burst)


def _meant(asked: Asked, hits: int, rules: Sequence[Rule], settings: Settings, share: int) -> Meant:
    """Rule: "1 hit in each descriptor, or its `hits_addend`, or the descriptor's own"."""
    addend = asked.addend if asked.addend is not None else hits or 1
    entries, lease = asked.entries, ""
    meant = Meant(refund=asked.negative)
    # "`reported` [...] a descriptor that brings a positive `hits_addend` of its own".
    meant.reported = settings.count_reported and bool(asked.addend) and not asked.negative
    if asked.limit:
        # "A descriptor may bring its own `limit`. The rules are not asked then [...]. It
        # counts on the counter that a rule with the same entries and window would use."
        meant.terms = [Terms(*asked.limit, share=share)]
        meant.quota = settings.quota_mode
        names: Identity = entries
    else:
        path = None
        if asked.negative and len(entries) > 1 and entries[-1][0] == "lease":
            # "a negative hit whose descriptor ends with the entry `lease` gives it back. That
            # entry is not matched, and of several ids in it the last counts."
            path = _path(rules, entries[:-1])
            if path and any(each.get("algorithm") == "concurrency" for each in limits_of(path[-1])):
                lease = entries[-1][1].rpartition(",")[2].strip() or "none"
                entries = entries[:-1]
            else:
                path = None
        path = path or _path(rules, entries)
        if path is None:
            return meant
        meant.rule = rule = path[-1]
        meant.path = " > ".join(
            f"{node['key']}={node['value']}" if "value" in node else node["key"] for node in path
        )
        meant.shadow = rule.get("shadow_mode", False)
        meant.first = rule.get("charge") == "first"
        # "`--count-denied` and `--quota-mode` do not touch such a list."
        meant.quota = rule.get("quota_mode", False) or (settings.quota_mode and not meant.first)
        if any(limit.get("unlimited") for limit in limits_of(rule)):
            meant.unlimited = True
            return meant
        meant.terms = [terms_of(limit) for limit in limits_of(rule)]
        meant.terms = [replace(terms, share=share) for terms in meant.terms]
        if meant.first:
            # "A soft part counts as room only after all limits without it."
            soft = [terms for terms in meant.terms if terms.soft_percent]
            meant.terms = [replace(terms, soft_percent=0) for terms in meant.terms] + soft
        # "Without `share_threshold` each value has its own counter, also under a pattern."
        names = tuple(
            (key, node["value"], "shared") if node.get("share_threshold") else (key, value)
            for node, (key, value) in zip(path, entries, strict=True)
        )
    for terms in meant.terms:
        # "A counter is what it counts: the domain, the descriptor's entries, the window
        # (with its anchor, calendar, zone and parts) and the algorithm."
        meant.counters.append((names, terms.identity))
        # Who gives back a lease gives back no hits of the rule's other limits.
        meant.hits.append(addend if not lease or terms.algorithm == "concurrency" else 0)
    if meant.first and meant.refund and not lease:
        # "Without the entry the first limit of the list gets them."
        meant.hits = [addend if place == 0 else 0 for place in range(len(meant.terms))]
    meant.lease = lease
    return meant


def _path(rules: Sequence[Rule], entries: Sequence[tuple[str, str]]) -> list[Rule] | None:
    """The nodes that a descriptor goes along, if the last one has a limit.

    "At each level an entry goes to the node with its key and exactly its value, else the
    first declared node with its key and a pattern that matches its value, else the node with
    its key and no value. The last entry's node must have a `rate_limit` [...]."
    """
    level: Sequence[Rule] = rules
    path: list[Rule] = []
    for key, value in entries:
        same = [node for node in level if node["key"] == key]
        node = next((n for n in same if n.get("value") == value), None)
        node = node or next((n for n in same if _matches(n.get("value", ""), value)), None)
        node = node or next((n for n in same if "value" not in n), None)
        if node is None:
            return None
        path.append(node)
        level = node.get("descriptors", ())
    return path if "rate_limit" in path[-1] or "rate_limits" in path[-1] else None


def _replace(meant: Sequence[Meant]) -> None:
    """Takes replaced rules out of a request.

    "A replaced rule is as no rule. Its own `replaces` still count; unlimited rules replace and
    cannot be replaced." It "takes the place of all of a descriptor's limits if it names one".
    """
    named = {
        each["name"]
        for one in meant
        if one.rule is not None
        for limit in limits_of(one.rule)
        for each in limit.get("replaces", ())
    }
    for one in meant:
        if one.rule and not one.unlimited and named & {terms.name for terms in one.terms}:
            one.rule = None
            one.uncount()


def _matches(pattern: str, value: str) -> bool:
    """Each `*` in it stands for any characters or none."""
    parts = map(re.escape, pattern.split("*"))
    return "*" in pattern and re.fullmatch(".*".join(parts), value, re.DOTALL) is not None
