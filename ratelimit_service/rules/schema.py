"""The rule language: from a file's bytes to nodes, or to everything that is wrong with them.

What YAML is made of is `reader`'s business. Which keys there are is `language`'s, and what stands
in a limit is `limits`'. Files are merged in `build`, and rules are looked up in `match`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import yaml

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import AnswerStyle, FailurePolicy, Limit
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.answers import read_answer
from ratelimit_service.rules.conflicts import taken_twice, too_many
from ratelimit_service.rules.fields import Fields, Scalars, document
from ratelimit_service.rules.grouping import check_groupings, read_grouping
from ratelimit_service.rules.language import (
    CHARGE,
    LIMIT_KEYS,
    MAX_LIMITS,
    MAX_NAME,
    ON_LIMIT,
    REFERENCE_KEYS,
    REPLACES_KEYS,
    ROOT_KEYS,
    descriptor_keys,
    key_locations,
)
from ratelimit_service.rules.limits import limit_name, read_limit
from ratelimit_service.rules.matchers import registry
from ratelimit_service.rules.paths import Source, path_text
from ratelimit_service.rules.problem import MAX_TEXT, Problem, origin, quoted
from ratelimit_service.rules.reader import Reader, Unreadable
from ratelimit_service.rules.schedule import read_valid_until
from ratelimit_service.rules.tree import Level, Node, Rule
from ratelimit_service.rules.turns import check_turns

__all__ = ["RuleFile", "alike", "compiled", "parse"]

_OF_THE_RULE = (
    *("shadow_mode", "quota_mode", "detailed_metric", "metadata", "answer", "on_limit"),
    "charge",
)
"""Keys of a descriptor that act on its own rate_limit and on nothing else."""

_FORGOTTEN = {"rate_limit": "unit and requests_per_unit", "rate_limits": "a list of limits"}
"""What to write below a key that limits something, for files in which nothing but a comment is
below it."""

_EXAMPLE = "{unit: minute, requests_per_unit: 5}"
"""A limit, for whoever has written something else."""

_MOST_KNOWN = 10_000
"""The most different limits that are remembered while a file is read."""

_DOMAIN_LINE = re.compile(rb"^domain[ \t]*:[ \t]*[\"']?([^\"'#\r\n]+)", re.MULTILINE)


class ShardBy(NamedTuple):
    """Which entries place a counter in a shard: those with these keys, or just the domain."""

    keys: frozenset[str]
    source: Source


class _RateLimits(NamedTuple):
    """What a rule's limits come to."""

    limits: tuple[Limit, ...]
    names: frozenset[str]
    replaces: frozenset[str]
    failure_policy: FailurePolicy | None


@dataclass(frozen=True, slots=True)
class RuleFile:
    """What one file says. If it is bad, `nodes` are not to be used and `domain` is a guess."""

    name: str
    domain: str
    nodes: tuple[Node, ...]
    problems: tuple[Problem, ...]
    shard_by: ShardBy | None = None

    @property
    def bad(self) -> bool:
        """Whether envoyproxy/ratelimit would refuse the file as well."""
        return not all(problem.tolerated for problem in self.problems)


def parse(
    name: str,
    data: bytes,
    tallies: Callable[[str, str], Tallies] = Tallies,
    *,
    advises: bool = False,
) -> RuleFile:
    """Reads one rule file; never raises for what is in it.

    `tallies` gives the tallies of a rule by domain and path. If it `advises`, hints at what is
    written are among the problems.
    """
    reader = Reader(name, advises=advises)
    return compiled(name, reader, lambda: reader.composed(data), _guessed_domain(data), tallies)


