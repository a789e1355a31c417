"""What is allowed in rules and yet is hardly meant: hints, which `lint` says and `serve` does not.

What must not live here: what is wrong (`schema`, `limits`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_network

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Limit
from ratelimit_service.rules.explain import limit_text
from ratelimit_service.rules.paths import MatcherName, path_text
from ratelimit_service.rules.problem import Problem, quoted
from ratelimit_service.rules.tree import Node, Rule

__all__ = ["advice"]

_REGEX = re.compile(r"^\^|\$$|\.\+|(?:^|/)\.\*|\\[dwsb]|\[[a-zA-Z0-9]-|\([^()]*\|")
"""What stands in regular expressions, and hardly ever in values."""

_Path = tuple[tuple[str, str], ...]


def advice(nodes: Iterable[Node], path: _Path = ()) -> Iterator[Problem]:
    """Hints about the nodes of a level and all below; `path` leads to the level."""
    level = tuple(nodes)
    yield from _unreachable(level, path)
    for node in level:
        here = (*path, (node.key, node.value))
        yield from _misread(node, here)
        if node.rule is not None:
            yield from _pointless(node.rule)
        if node.children is not None:
            yield from advice(node.children.nodes, here)


def _hint(node: Node, path: _Path, kind: str, message: str) -> Problem:
    return Problem(node.source, path_text(path), message, kind, tolerated=True, hint=True)


def _unreachable(level: Sequence[Node], path: _Path) -> Iterator[Problem]:
    """Nodes all of whose values a matcher takes before them: the first declared one wins."""
    matching: dict[str, list[Node]] = {}
    for node in level:
        if node.matcher is not None:
            before = matching.setdefault(node.key, [])
            if first := next((each for each in before if _covers(each, node)), None):
                message = (
                    f"no other value than this text gets here: {quoted(first.value)} at "
                    f"{first.source} takes them before; declare this one above it"
                )
                yield _hint(node, (*path, (node.key, node.value)), "unreachable", message)
            before.append(node)
    for node in level:
        if not node.value:
            greedy = next((each for each in matching.get(node.key, ()) if _takes_all(each)), None)
            if greedy is not None:
                message = f"no value gets here: {quoted(greedy.value)} at {greedy.source} takes all"
                yield _hint(node, (*path, (node.key, "")), "unreachable", message)


def _covers(node: Node, later: Node) -> bool:
    """Whether nothing is left of a later node's values, and it would help to declare it before."""
    one, other = node.matcher, later.matcher
    return one is not None and other is not None and one.rank == other.rank and one.covers(other)


def _takes_all(node: Node) -> bool:
    return node.matcher is not None and node.matcher.takes_all


def _misread(node: Node, path: _Path) -> Iterator[Problem]:
    """Values that look like a network, a range of addresses, or a regular expression."""
    what = ""
    if isinstance(node.value, MatcherName):
        return
    if _is_network(node.value):
        what = "a network: addresses within it do not match"
    elif _is_range(node.value):
        what = "a range: addresses within it do not match"
    elif _REGEX.search(node.value):
        what = "a regular expression: its signs stand for themselves, but for `*`"
    if what:
        yield _hint(node, path, "literal_value", f"value is compared as text, not as {what}")


def _is_network(value: str) -> bool:
    try:
        return "/" in value and bool(ip_network(value, strict=False))
    except ValueError:
        return False


def _is_range(value: str) -> bool:
    first, _, last = value.partition("-")
    try:
        return bool(ip_address(first.strip()) and ip_address(last.strip()))
    except ValueError:
        return False


def _pointless(rule: Rule) -> Iterator[Problem]:
    """Limits that another one of the list never lets anybody reach."""
    for limit in rule.limits:
        tighter = next((other for other in rule.limits if _implies(other, limit)), None)
        if tighter is not None:
            message = (
                f"{limit_text(limit)} denies nobody: {limit_text(tighter)} in the same list lets "
                f"at most {_most(tighter, limit)} through in that time"
            )
            yield Problem(rule.source, rule.path, message, "pointless", tolerated=True, hint=True)


def _implies(one: Limit, other: Limit) -> bool:
    """Whether fixed windows of one limit hold whoever reaches the other one back before."""
    if one is other or not (_of_clock(one) and _of_clock(other)):
        return False
    if other.count_denied or other.window_us % one.window_us:
        return False
    if one.grouping != other.grouping:  # then they do not count the same callers
        return False
    alike = one.window_us == other.window_us and one.requests_per_unit == other.requests_per_unit
    return not alike and _most(one, other) <= other.requests_per_unit


def _of_clock(limit: Limit) -> bool:
    return spec_of(limit).adds and not limit.soft_ppm


def _most(one: Limit, other: Limit) -> int:
    """How many hits one limit admits in the window of the other."""
    return one.requests_per_unit * (other.window_us // one.window_us)
