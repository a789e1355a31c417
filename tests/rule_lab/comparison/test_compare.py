"""What is told of a change of rules, change by change."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest

from ratelimit_service.rule_lab.comparison import Change, ChangeKind, compare
from ratelimit_service.rules.tree import Domain
from tests.rule_lab.comparison.rule_files import (
    ADDED,
    CHANGED,
    END_MINUTE,
    LOOSENED,
    REMOVED,
    TIGHTENED,
    File,
    domains,
    of,
)

_BASE = {
    "domain": "d",
    "descriptors": [
        {"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": 10, "name": "n"}},
        {
            "key": "k",
            "value": "a*",
            "share_threshold": True,
            "rate_limit": {
                "unit": "second",
                "requests_per_unit": 5,
                "burst": 9,
                "algorithm": "token_bucket",
            },
        },
        {
            "key": "k",
            "value": "*b",
            "rate_limit": {"unit": "hour", "requests_per_unit": 7, "name": "other"},
        },
        {
            "key": "m",
            "value": "x",
            "rate_limits": [
                {"unit": "second", "requests_per_unit": 1},
                {"unit": "day", "requests_per_unit": 9},
            ],
            "descriptors": [{"key": "m", "rate_limit": {"unlimited": True}}],
        },
    ],
}


def mutated(path: str, value: object) -> File:
    """The base with one thing changed; None takes a key away."""
    file: Any = deepcopy(_BASE)
    *way, last = path.split(".")
    at = file
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    if value is None:
        del at[int(last) if last.isdigit() else last]
    elif last == "+":
        at.append(value)
    else:
        at[last] = value
    return dict(file)


_K = "descriptors.0.rate_limit"
_A = "descriptors.1.rate_limit"
_LIST = "descriptors.3.rate_limits"
_MONDAYS = "{days: [mon], from: 00:00, to: 24:00, time_zone: UTC}"


@pytest.mark.parametrize(
    ("path", "value", "kind", "old", "new", "anew"),
    [
        (f"{_K}.requests_per_unit", 4, TIGHTENED, "10 per minute", "4 per minute", ""),
        (f"{_K}.requests_per_unit", 40, LOOSENED, "10 per minute", "40 per minute", ""),
        (f"{_K}.unit", "hour", TIGHTENED, "10 per minute", "10 per hour",
         "the window is 1 hour, not 1 minute"),
        (f"{_K}.unit_multiplier", 2, TIGHTENED, "10 per minute", "10 per 2 minutes",
         "the window is 2 minutes, not 1 minute"),
        (f"{_K}.algorithm", "sliding_log", CHANGED, "10 per minute", "10 per minute, sliding_log",
         "hits are counted by sliding_log, not by fixed_window"),
        (f"{_K}.anchor", "first_hit", CHANGED, "10 per minute", "10 per minute, from the first hit",
         "anchor is first_hit, not clock"),
        (f"{_K}.soft", "50%", LOOSENED, "10 per minute",
         "10 per minute, 5 more with a warning", ""),
        (f"{_K}.count_denied", True, TIGHTENED, "10 per minute",
         "10 per minute, denied hits count", ""),
        (f"{_K}.name", "mine", CHANGED, "name n", "name mine", ""),
        (f"{_K}.failure_policy", "closed", CHANGED, "", "failure_policy closed", ""),
        (f"{_K}.replaces", [{"name": "other"}], CHANGED, "", "replaces other", ""),
        (_K, {"unlimited": True}, LOOSENED, "10 per minute", "unlimited", ""),
        (f"{_LIST}.1.per", "calendar", CHANGED, "9 per day",
         "9 per day, by the calendar of UTC", "per is calendar, not none"),
        (f"{_K}.group", {"ipv6": 64}, CHANGED, "10 per minute",
         "10 per minute, addresses grouped by {ipv6: 64}",
         "it counts addresses grouped by {ipv6: 64}, not each address by itself"),
        ("descriptors.0.group", {"ipv6": 64}, CHANGED, "", "k grouped by {ipv6: 64}",
         "addresses are grouped otherwise"),
        (f"{_K}.when", {"days": "mon"}, LOOSENED, "10 per minute",
         f"10 per minute, only when {_MONDAYS}", f"it holds when {_MONDAYS}, not always"),
        (f"{_K}.pool", "p", TIGHTENED, "10 per minute", "10 per minute, of pool p",
         "it counts pool p, not each caller by itself"),
        ("descriptors.0.valid_until", "2027-01-31T18:00+01:00", CHANGED, "",
         "k valid until 2027-01-31T17:00Z", ""),
        ("descriptors.0.shadow_mode", True, LOOSENED, "enforced", "shadow: denies nobody", ""),
        ("descriptors.0.quota_mode", True, LOOSENED, "denies alone",
         "quota: denies only with all other quotas", ""),
        ("descriptors.0.metadata", {"a": 1}, CHANGED, "", 'metadata {"a": 1.0}', ""),
        ("descriptors.0.on_limit", "enqueue", CHANGED, "", "on_limit enqueue", ""),
        ("descriptors.0.detailed_metric", True, CHANGED, "", "metrics by k", ""),
        ("descriptors.0.value_to_metric", True, CHANGED, "", "metrics by k", ""),
        (f"{_A}.burst", 8, TIGHTENED, "5 per second, token_bucket, burst 9",
         "5 per second, token_bucket, burst 8", ""),
        (f"{_A}.requests_per_unit", 6, LOOSENED, "5 per second, token_bucket, burst 9",
         "6 per second, token_bucket, burst 9", ""),
        (_A, {"unit": "second", "requests_per_unit": 9, "algorithm": "token_bucket", "burst": 5},
         CHANGED, "5 per second, token_bucket, burst 9", "9 per second, token_bucket, burst 5", ""),
        (f"{_A}.refill", "stepped", CHANGED, "5 per second, token_bucket, burst 9",
         "5 per second, token_bucket, burst 9, refilled at once",
         "refill is stepped, not continuous"),
        ("descriptors.1.share_threshold", None, LOOSENED, "one counter for all values of k",
         "a counter for each value", "each value of k has a counter of its own now"),
        ("descriptors.2.share_threshold", True, TIGHTENED, "a counter for each value",
         "one counter for all values of k", "all values of k share one counter now"),
        (f"{_LIST}.1", None, LOOSENED, "9 per day", "", ""),
        (f"{_LIST}.+", {"unit": "week", "requests_per_unit": 20}, TIGHTENED, "", "20 per week", ""),
        (f"{_LIST}.1.unit", "week", TIGHTENED, "9 per day", "9 per week",
         "the window is 1 week, not 1 day"),
        ("descriptors.3.descriptors.0.rate_limit", {"unit": "day", "requests_per_unit": 1},
         TIGHTENED, "unlimited", "1 per day", ""),
    ],
)  # fmt: skip
def test_one_thing_changed(
    path: str, value: object, kind: ChangeKind, old: str, new: str, anew: str
) -> None:
    """Each thing that a rule says is told when it changes, with both sides, and nothing else."""
    (change,) = compare(of(_BASE), of(mutated(path, value)))

    assert change.kind is kind
    assert [(each.kind, each.old, each.new) for each in change.details] == [(kind, old, new)]
    assert change.anew == ((anew,) if anew else ())


@pytest.mark.parametrize("key", ["shadow_mode", "quota_mode", "on_limit"])
def test_modes_of_what_denies_nobody(key: str) -> None:
    """A mode means nothing where there is no limit, and something as soon as there is one."""
    mode = {key: "enqueue" if key == "on_limit" else True}
    unlimited = {"key": "k", "rate_limit": {"unlimited": True}}
    limited = {"key": "k", "rate_limit": {"unit": "day", "requests_per_unit": 5}, **mode}
    plain, with_mode, new = (
        of({"domain": "d", "descriptors": [each]})
        for each in (unlimited, unlimited | mode, limited)
    )

    assert compare(plain, with_mode) == compare(with_mode, plain) == []
    (change,) = compare(plain, new)
    assert len(change.details) == 2
    assert compare(with_mode, new)[0].details == change.details


def _of_limit(**limit: object) -> Mapping[str, Domain]:
    limit = {"unit": "minute", "requests_per_unit": 10, **limit}
    return of({"domain": "d", "descriptors": [{"key": "k", "rate_limit": limit}]})


@pytest.mark.parametrize(
    ("old", "new", "kind", "anew"),
    [
        ({"pool": "p"}, {"pool": "p", "reserve": "20%"}, TIGHTENED, False),
        ({"pool": "p"}, {"pool": "q", "reserve": "20%"}, CHANGED, True),
        ({"when": {"days": "mon"}}, {"when": {"days": "tue"}, "requests_per_unit": 9}, CHANGED,
         True),
        ({"when": {"days": "mon"}, "requests_per_unit": 11}, {}, TIGHTENED, True),
        ({"when": {"days": "mon"}}, {"requests_per_unit": 11}, CHANGED, True),
        ({}, {"when": {"days": "mon-sun"}}, CHANGED, True),
        ({"when": {"from": "08:00", "to": "08:00"}}, {}, CHANGED, True),
        ({"when": {"days": "mon-sun"}}, {"when": {"days": "mon"}}, LOOSENED, True),
    ],
)  # fmt: skip
def test_times_and_pools(old: File, new: File, kind: ChangeKind, anew: bool) -> None:
    """Other times and another pool are neither tighter nor looser, and count anew."""
    (change,) = compare(_of_limit(**old), _of_limit(**new))

    assert (change.kind, bool(change.anew)) == (kind, anew)


def _of_limits(*limits: File) -> Mapping[str, Domain]:
    return of({"domain": "d", "descriptors": [{"key": "k", "rate_limits": list(limits)}]})


def test_limits_that_pay_in_turn() -> None:
    """One more limit that can pay loosens; what it counts by is told."""
    first = {"unit": "day", "requests_per_unit": 5, "name": "a"}
    second = {"unit": "hour", "requests_per_unit": 5, "name": "b"}

    def rules(*limits: Mapping[str, object], charge: str = "first") -> File:
        rule = {"key": "k", "charge": charge, "rate_limits": list(limits)}
        return {"domain": "d", "shard_by": "domain", "descriptors": [rule]}

    def told(old: File, new: File) -> list[tuple[ChangeKind, str, str]]:
        (change,) = compare(of(old), of(new))
        return [(each.kind, each.old, each.new) for each in change.details]

    by_key = {**second, "count_by": ["k"], "unit": "week"}
    assert told(rules(first), rules(first, second)) == [(LOOSENED, "", "5 per hour")]
    assert told(rules(first, second), rules(first)) == [(TIGHTENED, "5 per hour", "")]
    assert told(rules(first), rules(first, by_key)) == [(LOOSENED, "", "5 per week, counted by k")]
    assert told(rules(first, charge="all"), rules(first)) == [(CHANGED, "", "charge first")]


def test_the_order_of_limits() -> None:
    """Of limits with as many hits left the first one is shown, so their order is told."""
    minute = {"unit": "minute", "requests_per_unit": 5}
    hour = {"unit": "hour", "requests_per_unit": 5}
    day = {"unit": "day", "requests_per_unit": 9}

    (change,) = compare(_of_limits(minute, hour, day), _of_limits(hour, minute, day))
    assert change.kind is CHANGED
    assert [(each.kind, each.old, each.new) for each in change.details] == [
        (
            CHANGED,
            "in this order: 5 per minute, 5 per hour, 9 per day",
            "in this order: 5 per hour, 5 per minute, 9 per day",
        )
    ]
    assert not change.anew
    (change,) = compare(_of_limits(minute, hour), _of_limits(day, minute, hour))
    assert [each.kind for each in change.details] == [TIGHTENED]


@pytest.mark.parametrize(
    ("own", "before", "after"),
    [
        (None, [REMOVED], []),
        ({"rate_limit": {"unit": "day", "requests_per_unit": 9}}, [LOOSENED], []),
        ({"valid_until": "2026-01-31T18:00Z"}, [REMOVED], []),
        ({"valid_until": "2028-01-31T18:00Z"}, [CHANGED], [ADDED]),
    ],
)
def test_what_ends(own: File | None, before: list[ChangeKind], after: list[ChangeKind]) -> None:
    """A descriptor that ends is there until its minute, and then no more."""
    limit = {"unit": "day", "requests_per_unit": 5}
    every = {"key": "k", "rate_limit": limit}
    ends = every | {"value": "a", "valid_until": "2027-01-31T18:00Z"}
    old = of({"domain": "d", "descriptors": [every, ends]})
    new = of({"domain": "d", "descriptors": [every, *([] if own is None else [ends | own])]})

    assert [change.kind for change in compare(old, new, END_MINUTE - 1)] == before
    changes = compare(old, new, END_MINUTE)
    assert [change.kind for change in changes] == after
    assert [len(change.callers) for change in changes] == [1] * len(after)


@pytest.mark.parametrize(
    ("old", "new", "others", "paths"),
    [
        ({}, {"valid_until": "2030-01-31T18:00Z"}, True, ["k=a"]),
        ({"valid_until": "2030-01-31T18:00Z"}, {}, True, ["k=a"]),
        ({"valid_until": "2030-01-31T18:00Z"}, {"valid_until": "2029-01-31T18:00Z"}, True, ["k=a"]),
        ({"valid_until": "2030-01-31T18:00Z"}, {"valid_until": "2030-01-31T19:00+01:00"}, True, []),
        ({}, {"valid_until": "2030-01-31T18:00Z"}, False, []),
    ],
)
def test_exceptions_that_end(old: File, new: File, others: bool, paths: list[str]) -> None:
    """The end of one without a rule is told, if its callers meet a rule from then on."""
    every = {"key": "k" if others else "m", "rate_limit": {"unit": "day", "requests_per_unit": 5}}
    before, after = (
        of({"domain": "d", "descriptors": [every, {"key": "k", "value": "a", **each}]})
        for each in (old, new)
    )

    changes = compare(before, after)

    assert texts_of(changes) == [("changed", path, []) for path in paths]
    for change in changes:
        (detail,) = change.details
        assert "valid until" in detail.old + detail.new


def test_networks_that_come() -> None:
    """Callers of one network that meet a rule of their own are told, by an address in it."""
    limit = {"rate_limit": {"unit": "minute", "requests_per_unit": 10}}
    nodes: list[File] = [{"key": "k", **limit}]
    own = {"key": "k", "value": "10.1.2.0/24", "group": {"ipv4": 24}}

    (change,) = compare(
        of({"domain": "d", "descriptors": nodes}), of({"domain": "d", "descriptors": [*nodes, own]})
    )

    assert texts_of([change]) == [("callers", "k", ["10.1.2.0: k -> None"])]


_LIMITED: File = {"rate_limit": {"unit": "day", "requests_per_unit": 5}}
_B: File = {"regex": ".*/b/c", **_LIMITED}
_REGEX_B = 'k=regex(".\\u002a/b/c")'
_REGEX: list[tuple[Sequence[File], Sequence[File], list[str]]] = [
    ([{"regex": "/health.*"}], [], ["/health1: None -> k"]),
    ([], [{"regex": "[0-9]{3}-(a|b)"}], ["111-a: k -> None"]),
    ([{"regex": "v(1|2)"}], [{"regex": "v(1|3)"}], ["v2: None -> k", "v3: k -> None"]),
    ([{"regex": "/a.*"}, _B], [_B, {"regex": "/a.*"}], [f"/a/b/c: None -> {_REGEX_B}"]),
    ([{"value": "/a*"}, _B], [_B, {"value": "/a*"}], [f"/a/b/c: None -> {_REGEX_B}"]),
    ([{"regex": "/x/.*"}, _B], [_B, {"regex": "/x/.*"}], [f"/x//b/c: None -> {_REGEX_B}"]),
    ([{"regex": "/x"}, _B], [_B, {"regex": "/x"}], []),
    (
        [{"cidr": "0.0.0.0/0"}, {"value": "10.*", **_LIMITED}],
        [{"value": "10.*", **_LIMITED}],
        ["0.0.0.0: None -> k", "10.0.0.1: None -> k=10.*"],
    ),
    (
        [{"cidr": "::/0"}, {"regex": "2001:.*", **_LIMITED}],
        [{"regex": "2001:.*", **_LIMITED}],
        ['2001::1: None -> k=regex("2001:.\\u002a")', "::: None -> k"],
    ),
]


@pytest.mark.parametrize(("old", "new", "callers"), _REGEX)
def test_regular_expressions(old: Sequence[File], new: Sequence[File], callers: list[str]) -> None:
    """Their callers are told, too, by values that they take."""
    limit = {"rate_limit": {"unit": "minute", "requests_per_unit": 10}}
    before, after = (
        of(
            {
                "domain": "d",
                "descriptors": [{"key": "k", **limit}, *({"key": "k", **each} for each in side)],
            }
        )
        for side in (old, new)
    )

    examples = [each for _, _, texts in texts_of(compare(before, after)) for each in texts]
    assert sorted(examples) == callers


_STAYS = "k=cidr(10.0.0.0/16,::/128)"
_EXEMPT: list[tuple[Sequence[File], Sequence[File], list[str]]] = [
    (
        [{"cidr": ["10.0.0.0/8", "192.168.0.0/16"]}],
        [{"cidr": "10.0.0.0/8"}],
        ["192.168.0.0: None -> k"],
    ),
    ([{"cidr": "10.0.0.0/8"}], [], ["10.1.0.0: None -> k"]),
    ([{"cidr": "::/0"}], [], ["::1: None -> k"]),
    ([], [{"cidr": "2001:db8::/32"}], ["2001:db8::: k -> None"]),
    (
        [{"value": "::1", "group": {"ipv4": 24}}],
        [{"value": "::1"}],
        ["0000:0000:0000:0000:0000:0000:0000:0001: None -> k"],
    ),
    (
        [{"value": "10.1.0.7"}],
        [{"value": "10.1.0.7", "group": {"ipv6": 64}}],
        ["::ffff:10.1.0.7: k -> None"],
    ),
    (
        [{"value": "*.0/24"}],
        [{"value": "*.0/24", "group": {"ipv4": 24}}],
        ["10.1.0.0: k -> None"],
    ),
    (
        [{"regex": "198.*/24"}],
        [{"regex": "198.*/24", "group": {"ipv4": 24}}],
        ["198.51.100.7: k -> None"],
    ),
    ([{"value": "10.0.0.0/24", "group": {"ipv4": 24}}], [], [f"10.0.0.255: None -> {_STAYS}"]),
]


@pytest.mark.parametrize(("old", "new", "callers"), _EXEMPT)
def test_networks_without_a_rule(
    old: Sequence[File], new: Sequence[File], callers: list[str]
) -> None:
    """Each network is looked at, also one whose first address goes to another descriptor."""
    limit = {"rate_limit": {"unit": "minute", "requests_per_unit": 10}}
    stay: list[File] = [
        {"key": "k", **limit},
        {"key": "k", "cidr": ["10.0.0.0/16", "::/128"], **limit},
        {"key": "k", "value": "10.0.0.0", **limit},
    ]
    before, after = (
        of({"domain": "d", "descriptors": [*stay, *({"key": "k", **each} for each in side)]})
        for side in (old, new)
    )

    assert [each for _, _, each in texts_of(compare(before, after))] == [callers]


def texts_of(changes: Sequence[Change]) -> list[tuple[str, str, list[str]]]:
    return [
        (
            change.kind,
            change.path,
            [
                f"{each.example[-1].value}: {each.old.path if each.old else None} -> "
                f"{each.new.path if each.new else None}"
                for each in change.callers
            ],
        )
        for change in changes
    ]


def test_rules_that_come_and_go() -> None:
    """A rule that is new or gone is told with the rules that its callers met, or meet now."""
    limit = {"rate_limit": {"unit": "second", "requests_per_unit": 1}}
    more = mutated("descriptors.+", {"key": "k", "value": "me", **limit})

    assert texts_of(compare(of(_BASE), of(more))) == [("added", "k=me", ["me: k -> k=me"])]
    assert texts_of(compare(of(more), of(_BASE))) == [("removed", "k=me", ["me: k=me -> k"])]


def test_order_that_matters() -> None:
    """Order is told where callers meet another rule by it."""
    nodes: Any = deepcopy(_BASE["descriptors"])
    nodes[1], nodes[2] = nodes[2], nodes[1]

    changes = compare(of(_BASE), of({"domain": "d", "descriptors": nodes}))

    assert texts_of(changes) == [("callers", "k=a*", ["anyb: k=a* -> k=*b"])]


def test_exceptions() -> None:
    """A node without a rule is told by the callers that are limited no more."""
    changes = compare(of(_BASE), of(mutated("descriptors.+", {"key": "k", "value": "me"})))

    assert texts_of(changes) == [("callers", "k", ["me: k -> None"])]


def test_domains_and_shards() -> None:
    """Domains that come and go are told, and counters that are placed elsewhere."""
    changes = compare(of(_BASE), of({**_BASE, "shard_by": "domain"}))
    assert [(each.kind, each.path, each.details[0].new) for each in changes] == [
        (CHANGED, "", "shard_by domain")
    ]
    assert "k, k=*b, k=a*, m=x" in changes[0].anew[0]

    kinds = [(each.kind, each.path) for each in compare({}, of(_BASE))]
    assert kinds[0] == (ADDED, "")
    assert {kind for kind, _ in kinds} == {ADDED}
    assert len(kinds) == 6


def test_many_rules_at_once() -> None:
    """Twice as many rules that come and go are twice the work, not four times."""

    def lists(shift: int, rules: int) -> Mapping[str, Domain]:
        rule = "- {{key: k, one_of: [v{}, v{}], rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
        nodes = "".join(rule.format(at, at + 1) for at in range(shift, shift + 2 * rules, 2))
        return domains(f"domain: d\ndescriptors:\n{nodes}")

    def lines(rules: int) -> int:
        old, new = lists(0, rules), lists(1, rules)
        seen = 0

        def look(_frame: object, event: str, _about: object) -> Any:
            nonlocal seen
            seen += event == "line"
            return look

        sys.settrace(look)
        try:
            changes = compare(old, new)
        finally:
            sys.settrace(None)
        assert len(changes) == 2 * rules
        return seen

    assert lines(200) < 2.2 * lines(100)