def compiled(
    name: str,
    reader: Reader,
    compose: Callable[[], yaml.Node],
    guessed_domain: str,
    tallies: Callable[[str, str], Tallies],
) -> RuleFile:
    """What the nodes of one rule file mean, whatever they were read from.

    `compose` makes them; where it raises Unreadable, the file is bad and the domain is a guess.
    """
    shard_by = None
    try:
        root = document(reader, compose(), ROOT_KEYS, key_locations(), REFERENCE_KEYS)
        domain = root.text("domain", most=MAX_TEXT)
        if not domain:
            state = "empty" if "domain" in root else "missing"
            root.report("no_domain", f"domain is {state}: name what callers ask for")
        shard_by = _shard_by(root)
        if not reader.problems:  # what is wrong comes first
            _advise_on_no_rules(root)
        if unmade := origin(domain):
            root.advise("literal_value", f"domain is compared as text{unmade}", key="domain")
        placing = None if shard_by is None else shard_by.keys
        rules = _RuleReader(domain, tallies, read_answer(root), reader.problems, placing)
        rules.reserves = root.switch("reservations")
        nodes = rules.descriptors(root)
    except Unreadable:
        domain, nodes = guessed_domain, ()
    except Exception as error:  # one file never takes the others down
        domain, nodes = guessed_domain, ()
        reader.problems.append(_fault(name, error))
    return RuleFile(name, domain, nodes, tuple(reader.problems), shard_by)


def _guessed_domain(data: bytes) -> str:
    guess = _DOMAIN_LINE.search(data)
    return guess[1].decode("utf-8", "replace").strip() if guess else ""


