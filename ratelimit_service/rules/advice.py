"""Hints about what rules may say, but is rarely meant: `lint` gives them, and `serve` does not.

What must not live here: what is wrong (`schema`, `limits`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import (
    ip_address,
    ip_network,
    summarize_address_range,
)

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.model import DAY_MINUTES, DAYS, SECOND_US, Grouping, Limit, Schedule
from ratelimit_service.rules.matchers import registry
from ratelimit_service.rules.matchers.matcher import Index, Matcher
from ratelimit_service.rules.paths import MatcherName, path_text
from ratelimit_service.rules.problem import Problem, origin, quoted
from ratelimit_service.rules.texts import limit_text, moment_text
from ratelimit_service.rules.tree import Node, Rule

__all__ = ["advice"]

_REGEX = re.compile(r"^\^|\$$|\.\+|(?:^|/)\.\*|\\[dwsb]|\[[a-zA-Z0-9]-|\([^()]*\|")
"""What stands in regular expressions, and rarely in values."""

_SHOWN_NETWORKS = 2

_NETWORKS = frozenset({"masked_remote_address"})
"""Keys whose values are networks, as Envoy's action of that name has them."""

_BY_ROUTES = frozenset({"generic_key", "header_match", "query_match"})
"""Keys whose values stand in Envoy's configuration, so that no caller brings another one."""

_LONG_US = 3_600 * SECOND_US
_DAY_US = 86_400 * SECOND_US

_Path = tuple[tuple[str, str], ...]


def advice(nodes: Iterable[Node], minute: int, path: _Path = ()) -> Iterator[Problem]:
    """Hints about the nodes of a level and all below; `path` leads to the level.

    `minute` is the present one, counted from the Unix epoch.
    """
    level = []
    for node in nodes:
        if node.valid_until is not None and node.valid_until <= minute:
            # It is as if it were not there, with all below.
            yield _ended(node, (*path, (node.key, node.value)), node.valid_until)
        else:
            level.append(node)
    yield from _unreachable(level, path)
    yield from _no_fallback(level, path)
    for node in level:
        here = (*path, (node.key, node.value))
        yield from _misread(node, here)
        yield from _never_grouped(node, here)
        if node.rule is not None:
            yield from _never_paying(node.rule) if node.rule.in_turn else _pointless(node.rule)
            yield from _unfitting(node.rule)
            yield from _all_reserved(node.rule)
            yield from _idle_queue(node.rule)
            yield from _charged_plainly(node.rule)
            yield from _gaps(node.rule)
        if node.children is not None:
            yield from advice(node.children.nodes, minute, here)


def _hint(node: Node, path: _Path, kind: str, message: str) -> Problem:
    return Problem(node.source, path_text(path), message, kind, tolerated=True, hint=True)


def _ended(node: Node, path: _Path, ended: int) -> Problem:
    """A rule that has ended: readers see it in the file, but no request meets it any more."""
    message = (
        f"no request gets here: valid_until was {moment_text(ended)}; write a later moment, or "
        "take it out"
    )
    return _hint(node, path, "ended", message)


def _unreachable(level: Sequence[Node], path: _Path) -> Iterator[Problem]:
    """Nodes all of whose values a matcher takes before them: the first declared one wins."""
    before: dict[tuple[str, Grouping | None, int], _EarlierNodes] = {}
    greedy: dict[str, Node] = {}
    for node in level:
        matcher = node.matcher
        if matcher is None:
            continue
        earlier = before.setdefault((node.key, node.grouping, matcher.precedence), _EarlierNodes())
        if matcher.beyond_literals and (first := earlier.covering(matcher)):
            none = "no other value than this text" if matcher.literals else "no value"
            message = (
                f"{none} gets here: {quoted(first.value)} at "
                f"{first.source} takes them before; declare this one above it"
            )
            yield _hint(node, (*path, (node.key, node.value)), "unreachable", message)
        if node.valid_until is None:  # else later ones get values once it has ended
            earlier.add(node, matcher)
            if matcher.takes_all:
                greedy.setdefault(node.key, node)
    for node in level:
        if not node.value:
            first = greedy.get(node.key)
            if first is not None:
                message = f"no value gets here: {quoted(first.value)} at {first.source} takes all"
                yield _hint(node, (*path, (node.key, "")), "unreachable", message)


def _no_fallback(level: Sequence[Node], path: _Path) -> Iterator[Problem]:
    """Keys of which several values have limits of their own, and all others have none."""
    limited: dict[str, list[Node]] = {}
    for node in level:
        limited.setdefault(node.key, []).append(node)
    for key, nodes in limited.items():
        if key in _BY_ROUTES or len(nodes) < _SEVERAL:
            continue
        if any(not node.value or node.matcher is not None for node in nodes):
            continue
        if all(node.rule is not None and node.rule.limits for node in nodes):
            other = quoted(f"key: {key}")
            message = (
                f"no other value of {quoted(key)} is limited than the {len(nodes)} here: if it "
                f"should be, add a descriptor {other} without a value"
            )
            yield _hint(nodes[-1], (*path, (key, nodes[-1].value)), "no_fallback", message)


