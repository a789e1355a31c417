"""The rule language: from a file's bytes to nodes, or to everything that is wrong with them.

What YAML is made of is `reader`'s business; merging files and looking things up live in
`load` and `match`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import MAX_ADDEND, FailurePolicy, Limit, Unit
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.reader import Fields, Reader, Unreadable, listed
from ratelimit_service.rules.tree import Level, Node, Pattern, Rule, path_text

__all__ = ["RuleFile", "parse"]

_MAX_WINDOW_US = 2**53
"""Windows stay below what a double holds exactly, since Lua has nothing else."""

_ROOT_KEYS = ("domain", "descriptors")
_DESCRIPTOR_KEYS = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
)
_LIMIT_KEYS = (
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "count_denied",
    "failure_policy",
)
_REPLACES_KEYS = ("name",)
_PLACES = {
    key: place
    for place, keys in (
        ("inside rate_limit", _LIMIT_KEYS),
        ("on a descriptor", _DESCRIPTOR_KEYS),
        ("at the top of the file", _ROOT_KEYS),
    )
    for key in keys
}
_OF_THE_RULE = ("shadow_mode", "quota_mode", "detailed_metric", "metadata")
"""Keys of a descriptor that act on its own rate_limit and on nothing else."""

_BOUNDED = ("unit", "requests_per_unit", "unit_multiplier", "algorithm", "count_denied")
"""Keys of a limit that mean nothing where there is none."""

_UNITS = {unit.name.lower(): unit for unit in Unit}
_UNSAFE_IN_NAME = re.compile(r'[^\x20-\x7e]|["\\]')
_DOMAIN_LINE = re.compile(rb"^domain[ \t]*:[ \t]*[\"']?([^\"'#\r\n]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """What one file says. If it is bad, `nodes` are not to be used and `domain` is a guess."""

    name: str
    domain: str
    nodes: tuple[Node, ...]
    problems: tuple[Problem, ...]

    @property
    def bad(self) -> bool:
        """Whether envoyproxy/ratelimit would refuse the file as well."""
        return not all(problem.tolerated for problem in self.problems)


def parse(
    name: str,
    data: bytes,
    tallies: Callable[[str, str], Tallies] = lambda _domain, _path: Tallies(),
) -> RuleFile:
    """Reads one rule file; never raises for what is in it.

    `tallies` gives the tallies of a rule by domain and path.
    """
    reader = Reader(name)
    try:
        root = reader.document(data, _ROOT_KEYS, _PLACES)
        domain = root.text("domain")
        if not domain:
            state = "empty" if "domain" in root else "missing"
            root.report("no_domain", f"domain is {state}: name what callers ask for")
        nodes = _Language(domain, tallies).descriptors(root)
    except Unreadable:
        guess = _DOMAIN_LINE.search(data)
        domain = guess[1].decode("utf-8", "replace").strip() if guess else ""
        nodes = ()
    return RuleFile(name, domain, nodes, tuple(reader.problems))


class _Language:
    """Turns the fields of one domain's file into nodes and rules."""

    def __init__(self, domain: str, tallies: Callable[[str, str], Tallies]) -> None:
        self._domain = domain
        self._tallies = tallies

    def descriptors(self, fields: Fields) -> tuple[Node, ...]:
        seen: dict[tuple[str, str], Node] = {}
        for item in fields.items("descriptors", _DESCRIPTOR_KEYS, deeper=True):
            node = self._descriptor(item)
            if not node.key:
                continue
            other = seen.setdefault((node.key, node.value), node)
            if other is not node:
                message = f"the same key and value stand at {other.source}: merge the two"
                item.report("duplicate", message)
        return tuple(seen.values())

    def _descriptor(self, fields: Fields) -> Node:
        key, value = fields.text("key"), fields.text("value")
        fields.path = (*fields.path[:-1], (key, value))
        if not key:
            fields.report("no_key", "key is missing or empty: every descriptor needs one")
        share_threshold = fields.switch("share_threshold")
        if share_threshold and "*" not in value:
            fields.report(
                "share_threshold",
                "share_threshold needs a `*` in value: without one there is nothing to share",
                key="share_threshold",
            )
        rule = None
        if fields.given("rate_limit"):
            rule = self._rule(fields, fields.mapping("rate_limit", _LIMIT_KEYS))
        else:
            _report_idle(fields)
        below = self.descriptors(fields)
        return Node(
            key,
            value,
            Pattern.of(value) if "*" in value else None,
            rule,
            Level.of(below) if below else None,
            share_threshold,
            fields.switch("value_to_metric"),
            fields.source(),
        )

    def _rule(self, descriptor: Fields, limit: Fields) -> Rule:
        name = limit.text("name")
        shown = _UNSAFE_IN_NAME.sub("_", name)
        if shown != name:
            limit.report(
                "name",
                "name is shown in headers: use printable ASCII without quotes and backslashes; "
                f"callers see {shown!r}",
                value="name",
                tolerated=True,
            )
        path = path_text(descriptor.path)
        return Rule(
            domain=self._domain,
            path=path,
            limit=_limit(descriptor, limit, shown) if limit.readable else None,
            name=name,
            replaces=_replaces(limit, name),
            algorithm=limit.one_of("algorithm", ALGORITHMS, "fixed_window"),
            shadow_mode=descriptor.switch("shadow_mode"),
            quota_mode=descriptor.switch("quota_mode"),
            count_denied=limit.switch("count_denied"),
            failure_policy=_failure_policy(limit),
            detailed_metric=descriptor.switch("detailed_metric"),
            metadata=descriptor.plain("metadata"),
            source=descriptor.source("rate_limit"),
            tallies=self._tallies(self._domain, path),
        )


