"""What is planned of requests: which hits on which counters, and what drops out."""

from __future__ import annotations

import pytest

from ratelimit_service.limiter import Planner
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.limiter.plan import settle_without_hits
from ratelimit_service.model import MAX_ADDEND, Entry, FailurePolicy, Limit, Mode, Request, Unit
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Verdict
from tests.limiter.planned import descriptor, domain, plan_of, plans_of, snapshot

FIVE = "{unit: minute, requests_per_unit: 5}"
RULE = f"{{key: a, rate_limit: {FIVE}}}"


@pytest.mark.parametrize(
    ("own", "of_request", "hits"), [(None, 0, 1), (None, 7, 7), (3, 7, 3), (0, 7, 0)]
)
def test_addend(own: int | None, of_request: int, hits: int) -> None:
    """A descriptor's own addend counts, else the request's, else 1; its own 0 is a peek."""
    (plan,) = plans_of([RULE], descriptor("a=x", addend=own), addend=of_request)

    assert (plan.addend, [hit.addend for hit in plan.hits]) == (hits, [hits])


def test_what_is_not_counted_has_no_hits() -> None:
    """No rule, an unlimited rule and an unknown domain leave nothing to charge."""
    none, unlimited = plans_of(["{key: a, rate_limit: {unlimited: true}}"], "b=x", "a=x")
    (unknown,) = plans_of(Snapshot(1, {"other": domain(RULE)}), "a=x")

    assert [each.rule.kind for each in (none, unlimited, unknown)] == [
        Kind.NO_RULE,
        Kind.UNLIMITED,
        Kind.NO_RULE,
    ]
    assert not none.hits + unlimited.hits + unknown.hits


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (FailurePolicy.OPEN, Verdict.ADMITTED),
        (FailurePolicy.CLOSED, Verdict.DENIED),
        (FailurePolicy.ERROR, Verdict.FAILED),
        (FailurePolicy.LOCAL, Verdict.ADMITTED),
    ],
)
def test_domain_that_never_loaded(policy: FailurePolicy, verdict: Verdict) -> None:
    """For a domain whose rules never loaded the failure policy decides, without any charge."""
    unserved = Snapshot(1, {}, frozenset(("d",)))

    plans = plans_of(unserved, "a=x", settings=Settings(failure_policy=policy))

    assert (plans[0].rule.kind, plans[0].hits) == (Kind.UNSERVED, ())
    assert settle_without_hits(plans).verdict is verdict


def test_replaced_rule_is_not_counted() -> None:
    """A limit that another one of the request replaces by name drops out."""
    named = "{key: a, rate_limit: {unit: minute, requests_per_unit: 5, name: usual}}"
    other = "{key: b, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: usual}]}}"

    replaced, replacing = plans_of([named, other], "a=x", "b=y")
    (alone,) = plans_of([named, other], "a=x")

    assert (replaced.rule.kind, replaced.hits) == (Kind.NO_RULE, ())
    assert len(replacing.hits) == len(alone.hits) == 1


def test_override_is_counted_in_place_of_the_rule() -> None:
    """A limit that a caller brings holds, under the key of its descriptor, also without a rule."""
    brought = Limit(3, Unit.HOUR)

    with_rule, without = plans_of(
        [RULE], descriptor("a=x", limit=brought), descriptor("b=x", limit=brought)
    )

    assert [plan.hits[0].spec.limit for plan in (with_rule, without)] == [3, 3]
    assert with_rule.hits[0].key != without.hits[0].key
    assert with_rule.declared is None


def test_limits_of_a_descriptor_are_joined() -> None:
    """Each limit of a rule gets a hit on a counter of its own; they are over together."""
    plan = plan_of(
        f"{{key: a, rate_limits: [{FIVE}, {{unit: hour, requests_per_unit: 9}}]}}",
        descriptor("a=x", addend=2),
    )

    assert [(hit.addend, hit.joined, hit.spec.limit) for hit in plan.hits] == [
        (2, False, 5),
        (2, True, 9),
    ]
    assert len({hit.key for hit in plan.hits}) == 2