_SEVERAL = 2


class _EarlierNodes:
    """Nodes of one key, whose matchers have one precedence, by what they may cover.

    So that thousands of them are not each compared with each.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[Node, Matcher]] = []
        self._alike: dict[Matcher, int] = {}
        """Of the kinds that cover only what they are themselves: the first position of each."""
        self._by_text: dict[type[Index], Index] = {}
        """Of the kinds that cover by text."""
        self._others: list[int] = []

    def add(self, node: Node, matcher: Matcher) -> None:
        """Takes in the next one as declared."""
        position = len(self._nodes)
        self._nodes.append((node, matcher))
        if matcher.covers_by_text:
            if matcher.index not in self._by_text:
                self._by_text[matcher.index] = matcher.index()
            self._by_text[matcher.index].add(matcher, position)
        elif type(matcher).covers is Matcher.covers:
            self._alike.setdefault(matcher, position)
        else:
            self._others.append(position)

    def covering(self, later: Matcher) -> Node | None:
        """The first one that takes all values of a later one."""
        positions = list(self._others)
        for index in self._by_text.values():
            positions += index.all(later.covered_text)
        if later in self._alike:
            positions.append(self._alike[later])
        for position in sorted(positions):
            node, matcher = self._nodes[position]
            if matcher.covers(later):
                return node
        return None


def _misread(node: Node, path: _Path) -> Iterator[Problem]:
    """Values that look like a network, a range of addresses, or a regular expression."""
    value = node.value
    if isinstance(value, MatcherName) or node.grouping is not None:
        return
    if unfilled := origin(value) or origin(node.key):
        yield _hint(node, path, "literal_value", f"value is compared as text{unfilled}")
        return
    if node.key in _NETWORKS and _is_network(value):
        return  # Envoy sends the network itself
    if _is_network(value):
        what, instead = "a network: addresses within it do not match", f"cidr: {value}"
    elif networks := _networks(value):
        what, instead = "a range: addresses within it do not match", f"cidr: {networks}"
    elif _REGEX.search(value):
        what = "a regular expression: its signs stand for themselves, but for `*`"
        instead = f"regex: {value}"
    else:
        return
    known = instead.partition(":")[0] in {each.key for each in registry.kinds()}
    message = f"value is compared as text, not as {what}"
    message += f"; write {quoted(instead)} in its place" if known else ""
    yield _hint(node, path, "literal_value", message)


def _never_grouped(node: Node, path: _Path) -> Iterator[Problem]:
    """An exact value that no address is any more, once `group` has made a network of it."""
    if node.grouping is None:
        return
    for value in (node.value,) if node.matcher is None else node.matcher.literals:
        grouped = node.grouping.of(value.partition("/")[0])
        if grouped is not None and grouped != value:
            message = (
                f"no address gets here: group makes {quoted(grouped)} of it before it is "
                f"compared with {quoted(value)}; write {quoted(grouped)} in its place"
            )
            yield _hint(node, path, "unreachable", message)
            return


def _is_network(value: str) -> bool:
    try:
        return "/" in value and bool(ip_network(value, strict=False))
    except ValueError:
        return False


def _networks(value: str) -> str:
    """The networks that a range of addresses comes to, as rules have them; "" if it is none."""
    first, _, last = value.partition("-")
    try:
        ends = ip_address(first.strip()), ip_address(last.strip())
        networks = [str(each) for each in summarize_address_range(*ends)]
    except (ValueError, TypeError):  # TypeError: of two families
        return ""
    more = ", …" if len(networks) > _SHOWN_NETWORKS else ""
    return f"[{', '.join(networks[:_SHOWN_NETWORKS])}{more}]"


def _pointless(rule: Rule) -> Iterator[Problem]:
    """Limits that nobody can reach, because another limit of the list denies before."""
    for limit in rule.limits:
        tighter = next((other for other in rule.limits if _implies(other, limit)), None)
        if tighter is not None:
            message = (
                f"{limit_text(limit)} denies nobody: {limit_text(tighter)} in the same list lets "
                f"at most {_most(tighter, limit)} through in that time"
            )
            yield Problem(rule.source, rule.path, message, "pointless", tolerated=True, hint=True)


def _never_paying(rule: Rule) -> Iterator[Problem]:
    """Of limits that pay in turn those that never pay."""
    for limit in rule.limits:
        if not spec_of(limit).limit:
            message = f"{quoted(limit.name)} can never pay: it has room for no hit"
            yield Problem(rule.source, rule.path, message, "pointless", tolerated=True, hint=True)
    if len(rule.limits) == 1:
        message = "charge: first does nothing with one limit: nothing pays after it"
        yield Problem(rule.source, rule.path, message, "pointless", tolerated=True, hint=True)


def _implies(one: Limit, other: Limit) -> bool:
    """Whether one limit denies callers before they reach the other one; both have fixed windows."""
    if one is other or not (_of_clock(one) and _of_clock(other)):
        return False
    if other.count_denied or other.window_us % one.window_us:
        return False
    if (one.grouping, one.pool) != (other.grouping, other.pool):
        return False  # they do not count the same callers
    if one.schedule is not None and one.schedule != other.schedule:
        return False  # it does not always hold where the other does
    alike = one.window_us == other.window_us and one.requests_per_unit == other.requests_per_unit
    return not alike and _most(one, other) <= other.requests_per_unit


def _of_clock(limit: Limit) -> bool:
    return spec_of(limit).adds and not limit.soft_ppm


def _most(one: Limit, other: Limit) -> int:
    """How many hits one limit admits in the window of the other."""
    return one.requests_per_unit * (other.window_us // one.window_us)


def _unfitting(rule: Rule) -> Iterator[Problem]:
    """Windows of which the algorithm makes something else than is meant."""
    for limit in rule.limits:
        if why := _why_unfitting(limit):
            message = f"{limit_text(limit)}: {why}"
            yield Problem(rule.source, rule.path, message, "window", tolerated=True, hint=True)


def _all_reserved(rule: Rule) -> Iterator[Problem]:
    """A reserve that, rounded up to whole hits, leaves nothing to the rule itself."""
    for limit in rule.limits:
        if limit.reserved and not capacity_of(limit):
            message = (
                f"denies every request: rounded up to whole hits, the reserve is all "
                f"{limit.reserved} of the pool; write a smaller one"
            )
            yield Problem(rule.source, rule.path, message, "reserve", tolerated=True, hint=True)


def _idle_queue(rule: Rule) -> Iterator[Problem]:
    """A queue that stays empty."""
    if rule.enqueue and (rule.unlimited or rule.shadow_mode):
        why = "is unlimited" if rule.unlimited else "is a shadow"
        message = f"on_limit: enqueue does nothing here: the rule {why}, so it denies nobody"
        yield Problem(rule.source, rule.path, message, "idle_queue", tolerated=True, hint=True)


def _charged_plainly(rule: Rule) -> Iterator[Problem]:
    """Leased limits whose hits go to the store one by one all the same."""
    for limit in rule.limits:
        reasons = {
            "shadow_mode": rule.shadow_mode,
            "quota_mode": rule.quota_mode,
            "charge: first": rule.in_turn,
            "soft": limit.soft_ppm > 0,
            "count_denied": limit.count_denied,
            "reservations": limit.reservations is not None,
        }
        why = next((name for name, holds in reasons.items() if holds), "")
        if limit.advances and why:
            message = f"sync: leased does nothing beside {why}: every hit asks the store"
            yield Problem(rule.source, rule.path, message, "sync", tolerated=True, hint=True)


def _gaps(rule: Rule) -> Iterator[Problem]:
    """Times at which none of a rule's limits holds, though several share the week out."""
    schedules = [limit.schedule for limit in rule.limits if limit.schedule is not None]
    zones = {schedule.time_zone for schedule in schedules}
    if len(schedules) < len(rule.limits) or len(schedules) < _SEVERAL or len(zones) > 1:
        return
    held = bytearray(_WEEK)
    for schedule in schedules:
        _mark(schedule, held)
    begin = held.find(0)
    if begin < 0:
        return
    end = held.find(1, begin)
    times = f"{_clock(begin)}-{_clock(end if end >= 0 else _WEEK, after=begin)}"
    more = ", and at other times" if end >= 0 and 0 in held[end:] else ""
    message = f"no limit holds on {times}{more}: a night belongs to the day on which it begins"
    yield Problem(rule.source, rule.path, message, "when", tolerated=True, hint=True)


