"""What follows from a rule alone: worked out once, from the rule and the settings."""

from __future__ import annotations

import pytest

from ratelimit_service.limiter.compiled import CompiledRule
from ratelimit_service.limiter.compiler import Compiler
from ratelimit_service.limiter.fast_path import stands_alone, takes_fast_path
from ratelimit_service.model import Entry, FailurePolicy, Limit, Mode, Unit
from ratelimit_service.rules.match import look_up
from ratelimit_service.rules.tree import Domain, MatchedNode, Rule, Snapshot
from ratelimit_service.settings import Settings
from tests.limiter.planned import domain, plans_of, tally_of

FIVE = "{unit: minute, requests_per_unit: 5}"


def compiled(rule: str, settings: Settings | None = None) -> CompiledRule:
    here = domain(rule)
    (node,) = nodes_of(here)
    return Compiler(settings or Settings()).rule(here, node)


def nodes_of(here: Domain) -> list[MatchedNode]:
    """The nodes of a domain as requests meet them."""
    matched = [look_up(here.root, Entry(node.key, node.value)) for node in here.root.nodes]
    return [node for node in matched if node is not None]


def test_compiled_once_for_a_snapshot() -> None:
    """A rule is compiled once while its snapshot is in force, and anew for the next."""
    here, compiler = domain(f"{{key: a, rate_limit: {FIVE}}}"), Compiler(Settings())
    (node,) = nodes_of(here)

    compiler.renew(Snapshot(1, {"d": here}))
    first = compiler.rule(here, node)
    compiler.renew(Snapshot(1, {"d": here}))
    again = compiler.rule(here, node)
    compiler.renew(Snapshot(2, {"d": here}))
    later = compiler.rule(here, node)

    assert first is again
    assert first is not later
    assert first.limits[0].spec is later.limits[0].spec


@pytest.mark.parametrize(
    ("own", "setting", "policy"),
    [
        ("", FailurePolicy.CLOSED, FailurePolicy.CLOSED),
        (", failure_policy: local", FailurePolicy.CLOSED, FailurePolicy.LOCAL),
        (", failure_policy: error", FailurePolicy.OPEN, FailurePolicy.ERROR),
    ],
)
def test_failure_policy(own: str, setting: FailurePolicy, policy: FailurePolicy) -> None:
    """A rule's own failure policy holds, else that of the settings."""
    rule = f"{{key: a, rate_limit: {{unit: minute, requests_per_unit: 5{own}}}}}"

    assert compiled(rule, Settings(failure_policy=setting)).policy is policy


def test_shadow_denies_by_no_policy() -> None:
    """A rule in shadow mode never denies, also without a store."""
    rule = f"{{key: a, shadow_mode: true, rate_limit: {FIVE}}}"

    shadow = compiled(rule, Settings(failure_policy=FailurePolicy.CLOSED))

    assert shadow.policy is FailurePolicy.OPEN


def test_near_is_a_share_of_the_limit() -> None:
    """The near-limit ratio of the settings tells from which count on hits are near."""
    rule = "{key: a, rate_limit: {unit: minute, requests_per_unit: 10}}"

    for ratio, near in ((0.8, 8), (0.5, 5), (1.0, 10)):
        (limit,) = compiled(rule, Settings(near_limit_ratio=ratio)).limits
        assert (limit.near_limit, limit.near_remaining) == (near, 10 - near)


def test_equal_limits_are_compiled_once() -> None:
    """Rules with equal limits share what follows from these, and others do not."""
    limits = [FIVE, FIVE, "{unit: minute, requests_per_unit: 5, name: n}"]
    here = domain(
        *(f"{{key: a, value: v{at}, rate_limit: {limit}}}" for at, limit in enumerate(limits))
    )
    compiler = Compiler(Settings())

    one, other, named = (compiler.rule(here, node) for node in nodes_of(here))

    assert one.limits is other.limits
    assert [each.limits[0].limit.name for each in (one, named)] == ["", "n"]


