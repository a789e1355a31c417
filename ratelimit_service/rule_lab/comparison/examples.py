"""Descriptors that show what rules do: values at which two trees of rules may differ.

They are candidates only. What they meet says `match`, so that no claim rests on them alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations, product

from ratelimit_service.model import Entry, IPAddress, Network, address_of
from ratelimit_service.rules.match import find
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.matchers.regex import Regex
from ratelimit_service.rules.tree import Level, Node

__all__ = ["Meeting", "meetings", "sample"]

_ANY = ("any", "other", "x", "1", "~")
"""Values that rules rarely name, the easiest to read first."""

_ADDRESSES = ("198.51.100.7", "2001:db8:7::7")
"""Addresses that rules rarely name: a pattern may take the network that a group makes of one."""

_PARTS_OF_ADDRESSES = ("0.0.1", "0.1", ":1", "10.0.0", "2001:db8:")
"""What makes addresses of patterns such as `10.*`, `10.0.*`, `2001:db8:*` and `*.1`."""

_MAX_PAIRED = 100
"""So many patterns of one key are compared each with each."""

_MOST_FILLERS = 4
"""So many values of a matcher are tried in place of what another takes anything for."""

_MAX_PAIRED_REGEXES = 30
"""So many regular expressions of one key are compared with each other, and with patterns."""

Meeting = tuple[tuple[Entry, ...], Node | None, Node | None]
"""A descriptor, and the nodes that it ends at in two trees."""


def meetings(
    old: Level | None, new: Level | None, minute: int, above: tuple[Entry, ...] = ()
) -> Iterator[Meeting]:
    """A descriptor for each pair of nodes that descriptors are found to end at in a minute."""
    for key in _keys(old, new):
        seen: set[tuple[int, int]] = set()
        for value in _values(key, [level for level in (old, new) if level is not None]):
            entry = Entry(key, value)
            one = find(old, entry, minute) if old else None
            other = find(new, entry, minute) if new else None
            if (id(one), id(other)) in seen or (one is None and other is None):
                continue
            seen.add((id(one), id(other)))
            here = (*above, entry)
            yield here, one, other
            yield from meetings(
                one.children if one else None, other.children if other else None, minute, here
            )


def sample(way: Sequence[Node]) -> tuple[Entry, ...]:
    """A descriptor for nodes from the root on, whether or not others take it before them."""
    return tuple(Entry(node.key, _of_node(node)) for node in way)


def _of_node(node: Node) -> str:
    if node.matcher is None:
        value = node.value or _ANY[0]
        return value if node.grouping is None else value.partition("/")[0]  # an address in it
    return node.matcher.example or _ANY[0]


def _keys(*levels: Level | None) -> list[str]:
    return list(dict.fromkeys(node.key for level in levels if level for node in level.nodes))


def _values(key: str, levels: Sequence[Level]) -> Iterator[str]:
    nodes = [node for level in levels for node in level.nodes if node.key == key]
    for node in nodes:
        if node.matcher is None and node.value:
            yield _of_node(node)
    matchers = list(dict.fromkeys(node.matcher for node in nodes if node.matcher is not None))
    for matcher in matchers:
        yield from _of_matcher(matcher)
    yield from _of_pairs(matchers)
    yield from _ANY
    for matcher in matchers:
        yield from matcher.literals
    for node in nodes:
        for network in _networks(node):
            yield from _edges(network)
            if node.grouping is not None:
                yield _written_otherwise(network.address)
    if any(node.grouping is not None or isinstance(node.matcher, Networks) for node in nodes):
        for matcher, filler in product(matchers, _PARTS_OF_ADDRESSES):
            yield from _with(matcher, filler)
        yield from _ADDRESSES


def _of_pairs(matchers: Sequence[Matcher]) -> Iterator[str]:
    """Values that two of these matchers take; the one that is declared first gets them."""
    patterns = [each for each in matchers if isinstance(each, Pattern)]
    if len(patterns) <= _MAX_PAIRED:
        for one, other in combinations(patterns, 2):
            both = _common(one.text, other.text)
            if both is not None:
                yield from _filled(both)
    regexes = [each for each in matchers if isinstance(each, Regex)]
    if max(len(regexes), len(patterns)) <= _MAX_PAIRED_REGEXES:
        for regex, matcher in product(regexes, patterns):
            yield from _taken_by_both(regex, matcher)
        for regex, another in permutations(regexes, 2):
            yield from _taken_by_both(regex, another)


def _written_otherwise(address: IPAddress) -> str:
    """An unusual spelling of an address: only a rule that groups addresses reads it as the same."""
    if address.family == 4:
        return f"::ffff:{address.text}"
    digits = f"{address.number:032x}"
    return ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _networks(node: Node) -> Iterator[Network]:
    """The networks that a node takes, if it takes any."""
    if isinstance(node.matcher, Networks):
        yield from node.matcher.networks
    elif node.grouping is not None:
        for value in (node.value,) if node.matcher is None else node.matcher.literals:
            address = address_of(value.partition("/")[0])
            if address is not None:
                length = node.grouping.ipv4 if address.family == 4 else node.grouping.ipv6
                yield Network.around(address, length)


def _edges(network: Network) -> Iterator[str]:
    """Its first and its last address, and the one behind it.

    Where its first address is in a smaller network, the one behind that shows what goes to it.
    """
    first = network.address
    bits = IPAddress.bits_of(first.family)
    behind = first.number + (1 << bits - network.length)
    for number in (first.number, behind - 1, behind):
        if number < 1 << bits:
            yield IPAddress(first.family, number).text


def _of_matcher(matcher: Matcher) -> Iterator[str]:
    if matcher.example:
        yield matcher.example
    if isinstance(matcher, Pattern):
        yield from _filled(matcher.text)
    if isinstance(matcher, Regex):
        for filler in ("1", ""):
            yield from matcher.values(filler)


def _taken_by_both(regex: Regex, other: Regex | Pattern) -> Iterator[str]:
    """Values that both may take: those of one, with one of the other where it takes anything."""
    for value in _some_of(other):
        yield from regex.values(value)
    for value in regex.values("")[:_MOST_FILLERS]:
        yield from _with(other, value)


def _with(matcher: Matcher, filler: str) -> Iterable[str]:
    """Values that a matcher takes, with `filler` where it takes anything."""
    if isinstance(matcher, Regex):
        return matcher.values(filler)
    return (matcher.text.replace("*", filler),) if isinstance(matcher, Pattern) else ()


def _some_of(matcher: Regex | Pattern) -> Iterable[str]:
    if isinstance(matcher, Regex):
        return matcher.values("")[:_MOST_FILLERS]
    return (matcher.text.replace("*", ""),)


def _filled(pattern: str) -> Iterator[str]:
    """Texts that a pattern takes."""
    for filler in ("1", "", *_ANY):
        yield pattern.replace("*", filler)


def _common(one: str, other: str) -> str | None:
    """A pattern all of whose texts two patterns take; None if there is no such text.

    The shortest way through both at once; a star stays where both have one.
    """
    waiting = deque([(0, 0, "")])
    seen = {(0, 0)}
    while waiting:
        i, j, text = waiting.popleft()
        if i == len(one) and j == len(other):
            return text
        for step in _steps(one[i : i + 1], other[j : j + 1]):
            at = (i + step[0], j + step[1])
            if at not in seen:
                seen.add(at)
                waiting.append((*at, text + step[2]))
    return None


def _steps(one: str, other: str) -> Iterator[tuple[int, int, str]]:
    """How far two patterns go on together from these characters, and by which one of both."""
    if one == other == "*":
        yield from ((1, 0, "*"), (0, 1, "*"))
        return
    if one == "*":
        yield 1, 0, ""
        if other:
            yield 0, 1, other
    if other == "*":
        yield 0, 1, ""
        if one:
            yield 1, 0, one
    if one and one == other:
        yield 1, 1, one