_WEEK = len(DAYS) * DAY_MINUTES


def _mark(schedule: Schedule, held: bytearray) -> None:
    """Marks the minutes of a week, from Monday on, at which it holds."""
    length = schedule.end - schedule.begin
    length += 0 if length > 0 else DAY_MINUTES
    for day in range(len(DAYS)):
        if schedule.days >> day & 1:
            begin = day * DAY_MINUTES + schedule.begin
            for minute in range(begin, begin + length):
                held[minute % _WEEK] = 1


def _clock(minute: int, after: int | None = None) -> str:
    """A minute of the week; only its time of day, if that is on the same day as another one."""
    day, at = divmod(minute, DAY_MINUTES)
    if after is not None and minute - after // DAY_MINUTES * DAY_MINUTES <= DAY_MINUTES:
        at = minute - after // DAY_MINUTES * DAY_MINUTES
        return f"{at // 60:02}:{at % 60:02}"
    return f"{DAYS[day % len(DAYS)].capitalize()} {at // 60:02}:{at % 60:02}"


def _why_unfitting(limit: Limit) -> str:
    window_us = limit.window_us
    if ALGORITHMS[limit.algorithm].leases:
        if window_us <= SECOND_US:
            return (
                "whoever takes longer than a second gives up its place; write a window that is "
                "longer than the longest request"
            )
    elif (
        spec_of(limit).adds and window_us > _LONG_US and _DAY_US % window_us and window_us % _DAY_US
    ):
        return (
            "its windows begin at other times each day; write a window that divides a day, "
            "or anchor: first_hit"
        )
    return ""