def _fault(name: str, error: Exception) -> Problem:
    """What is said of a fault of ours: where it lies, for its mend."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(at.filename).name}:{at.lineno}"
    message = f"a fault in reading this file, please report it: {where}: {quoted(repr(error))}"
    return Problem(Source(name), "", message, "internal")


def _shard_by(root: Fields) -> ShardBy | None:
    if not root.given("shard_by"):
        return None
    keys = root.texts("shard_by")
    if keys is None and root.raw("shard_by") != "domain":
        message = "shard_by is a list of descriptor keys, or the word domain"
        root.report("shard_by", message, value="shard_by")
    elif keys == []:
        root.report("shard_by", "shard_by is empty: write domain, or keys", value="shard_by")
    return ShardBy(frozenset(keys or ()), root.source("shard_by"))


def _advise_on_no_rules(root: Fields) -> None:
    """A file may have no rules. If it says nothing else either, that is rarely meant."""
    root.advise_if_empty("descriptors", "this file limits nothing: write some")
    if "descriptors" not in root and not root.given("shard_by"):
        root.advise("empty", "there are no descriptors, so this file limits nothing: write some")


class _RuleReader:
    """Turns the fields of one domain's file into nodes and rules."""

    def __init__(
        self,
        domain: str,
        tallies: Callable[[str, str], Tallies],
        answer: AnswerStyle | None,
        problems: Sized,
        shard_by: frozenset[str] | None,
    ) -> None:
        """`answer` holds for rules that do not say how their answers look.

        `problems` are those of the file so far; they grow. `shard_by` is the file's.
        """
        self._shard_by = shard_by
        self._domain = domain
        self._tallies = tallies
        self._answer = answer
        self._keys = descriptor_keys()
        self._common_keys = {"key", "rate_limit", "rate_limits", "descriptors", *registry.keys()}
        """Where a descriptor has no other keys, nobody looks for each of these."""
        self._problems = problems
        self.reserves = False
        """Whether limits take reservations that do not say it themselves."""
        self._known: dict[tuple[str, Scalars], _RateLimits] = {}
        """Limits without problems, by their key and what is written."""

    def descriptors(self, fields: Fields) -> tuple[Node, ...]:
        seen: dict[tuple[str, str, bool], Node] = {}
        nodes: list[Node] = []
        for item in fields.items("descriptors", self._keys, deeper=True):
            node = item.once(Node, self._descriptor)
            if node is None:
                continue
            item.path = (*item.path[:-1], (node.key, node.value))
            if message := taken_twice(node, seen):
                item.report("duplicate", message)
            else:
                nodes.append(node)
        for node, message in too_many(nodes):
            fields.report("matcher", f"{message} (see {node.source})", key="descriptors")
        return tuple(nodes)

    def _descriptor(self, fields: Fields) -> Node | None:
        """None if it does not say what it takes."""
        if (like := fields.like(Node)) is not None:
            return self._alike(like, fields)
        key = fields.text("key", most=MAX_TEXT)
        taken = registry.taken(fields)
        value, matcher = taken or ("", None)
        fields.path = (*fields.path[:-1], (key, value))
        if not key and not fields.misspelt("key"):
            fields.report("no_key", "key is missing or empty: every descriptor needs one")
        more = not fields.within(self._common_keys)
        share_threshold = more and fields.switch("share_threshold")
        if share_threshold and taken and matcher is None:
            message = (
                f"share_threshold needs {registry.shareable()}: "
                "without one there is nothing to share"
            )
            fields.report("share_threshold", message, key="share_threshold")
        grouping = read_grouping(fields) if more else None
        rule = None
        limits: list[Fields] = []
        if fields.given("rate_limit"):
            if fields.given("rate_limits"):
                message = "rate_limit and rate_limits exclude each other: put all into the list"
                fields.report("rate_limits", message, key="rate_limits")
            rule, limits = self._rule(fields, "rate_limit", more=more)
        elif fields.given("rate_limits"):
            rule, limits = self._rule(fields, "rate_limits", more=more)
        else:
            for name, what in _FORGOTTEN.items():
                fields.advise_if_empty(name, f"nothing is limited here: write {what}")
            if more:
                _report_idle(fields)
        check_groupings(fields, limits, grouping, matcher, shared=share_threshold)
        fields.advise_if_empty("descriptors", "nothing stands below: write some")
        below = self.descriptors(fields)
        if not key or taken is None:
            return None
        return Node(
            key,
            value,
            matcher,
            rule,
            Level.of(below) if below else None,
            share_threshold,
            more and fields.switch("value_to_metric"),
            fields.source(),
            grouping,
            read_valid_until(fields) if more else None,
        )

    def _alike(self, like: Node, fields: Fields) -> Node:
        """A descriptor that differs from another (`alike`) in key or value alone."""
        fields.text("key", most=MAX_TEXT)
        fields.text("value", most=MAX_TEXT)
        rule = like.rule
        if rule is not None:
            path = path_text(fields.path)
            rule = rule.elsewhere(path, self._tallies(self._domain, path), rule.source)
        return like.elsewhere(
            fields.raw("key"), fields.raw("value"), like.matcher, rule, like.source
        )

    def _rule(self, descriptor: Fields, key: str, *, more: bool) -> tuple[Rule, list[Fields]]:
        """The rule whose limits stand under a key, and those limits if they had to be read.

        `more` says whether the descriptor has any keys that are not usual.
        """
        rate_limits, limits = self._rate_limits(descriptor, key)
        path = path_text(descriptor.path)
        source, tallies = descriptor.source(key), self._tallies(self._domain, path)
        rule = Rule(
            self._domain,
            path,
            *rate_limits[:3],
            failure_policy=rate_limits.failure_policy,
            answer=self._answer,
            source=source,
            tallies=tallies,
        )
        if more:
            rule = replace(
                rule,
                shadow_mode=descriptor.switch("shadow_mode"),
                quota_mode=descriptor.switch("quota_mode"),
                detailed_metric=descriptor.switch("detailed_metric"),
                metadata=descriptor.plain("metadata"),
                answer=read_answer(descriptor, self._answer),
                enqueue=descriptor.one_of("on_limit", ON_LIMIT, "deny") == "enqueue",
                in_turn=descriptor.one_of("charge", CHARGE, "all") == "first",
            )
        check_turns(descriptor, key, rule, self._shard_by)
        return rule, limits

    def _rate_limits(self, descriptor: Fields, key: str) -> tuple[_RateLimits, list[Fields]]:
        """What stands under `rate_limit` or `rate_limits`, and what was read for it.

        Most limits of a large file are the same, and none is read twice. Of those with problems
        each place is told.
        """
        content = descriptor.content(key)
        if content is not None:
            known = self._known.get((key, content))
            if known is not None:
                descriptor.visit(key)
                return known, []
        before = len(self._problems)
        if key == "rate_limits":
            mappings = list(descriptor.items(key, LIMIT_KEYS, deeper=False))
            _check_number_of_limits(descriptor, mappings)
        else:
            mapping = descriptor.mapping(key, LIMIT_KEYS, _EXAMPLE)
            mappings = [mapping] if mapping.readable else []
        names = frozenset(each.raw("name") for each in mappings if each.given("name")) - {""}
        rate_limits = _RateLimits(
            self._limits(descriptor, key, mappings),
            names,
            frozenset().union(*[_replaces(each, names) for each in mappings]),
            _failure_policy(mappings),
        )
        without_problems = len(self._problems) == before
        if content is not None and without_problems and len(self._known) < _MOST_KNOWN:
            self._known[key, content] = rate_limits
        return rate_limits, mappings

    def _limits(
        self, descriptor: Fields, key: str, mappings: Sequence[Fields]
    ) -> tuple[Limit, ...]:
        listed_ones = key == "rate_limits"
        limits: list[Limit] = []
        seen: dict[object, Fields] = {}
        for fields in mappings:
            limit = read_limit(
                fields, descriptor, None if listed_ones else key, reserves=self.reserves
            )
            if limit is None:
                limit_name(fields)
                if listed_ones:
                    message = "unlimited means nothing beside other limits: use rate_limit for it"
                    fields.report("unlimited", message, key="unlimited")
                continue
            if listed_ones:
                counter = spec_of(limit).key + limit.scope, limit.pool, frozenset(limit.count_by)
                other = seen.setdefault(counter, fields)
                if other is not fields:
                    fields.report(
                        "duplicate_limit",
                        f"this counts on the same counter as the limit at {other.source()}: "
                        "give it another window or algorithm, or remove one",
                    )
            limits.append(limit)
        return tuple(limits)