def test_each_compiler_for_itself() -> None:
    """What one compiler made of a rule is not taken by another, with other settings."""
    here = domain(f"{{key: a, rate_limit: {FIVE}}}")
    (node,) = nodes_of(here)
    plain, quotas = Compiler(Settings()), Compiler(Settings(quota_mode=True))

    modes = [compiler.rule(here, node).mode for compiler in (plain, quotas, plain)]

    assert modes == [Mode.ENFORCED, Mode.QUOTA, Mode.ENFORCED]


def test_values_have_tallies_of_their_own() -> None:
    """A rule with a metric for each value has a tally for each, and nothing else."""
    here, compiler = (
        domain(f"{{key: a, detailed_metric: true, rate_limit: {FIVE}}}"),
        Compiler(Settings()),
    )
    (node,) = nodes_of(here)

    one, other = compiler.by_value(node, "x"), compiler.by_value(node, "y")

    assert one.tally is not other.tally
    assert one.declared is other.declared is node.declared
    assert compiler.by_value(node, "x") is one


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        ("", True),
        (", metadata: {a: 1}", True),
        (", shadow_mode: true", False),
        (", quota_mode: true", False),
        (", answer: {headers: ietf}", False),
    ],
)
def test_what_rules_come_to_is_shared(more: str, shared: bool) -> None:
    """Rules that come to the same share it, however many they are, and tally for themselves."""
    here = domain(
        f"{{key: a, value: x, rate_limit: {FIVE}}}",
        f"{{key: a, value: y, rate_limit: {FIVE}{more}}}",
    )
    one, other = plans_of(Snapshot(1, {"d": here}), "a=x", "a=y")

    assert (one.rule is other.rule) == shared
    assert one.declared is not other.declared
    assert tally_of(one) is not tally_of(other)


@pytest.mark.parametrize(
    ("rule", "usual", "alone"),
    [
        (f"{{key: a, rate_limit: {FIVE}}}", True, True),
        (f"{{key: a, shadow_mode: true, rate_limit: {FIVE}}}", True, True),
        (f"{{key: a, detailed_metric: true, rate_limit: {FIVE}}}", True, True),
        (f"{{key: a, on_limit: enqueue, rate_limit: {FIVE}}}", True, True),
        (f"{{key: a, quota_mode: true, rate_limit: {FIVE}}}", True, False),
        (f"{{key: a, rate_limits: [{FIVE}, {{unit: hour, requests_per_unit: 9}}]}}", False, True),
        ("{key: a, rate_limit: {unit: minute, requests_per_unit: 5, soft: 20%}}", False, True),
        ("{key: a, rate_limit: {unlimited: true}}", False, True),
    ],
)
def test_usual(rule: str, usual: bool, alone: bool) -> None:
    """A rule is usual with one limit and nothing that short ways do not do."""
    (declared,) = domain(rule).rules

    assert takes_fast_path(declared, declared.limits) == usual
    assert stands_alone(declared) == alone


def test_what_short_ways_do_not_know_is_unusual() -> None:
    """A limit that sets anything else, and a rule without just one limit, take the long way."""
    limit = Limit(5, Unit.MINUTE)
    plain = Rule("d", "a", (limit,))

    assert takes_fast_path(plain, plain.limits)
    assert takes_fast_path(None, (limit,))
    assert not takes_fast_path(None, (limit._replace(soft_ppm=1),))
    assert not takes_fast_path(plain, ())
    assert not takes_fast_path(plain, (limit, limit))
    assert not stands_alone(Rule("d", "a", (limit,), replaces=frozenset(("b",))))


def test_global_shadow_mode_is_unusual() -> None:
    """Under the global shadow mode every answer takes the long way, which tallies it."""
    rule = f"{{key: a, rate_limit: {FIVE}}}"

    assert compiled(rule).fast_path
    assert not compiled(rule, Settings(shadow_mode=True)).fast_path
