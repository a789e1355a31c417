"""What changes between two sets of rules, in meaning: files and lines alone are nothing.

Rules that come, go and stay are told by their places in the tree. Which callers meet another rule
is told by descriptors that walk both trees (`examples`). Counters are told by their real keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Entry
from ratelimit_service.rule_lab.comparison.changes import (
    Callers,
    Change,
    ChangeKind,
    Detail,
    overall,
)
from ratelimit_service.rule_lab.comparison.examples import meetings, sample
from ratelimit_service.rule_lab.comparison.policies import (
    PlacedRule,
    details,
    ends,
    shared_indices,
    why_anew,
)
from ratelimit_service.rules.match import match
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.tree import Domain, Node, Rule, ways
from ratelimit_service.stores.keys import CounterNames

__all__ = ["compare"]


def compare(old: Mapping[str, Domain], new: Mapping[str, Domain], minute: int = 0) -> list[Change]:
    """Every change, by domain and rule; none if both sets of rules mean the same.

    What has ended in `minute`, counted from the Unix epoch, is as if it were not there.
    """
    return [
        change
        for name in sorted(old.keys() | new.keys())
        for change in _of_domain(name, old.get(name), new.get(name), minute)
    ]


def _of_domain(name: str, old: Domain | None, new: Domain | None, minute: int) -> Iterator[Change]:
    if old is None or new is None:
        kind = ChangeKind.ADDED if old is None else ChangeKind.REMOVED
        yield Change(kind, name, "")
    before, after = _placed(old, minute), _placed(new, minute)
    if old is not None and new is not None and old.shard_by != new.shard_by:
        yield _resharded(old, new, before, after)
    moved = list(_moved(old, new, minute))
    callers = _by_path(moved)
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one is None or other is None:
            kind = ChangeKind.ADDED if one is None else ChangeKind.REMOVED
            yield Change(
                kind,
                name,
                path,
                one and one.rule,
                other and other.rule,
                callers=tuple(callers.get(path, ())),
            )
        elif changed := details(one, other):
            anew = tuple(dict.fromkeys(why_anew(one, other)))
            yield Change(overall(changed), name, path, one.rule, other.rule, changed, anew)
    if old is not None and new is not None:
        yield from _exceptions(old, new, minute)
    stay = before.keys() & after.keys()
    for move in moved:
        ends = [rule for rule in (move.old, move.new) if rule is not None]
        if all(rule.path in stay for rule in ends):
            path = ends[0].path if ends else ""
            yield Change(ChangeKind.CALLERS, name, path, move.old, move.new, callers=(move,))


def _placed(domain: Domain | None, minute: int) -> dict[str, PlacedRule]:
    """The rules of a domain that have not ended, by their paths."""
    by_path = {}
    for way in ways(domain.root.nodes) if domain else ():
        rule = way[-1].rule
        if rule is not None and all(node.lasts(minute) for node in way):
            by_path[rule.path] = PlacedRule(rule, way)
    return by_path


def _exceptions(old: Domain, new: Domain, minute: int) -> Iterator[Change]:
    """Nodes without rules that end at another time than before, if callers meet a rule then."""
    before, after = (_without_rule(domain.root.nodes, minute) for domain in (old, new))
    for path in sorted(before.keys() & after.keys()):
        was, now = before[path], after[path]
        end, other = _end(was), _end(now)
        if end == other:
            continue
        entries, first = sample(was), int(min(end, other))
        one, another = (match(domain, entries, first).rule for domain in (old, new))
        if (one and one.path) != (another and another.path):
            yield Change(ChangeKind.CHANGED, new.name, path, details=tuple(ends(was, now)))


def _without_rule(
    nodes: Iterable[Node], minute: int, above: tuple[Node, ...] = ()
) -> dict[str, tuple[Node, ...]]:
    """The ways to nodes that have not ended, and neither a rule nor nodes below, by their paths."""
    by_path: dict[str, tuple[Node, ...]] = {}
    for node in nodes:
        way = (*above, node)
        if not node.lasts(minute):
            continue
        if node.children is not None:
            by_path |= _without_rule(node.children.nodes, minute, way)
        elif node.rule is None:
            by_path[path_text([(each.key, each.value) for each in way])] = way
    return by_path


def _end(way: Iterable[Node]) -> float:
    """The minute in which the first node of a way ends."""
    return min(math.inf if node.valid_until is None else node.valid_until for node in way)


def _moved(old: Domain | None, new: Domain | None, minute: int) -> Iterator[Callers]:
    """One descriptor for each pair of rules between which callers move."""
    seen = set()
    roots = [domain.root if domain else None for domain in (old, new)]
    for entries, one, other in meetings(roots[0], roots[1], minute):
        before = one.rule if one else None
        after = other.rule if other else None
        pair = (before and before.path, after and after.path)
        if pair[0] != pair[1] and pair not in seen:
            seen.add(pair)
            yield Callers(entries, before, after, _anew(old, new, entries, minute))


def _by_path(moved: Sequence[Callers]) -> Mapping[str, Sequence[Callers]]:
    """By the path of each rule the callers that come to it from another, or leave it for one."""
    by_path: dict[str, list[Callers]] = {}
    for callers in moved:
        if callers.old and callers.new:
            by_path.setdefault(callers.old.path, []).append(callers)
            by_path.setdefault(callers.new.path, []).append(callers)
    return by_path


def _anew(old: Domain | None, new: Domain | None, entries: Sequence[Entry], minute: int) -> bool:
    """Whether a descriptor is counted, before and after, and on other counters."""
    before, after = (_keys_charged(domain, entries, minute) for domain in (old, new))
    return bool(before and after) and not before & after


def _keys_charged(domain: Domain | None, entries: Sequence[Entry], minute: int) -> set[bytes]:
    if domain is None:
        return set()
    rule_match = match(domain, entries, minute)
    return _keys(domain, rule_match.rule, rule_match.identity, rule_match.shared)


def _keys(
    domain: Domain,
    rule: Rule | None,
    identity: Sequence[tuple[str, str]],
    shared: Sequence[int],
) -> set[bytes]:
    """The keys of the counters on which a rule counts a descriptor."""
    return {
        CounterNames(domain.name, spec_of(limit), domain.shard_by, limit).key(identity, shared)
        for limit in (rule.limits if rule else ())
    }


def _resharded(
    old: Domain, new: Domain, before: Mapping[str, PlacedRule], after: Mapping[str, PlacedRule]
) -> Change:
    """That counters are placed by other entries. Their keys begin with the place."""
    paths = []
    for path in sorted(before.keys() & after.keys()):
        now = after[path]
        if before[path].rule.unlimited:
            continue
        shared = shared_indices(now.way)
        entries = sample(now.way)
        if _keys(old, now.rule, entries, shared) != _keys(new, now.rule, entries, shared):
            paths.append(path)
    anew = (f"counters of these rules lie elsewhere: {', '.join(paths)}",) if paths else ()
    detail = Detail(ChangeKind.CHANGED, _sharding(old), _sharding(new))
    return Change(ChangeKind.CHANGED, new.name, "", details=(detail,), anew=anew)


def _sharding(domain: Domain) -> str:
    if domain.shard_by is None:
        return ""
    return f"shard_by {', '.join(sorted(domain.shard_by)) or 'domain'}"
