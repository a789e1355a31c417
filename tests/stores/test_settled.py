"""The verdict that a request's outcomes come to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome
from ratelimit_service.stores import Verdict, judge
from tests.stores.cases import hit, refund

OPEN, CLOSED, ERROR, LOCAL = FailurePolicy
PASSED, OVER = Outcome(False, 4, 1, 1), Outcome(True, 0, 1, 0)
HERE, OVER_HERE = PASSED.replaced(local=True), OVER.replaced(local=True)

CHARGE, BACK = hit(), refund(hit())
JOINED = CHARGE._replace(joined=True)
GRANT = hit(mode=Mode.GRANT)
SHADOW, QUOTA = hit(mode=Mode.SHADOW), hit(mode=Mode.QUOTA)


def by(policy: FailurePolicy, one: Hit = CHARGE) -> Hit:
    return one._replace(policy=policy)


CASES = {
    "all below their limits": ([CHARGE, QUOTA, BACK], [PASSED] * 3, Verdict.WITHIN, -1),
    "one is over": ([CHARGE, CHARGE], [PASSED, OVER], Verdict.DENIED, 1),
    "a shadow is over": ([CHARGE, SHADOW], [PASSED, OVER], Verdict.ADMITTED, -1),
    "some quotas are over": ([QUOTA, QUOTA], [OVER, PASSED], Verdict.ADMITTED, -1),
    "all quotas are over": ([CHARGE, QUOTA, QUOTA], [PASSED, OVER, OVER], Verdict.DENIED, 1),
    "a second limit is over": ([CHARGE, JOINED], [PASSED, OVER], Verdict.DENIED, 1),
    "no count, open": ([by(OPEN)], [None], Verdict.ADMITTED, -1),
    "no count, closed": ([by(CLOSED)], [None], Verdict.DENIED, 0),
    "no count, error": ([CHARGE, by(ERROR)], [OVER, None], Verdict.FAILED, 1),
    "no count for what is given back": ([by(ERROR, BACK)], [None], Verdict.ADMITTED, -1),
    "no count for a shadow": ([by(CLOSED, SHADOW)], [None], Verdict.ADMITTED, -1),
    "a limit over, another without count": ([CHARGE, JOINED], [None, OVER], Verdict.DENIED, 1),
    "a limit over, behind its grant": (
        [CHARGE, GRANT, CHARGE],
        [PASSED] * 2 + [OVER],
        Verdict.DENIED,
        2,
    ),
    "a shadow over, behind its grant": ([GRANT, SHADOW], [PASSED, OVER], Verdict.ADMITTED, -1),
    "counted here": ([by(LOCAL)], [HERE], Verdict.ADMITTED, -1),
    "over here": ([by(LOCAL)], [OVER_HERE], Verdict.DENIED, 0),
}


@pytest.mark.parametrize(("hits", "outcomes", "verdict", "place"), CASES.values(), ids=CASES)
def test_verdict(
    hits: Sequence[Hit], outcomes: list[Outcome | None], verdict: Verdict, place: int
) -> None:
    """Each case comes to this verdict, decided by this hit."""
    found = judge(hits, outcomes)

    assert (found.outcomes, found.verdict, found.by) == (outcomes, verdict, place)
    assert not found.cached


HIT = st.builds(
    Hit,
    st.binary(max_size=1),
    st.just(CHARGE.spec),
    mode=st.sampled_from([Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA]),
    refund=st.booleans(),
    policy=st.sampled_from(FailurePolicy),
    joined=st.just(False),
)
OUTCOME = st.sampled_from([None, PASSED, OVER, HERE, OVER_HERE])


@given(st.lists(st.tuples(HIT, OUTCOME), max_size=5))
def test_who_decided(pairs: list[tuple[Hit, Outcome | None]]) -> None:
    """A request that does not pass has one hit that decided it; one that passes has none."""
    hits, outcomes = [one for one, _ in pairs], [other for _, other in pairs]

    settled = judge(hits, outcomes)

    place = settled.by
    assert (place >= 0) == (not settled.verdict.passes)
    if place >= 0:
        assert not hits[place].refund
        outcome = outcomes[place]
        denies = hits[place].policy in (CLOSED, ERROR) if outcome is None else outcome.over
        assert denies
