"""From outcomes to statuses, tallies and decisions: exact numbers, as docs/rules.md has them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.limiter import DecisionContext, answer
from ratelimit_service.limiter.compiled import Plan
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.statuses import reported_limit, statuses_of
from ratelimit_service.limiter.tally import tally
from ratelimit_service.model import MAX_ADDEND, Code, Outcome, Status
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes, Settled, Verdict
from tests.limiter.planned import descriptor, over, plan_of, plans_of, tally_of, within

TEN = "{key: a, rate_limit: {unit: minute, requests_per_unit: 10}}"
TWO = (
    "{key: a, rate_limits: [{unit: minute, requests_per_unit: 5}, "
    "{unit: hour, requests_per_unit: 9}]}"
)


def status(plan: Plan, *outcomes: Outcome | None) -> Status:
    (reported,) = statuses_of([plan], [reported_limit(plan, outcomes)])
    return reported


def test_near_threshold() -> None:
    """Hits are near above a share of the limit, which is cut to a whole number."""
    assert [near_threshold(limit, 0.8) for limit in (0, 1, 10, 11, 100)] == [0, 0, 8, 8, 80]
    assert near_threshold(10, 1.0) == 10
    assert near_threshold(MAX_ADDEND, 0.8) <= MAX_ADDEND


@given(st.integers(0, MAX_ADDEND), st.floats(0.01, 1.0))
def test_near_threshold_is_a_share(limit: int, ratio: float) -> None:
    """The threshold is the limit's share, but for what 24 bits cannot hold."""
    assert abs(near_threshold(limit, ratio) - limit * ratio) <= 1 + limit / (1 << 22)


def test_status_of_a_count() -> None:
    """A status has its limit, what remains and the wait; one that is over has 0."""
    plan = plan_of(TEN, "a=x")
    limit = plan.rule.limits[0].limit

    assert status(plan, within(4)) == Status(Code.OK, limit, 4, 60_000_000)
    assert status(plan, over(3)) == Status(Code.OVER_LIMIT, limit, 0, 60_000_000)


def test_status_without_a_count() -> None:
    """No rule shows nothing, an unlimited one the largest number, and a policy its code alone."""
    none, unlimited = plans_of(["{key: a, rate_limit: {unlimited: true}}"], "b=x", "a=x")
    closed = plan_of(
        "{key: a, rate_limit: {unit: minute, requests_per_unit: 5, failure_policy: closed}}", "a=x"
    )

    assert status(none) == Status(Code.OK)
    assert status(unlimited) == Status(Code.OK, remaining=MAX_ADDEND)
    assert status(plan_of(TEN, "a=x"), None) == Status(Code.OK)
    assert status(closed, None) == Status(Code.OVER_LIMIT)


def test_status_of_a_shadow() -> None:
    """A rule in shadow mode that is over answers OK, and says that nothing remains."""
    plan = plan_of(
        "{key: a, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}", "a=x"
    )

    reported = status(plan, over())

    assert (reported.code, reported.remaining) == (Code.OK, 0)


def test_soft_part_does_not_remain() -> None:
    """What is admitted softly beyond the limit is not announced as remaining."""
    plan = plan_of("{key: a, rate_limit: {unit: minute, requests_per_unit: 10, soft: 20%}}", "a=x")

    assert [status(plan, within(remaining)).remaining for remaining in (12, 3, 2, 1, 0)] == [
        10,
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("outcomes", "speaks"),
    [
        ([within(4), within(3)], 1),
        ([within(3), within(3)], 0),
        ([within(0), over()], 1),
        ([over(wait_us=5), over(wait_us=6)], 1),
        ([over(wait_us=6), over(wait_us=6)], 0),
        ([None, over()], 1),
        ([None, within(4)], None),
        ([None, None], None),
        ([within(0), within(4).replaced(local=True)], 1),
    ],
)
def test_which_limit_speaks(outcomes: Sequence[Outcome | None], speaks: int | None) -> None:
    """One over with the longest wait, else the fewest remaining; none if one has no outcome."""
    plan = plan_of(TWO, "a=x")
    reported = reported_limit(plan, outcomes)

    assert (reported and reported.limit) == (None if speaks is None else plan.rule.limits[speaks])


def tallied(plan: Plan, *outcomes: Outcome | None, verdict: Verdict) -> dict[str, int]:
    """What one request adds to its rule's tally, without zeros."""
    tally([plan], [outcomes], verdict, Stats(), Settings())
    mine = tally_of(plan)
    names = ("hits", "within", "over", "near", "shadow", "uncharged", "refunded", "by_policy")
    return {name: count for name in names if (count := getattr(mine, name))}