def test_key_is_of_the_value_and_of_nothing_else() -> None:
    """Each value counts by itself; whatever stands beside a descriptor does not matter."""
    rules = snapshot(RULE, "{key: b, rate_limit: {unlimited: true}}")

    one, other = plans_of(rules, "a=x", "a=y")
    _, beside = plans_of(rules, "b=z", "a=x")

    assert one.hits != other.hits
    assert beside.hits == one.hits


@pytest.mark.parametrize(
    ("rule", "settings", "modes"),
    [
        (RULE, Settings(), (Mode.ENFORCED, Mode.ENFORCED)),
        (RULE, Settings(shadow_mode=True), (Mode.ENFORCED, Mode.SHADOW)),
        (RULE, Settings(quota_mode=True), (Mode.QUOTA, Mode.QUOTA)),
        (f"{{key: a, shadow_mode: true, rate_limit: {FIVE}}}", Settings(), (Mode.SHADOW,) * 2),
        (f"{{key: a, quota_mode: true, rate_limit: {FIVE}}}", Settings(), (Mode.QUOTA,) * 2),
    ],
)
def test_modes(rule: str, settings: Settings, modes: tuple[Mode, Mode]) -> None:
    """Rules and the global modes say what a hit may deny; global shadow mode comes last."""
    plan = plan_of(rule, "a=x", settings)

    assert (plan.rule.mode, plan.hits[0].mode) == modes


def test_quota_beside_a_shadow_denies_nothing() -> None:
    """Quotas deny only if all are over, so one that passes in any case makes shadows of others."""
    quota = f"{{key: a, quota_mode: true, rate_limit: {FIVE}}}"
    shadow = f"{{key: b, quota_mode: true, shadow_mode: true, rate_limit: {FIVE}}}"

    alone = plans_of([quota, shadow], "a=x")
    beside = plans_of([quota, shadow], "a=x", "b=y")

    assert [hit.mode for plan in alone for hit in plan.hits] == [Mode.QUOTA]
    assert [hit.mode for plan in beside for hit in plan.hits] == [Mode.SHADOW, Mode.SHADOW]


def test_refund_gives_back() -> None:
    """Negative hits are planned as a refund of the same counter."""
    charge, refund = plans_of(
        [RULE], descriptor("a=x", addend=2), descriptor("a=x", addend=2, refund=True)
    )

    assert (charge.refund, refund.refund) == (False, True)
    assert refund.hits == (charge.hits[0]._replace(refund=True),)


@pytest.mark.parametrize("value", ["", "x", "é" * 40, "v" * 200])
def test_template_plans_as_the_planner(value: str) -> None:
    """Whatever the last value, a template's plan is the one that the whole request gets."""
    rules = snapshot("{key: g, descriptors: [{key: a, rate_limit: " + FIVE + "}]}")
    planner = Planner(Settings())
    entries = (Entry("g", ""), Entry("a", value))

    (whole,) = planner.plan(Request("d", (descriptor(f"g=,a={value}"),), 4), rules)
    alone = planner.plan_alone(rules.domains["d"], entries, 4, rules)
    template = planner.template(rules.domains["d"], (entries[0], Entry("a", "y")), 4, rules)

    assert alone == whole
    if value:  # a descriptor without the value does not begin with the same bytes
        assert template is not None
        assert template.plan(value.encode()) == whole


def test_what_depends_on_others_is_not_planned_alone() -> None:
    """A quota is planned with its whole request only: what stands beside it may matter."""
    rules = snapshot(f"{{key: a, quota_mode: true, rate_limit: {FIVE}}}")
    planner, entries = Planner(Settings()), (Entry("a", "x"),)

    assert planner.plan_alone(rules.domains["d"], entries, 0, rules) is None
    assert planner.template(rules.domains["d"], entries, 0, rules) is None


def test_largest_addend() -> None:
    """The largest addend is planned as it is."""
    assert plan_of(RULE, descriptor("a=x", addend=MAX_ADDEND)).hits[0].addend == MAX_ADDEND
