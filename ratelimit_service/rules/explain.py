"""Why a descriptor meets the rule it meets: the walk of `match`, told step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from ratelimit_service.model import Descriptor, Entry, Limit
from ratelimit_service.rules.match import Match, find, match
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.problem import did_you_mean
from ratelimit_service.rules.texts import limit_text, moment_text
from ratelimit_service.rules.tree import Domain, Level, Node, Rule, Snapshot

__all__ = ["EntryStep", "Explanation", "PassedOver", "explain"]

_MOST_COMPARED = 50
"""Domains of which one may have been meant: to compare so many takes two milliseconds."""

_OTHER_LENGTH = 2
"""By how many characters a domain that was meant may be longer or shorter."""

_MOST_NAMED = 20
"""So many domains are named where another was asked for."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A node with the entry's key that was not taken, and why."""

    node: str
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class EntryStep:
    """What one entry met; `taken` is empty where nothing matched."""

    entry: Entry
    taken: str
    source: str
    how: str
    passed_over: tuple[PassedOver, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The steps of the walk, the match it ends in, and in a sentence why."""

    steps: tuple[EntryStep, ...]
    match: Match
    why: str

    @property
    def rule(self) -> Rule | None:
        """The rule that limits the descriptor."""
        return self.match.rule

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            lines.append(f"{path_text([step.entry])}: {step.how}")
            if step.taken:
                lines[-1] += f" {step.taken} at {step.source}"
            lines += [
                f"  passed over {other.node} at {other.source}: {other.why}"
                for other in step.passed_over
            ]
        lines.append(self.why)
        return "\n".join(lines)


def explain(snapshot: Snapshot, domain_name: str, descriptor: Descriptor) -> Explanation:
    """Tells how a descriptor without a limit of its own walks the rules as they are now."""
    domain = snapshot.domains.get(domain_name)
    if domain is None:
        if snapshot.emptied:
            why = "no rule: there are none, as the source of the rules says"
        elif not snapshot.domains:
            why = "no domain is served: no rule file could be read"
        elif domain_name in snapshot.unserved:
            why = f"domain {domain_name!r} is not served: its rules have errors"
        else:
            known = sorted(snapshot.domains)
            size = len(domain_name)
            like = (each for each in known if abs(len(each) - size) <= _OTHER_LENGTH)
            hint = did_you_mean(domain_name, list(islice(like, _MOST_COMPARED)))
            more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
            only = ", ".join(known[:_MOST_NAMED]) + more
            why = f"no rule: there is no domain {domain_name!r}, only {only}{hint}"
        return Explanation((), Match(None), why)
    minute = snapshot.minute
    steps = tuple(_steps(domain.root, descriptor, minute))
    result = match(domain, descriptor.entries, minute)
    why = _why(steps, result, descriptor, minute)
    if result.rule is None:
        why += _in_another_order(domain, descriptor.entries, minute)
    return Explanation(steps, result, why)


_MOST_ORDERED = 3
"""Of so many entries all orders are tried, 6: a server, which explains too, must not stall."""


def _in_another_order(domain: Domain, entries: Sequence[Entry], minute: int) -> str:
    """Which order of the same entries a rule takes, as a sentence to append; "" if none."""
    for order in permutations(entries) if len(entries) <= _MOST_ORDERED else ():
        other = match(domain, order, minute)
        if other.rule is not None:
            keys = ", ".join(entry.key for entry in order)
            return f"; in the order {keys} the rule {other.rule.path} would take it"
    return ""


def _steps(level: Level | None, descriptor: Descriptor, minute: int) -> Iterator[EntryStep]:
    for entry in descriptor.entries:
        if level is None:
            yield EntryStep(entry, "", "", "the rules end before this entry", ())
            return
        node = find(level, entry, minute)
        others = tuple(
            PassedOver(_text(other), str(other.source), _why_not(level, other, entry, node, minute))
            for other in level.nodes
            if other.key == entry.key and other is not node
        )
        if node is None:
            hint = did_you_mean(entry.key, {other.key for other in level.nodes})
            how = "no value matches" if others else f"no such key at this level{hint}"
            yield EntryStep(entry, "", "", how, others)
            return
        yield EntryStep(entry, _text(node), str(node.source), _how(node, entry), others)
        level = node.children


def _now(limit: Limit, minute: int) -> str:
    text = limit_text(limit)
    if limit.schedule is not None:
        text += f" ({'as now' if limit.schedule.holds(minute) else 'not now'})"
    return text


def _text(node: Node) -> str:
    return path_text([(node.key, node.value)])


def _how(node: Node, entry: Entry) -> str:
    how = _how_ungrouped(node)
    if node.grouping is None or node.share_threshold:
        return how
    value = node.grouping.of(entry.value)
    if value is None:
        return f"it is no address, so it is counted as it stands, and {how}"
    return f"grouped as {value}, {how}"


def _how_ungrouped(node: Node) -> str:
    if node.matcher is not None:
        return f"the {'shared ' if node.share_threshold else ''}{node.matcher.noun} matches:"
    return "the exact value matches:" if node.value else "the key alone matches:"


def _why_not(level: Level, other: Node, entry: Entry, taken: Node | None, minute: int) -> str:
    if other.valid_until is not None and minute >= other.valid_until:
        return f"it ended at {moment_text(other.valid_until)}"
    if other.matcher is None:
        if not other.value:
            return "it is less specific"
        if _seen(other, entry.value) != other.value:
            return "its value differs"
        return f"its value matches too, but {_why_another(other, entry.value, taken)}"
    its = f"its {other.matcher.noun}"
    if not _matches(other, other.matcher, entry.value):
        return f"{its} does not match"
    matchers = level.matching.get(entry.key)
    if not _exactly(other, entry.value) and matchers and not matchers.takes(other, entry.value):
        return f"{its} is not asked: the value is too long for those of this level"
    if taken is None or taken.matcher is None or _exactly(taken, entry.value):
        return f"{its} matches too, but {_why_another(other, entry.value, taken)}"
    if taken.matcher.precedence < other.matcher.precedence:
        return f"{its} matches too, but a {taken.matcher.noun} goes before"
    return f"{its} matches too, but {other.matcher.beaten}"


def _why_another(other: Node, value: str, taken: Node | None) -> str:
    """Why one that takes exactly this value, or its network, goes before another that matches."""
    if taken is not None and taken.grouping is not None and _exactly(other, value):
        return "was declared later"
    return "another has exactly this value"


def _exactly(node: Node, value: str) -> bool:
    """Whether what a node sees of a value is looked up, and found to be its own."""
    seen = _seen(node, value)
    return seen == node.value if node.matcher is None else seen in node.matcher.literals


def _seen(node: Node, value: str) -> str:
    """What a node holds its value or matcher against."""
    return (node.counted_value(value) or value) if node.grouping is not None else value


def _matches(node: Node, matcher: Matcher, value: str) -> bool:
    return matcher.matches(value if isinstance(matcher, Networks) else _seen(node, value))


def _why(steps: tuple[EntryStep, ...], result: Match, descriptor: Descriptor, minute: int) -> str:
    if result.rule:
        limits = [_now(limit, minute) for limit in result.rule.limits]
        if result.rule.in_turn:
            names = [limit.name for limit in result.rule.limits]
            limits = [f"{name}: {text}" for name, text in zip(names, limits, strict=True)]
        what = "; ".join(limits) or "unlimited"
        if result.rule.in_turn:
            holds = any(limit.reservations is not None for limit in result.rule.limits)
            pays = "pays, or holds what it will pay" if holds else "pays"
            what = f"the first with room {pays}: {what}"
        if result.rule.enqueue:
            what += "; what is denied goes into its queue"
        return f"rule {result.rule.path} at {result.rule.source}: {what}"
    if not descriptor.entries:
        return "no rule: the descriptor has no entries"
    last = steps[-1]
    if not last.taken:
        return f"no rule: stopped at {path_text([last.entry])}, {last.how}"
    return (
        f"no rule: the descriptor ends at {last.taken}, which has no rate_limit of its own; "
        "a rule applies to descriptors exactly as deep as it"
    )