@pytest.mark.parametrize(
    ("addend", "outcome", "verdict", "expected"),
    [
        (3, within(5, 3), Verdict.WITHIN, {"hits": 3, "within": 3}),
        (3, within(1, 3), Verdict.WITHIN, {"hits": 3, "within": 3, "near": 1}),
        (3, within(0, 3), Verdict.WITHIN, {"hits": 3, "within": 3, "near": 2}),
        (3, over(), Verdict.DENIED, {"hits": 3, "over": 3}),
        (3, over(2), Verdict.DENIED, {"hits": 3, "over": 3}),
        (3, over(1, charged=3), Verdict.DENIED, {"hits": 3, "over": 2, "near": 1}),
        (3, within(5, 0), Verdict.DENIED, {"hits": 3, "uncharged": 3}),
        (3, None, Verdict.ADMITTED, {"hits": 3, "by_policy": 3}),
        (3, within(5, 3).replaced(local=True), Verdict.ADMITTED, {"hits": 3, "by_policy": 3}),
    ],
)
def test_tally(
    addend: int, outcome: Outcome | None, verdict: Verdict, expected: dict[str, int]
) -> None:
    """Each hit is within, over, uncharged or decided by policy; near ones are beside these."""
    plan = plan_of(TEN, descriptor("a=x", addend=addend))

    assert tallied(plan, outcome, verdict=verdict) == expected


def test_refunds_are_tallied_as_given_back() -> None:
    """Of a refund only what was given back is tallied."""
    plan = plan_of(TEN, descriptor("a=x", addend=5, refund=True))

    assert tallied(plan, within(9, charged=2), verdict=Verdict.WITHIN) == {"refunded": 2}


def test_shadows_are_tallied_as_over() -> None:
    """What a shadow lets through is over, and shadow."""
    plan = plan_of(
        "{key: a, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}", "a=x"
    )

    assert tallied(plan, over(), verdict=Verdict.ADMITTED) == {"hits": 1, "over": 1, "shadow": 1}


def test_stats_of_decisions() -> None:
    """Every request is one decision, by its verdict; policies are counted by descriptor."""
    stats = Stats()
    plans = plans_of([TEN], "a=x", "a=y")

    for verdict in (Verdict.WITHIN, Verdict.ADMITTED, Verdict.DENIED):
        second = None if verdict is Verdict.ADMITTED else within(5)
        tally(plans, [[within(5)], [second]], verdict, stats, Settings())

    assert stats.decisions == {"ok": 2, "over_limit": 1}
    assert stats.policy_decisions == {"open": 1}


def test_answer_has_the_code_of_the_verdict() -> None:
    """What a request is told follows from the verdict alone, whatever its outcomes."""
    plans = plans_of([TEN], "a=x")

    for verdict, code in (
        (Verdict.WITHIN, Code.OK),
        (Verdict.ADMITTED, Code.OK),
        (Verdict.DENIED, Code.OVER_LIMIT),
    ):
        for outcome in (within(3), over()):
            settled = Settled([outcome], verdict)
            assert (
                answer(DecisionContext(None, plans, [[outcome]], settled, Settings(), int)).code
                is code
            )


def test_answer_lists_several_limits() -> None:
    """Metadata list each limit of a descriptor that has several, and none of one with one."""
    plans = plans_of([TWO, TEN.replace("key: a", "key: b")], "a=x", "b=y")
    outcomes: list[Outcomes] = [[within(4), over()], [within(9)]]

    decision = answer(
        DecisionContext(None, plans, outcomes, Settled([], Verdict.DENIED), Settings(), int)
    )

    listed = (decision.metadata or {})["limits"]
    assert isinstance(listed, list)
    assert [(each["descriptor"], each["remaining"], each["overLimit"]) for each in listed] == [
        (0, 4, False),
        (0, 0, True),
    ]


def test_answer_says_what_a_policy_decided() -> None:
    """Metadata name the descriptors without a count, with their policies."""
    plans = plans_of([TEN], "a=x", "a=y", "c=z")

    outcomes: list[Outcomes] = [[within(9)], [None], []]
    settled = Settled([], Verdict.ADMITTED)
    decision = answer(DecisionContext(None, plans, outcomes, settled, Settings(), int))

    assert decision.metadata == {"by_policy": [{"descriptor": 1, "policy": "open"}]}