def _report_idle(fields: Fields) -> None:
    for name in _OF_THE_RULE:
        if name in fields:
            message = f"{name} does nothing on a descriptor without rate_limit: put it beside one"
            fields.report("no_effect", message, key=name, tolerated=True)


def _limit(descriptor: Fields, fields: Fields, name: str) -> Limit | None:
    if fields.switch("unlimited"):
        _check_unlimited(fields)
        return None
    if not fields.given("unit"):
        message = f"unit is missing: allowed are {listed(_UNITS)}"
        descriptor.report("unit", message, key="rate_limit")
    if not fields.given("requests_per_unit"):
        descriptor.report(
            "requests_per_unit",
            "requests_per_unit is missing, which denies everything: write a number from 0 to "
            f"{MAX_ADDEND}, or unlimited: true",
            key="rate_limit",
            tolerated=True,
        )
    unit = _UNITS[fields.one_of("unit", _UNITS, "second")]
    multiplier = fields.number("unit_multiplier", 1)
    limit = Limit(fields.number("requests_per_unit", 0), unit, multiplier, name)
    if limit.window_us >= _MAX_WINDOW_US:
        window = f"{multiplier} {unit.name.lower()}s"
        message = f"a window of {window} is too long: at most 285 years"
        fields.report("unit_multiplier", message, value="unit_multiplier")
    return limit


def _check_unlimited(fields: Fields) -> None:
    for name in _BOUNDED:
        if name in fields:
            misspelt = name == "unit" and fields.raw(name).lower() not in _UNITS
            fields.report(
                "unlimited",
                f"{name} and unlimited: true exclude each other: remove one",
                key=name,
                tolerated=misspelt or name == "requests_per_unit",
            )


def _replaces(fields: Fields, own: str) -> frozenset[str]:
    names = set()
    for item in fields.items("replaces", _REPLACES_KEYS, deeper=False):
        name = item.text("name")
        if not name:
            item.report("replaces", "write each replaced rule as - name: …")
        elif name == own:
            item.report("replaces", f"{name!r} cannot replace itself")
        else:
            names.add(name)
    return frozenset(names)


def _failure_policy(fields: Fields) -> FailurePolicy | None:
    if not fields.given("failure_policy"):
        return None
    if fields.raw("failure_policy").lower() == "local":
        message = f"failure_policy local comes later: allowed are {listed(FailurePolicy)}"
        fields.report("failure_policy", message, value="failure_policy")
        return None
    word = fields.one_of("failure_policy", list(map(str, FailurePolicy)), "open")
    return FailurePolicy(word)