def alike(result: object) -> bool:
    """Whether a descriptor with another key or value would give the same node under that name.

    The other value must hold no `*`. It must be given where this one's is, and left out where not.
    """
    return (
        isinstance(result, Node)
        and result.matcher is None
        and result.children is None
        and not (result.rule is not None and result.rule.in_turn)
    )


def _check_number_of_limits(fields: Fields, limits: Sequence[Fields]) -> None:
    if not 0 < len(limits) <= MAX_LIMITS:
        message = f"rate_limits must be a list of 1 to {MAX_LIMITS} limits"
        fields.report("rate_limits", message, key="rate_limits")


def _report_idle(fields: Fields) -> None:
    for name in _OF_THE_RULE:
        if name in fields:
            message = f"{name} does nothing on a descriptor without rate_limit: put it beside one"
            tolerated = name in REFERENCE_KEYS
            fields.report("no_effect", message, key=name, tolerated=tolerated)


def _replaces(fields: Fields, beside: frozenset[str]) -> frozenset[str]:
    """The names that a limit replaces; those of its descriptor's own limits are `beside` it.

    A rule that replaced one of its limits would replace itself, and limit nothing.
    """
    names = set()
    own = fields.raw("name") if fields.given("name") else ""
    for item in fields.items("replaces", REPLACES_KEYS, deeper=False):
        name = item.text("name", most=MAX_NAME)
        if not name:
            item.report("replaces", "write each replaced rule as - name: …")
        elif name == own:
            item.report("replaces", f"{quoted(name)} cannot replace itself")
        elif name in beside:
            what = "is a limit of this descriptor, which cannot replace itself"
            item.report("replaces", f"{quoted(name)} {what}")
        else:
            names.add(name)
    return frozenset(names)


def _failure_policy(mappings: Sequence[Fields]) -> FailurePolicy | None:
    policy: FailurePolicy | None = None
    for fields in mappings:
        if not fields.given("failure_policy"):
            continue
        word = fields.one_of("failure_policy", list(map(str, FailurePolicy)), "open")
        if policy not in {None, word}:
            message = f"a descriptor has one failure_policy: another limit of it says {policy}"
            fields.report("failure_policy", message, value="failure_policy")
        policy = FailurePolicy(word)
    return policy
