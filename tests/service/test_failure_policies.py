"""What is decided without a count: by the failure policy, or for want of rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.model import (
    Code,
    Decision,
    FailurePolicy,
    Hit,
    Outcome,
    Request,
    Status,
    Unit,
)
from ratelimit_service.service import Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes
from tests.service.asking import Away, descriptor
from tests.service.deciding import OK, OVER, Ask, codes
from tests.stores.cases import MINUTE

POLICIES = """
domain: edge
descriptors:
  - {key: o, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: open}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: closed}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: error}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: s
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, failure_policy: closed}
  - {key: free, rate_limit: {unlimited: true}}
"""


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["o=x"], OK),
        (["c=x"], OVER),
        (["d=x"], OK),
        (["s=x"], OK),
        (["o=x", "c=x"], OVER),
        (["free=x", "unknown=x"], OK),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else value.name,
)
async def test_failure_policy(asking: Ask, asked: list[str], code: Code) -> None:
    """Without an outcome closed denies and open allows; such a status shows no limit."""
    service = asking(POLICIES, store=Away())

    decision = await service.ask(*asked)

    assert decision.code is code
    assert [status.limit for status in decision.statuses] == [None] * len(asked)


async def test_failure_policy_error(asking: Ask) -> None:
    """`error` fails the whole call as UNAVAILABLE, whatever the other policies say."""
    service = asking(POLICIES, store=Away())

    answer = await service.answer(
        Request("edge", (descriptor("c=x"), descriptor("e=x"), descriptor("o=x")))
    )

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.UNAVAILABLE


class HalfAway(Away):
    """A store that answers for counters of hours only, and these are over."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        full = Outcome(True, 0, MINUTE, 0)
        return [full if hit.spec.window_us > MINUTE else None for hit in hits]


@pytest.mark.parametrize("order", ["minute hour", "hour minute"])
async def test_limit_that_is_over_denies_though_another_is_not_counted(
    asking: Ask, order: str
) -> None:
    """Where one of two limits has no count and the other is over, the other denies."""
    limits = "".join(f"\n  - {{unit: {unit}, requests_per_unit: 5}}" for unit in order.split())
    rules = f"domain: edge\ndescriptors:\n- key: a\n  rate_limits:{limits}\n"
    service = asking(rules, store=HalfAway())

    decision = await service.ask("a=x")

    assert decision.code is OVER
    (status,) = decision.statuses
    assert status.code is OVER
    assert status.limit is not None
    assert status.limit.unit is Unit.HOUR
    assert (service.tally("a").over, service.tally("a").by_policy) == (1, 0)


async def test_default_failure_policy(asking: Ask) -> None:
    """--failure-policy holds where a rule says nothing, and what it decides is counted."""
    service = asking(POLICIES, store=Away(), settings=Settings(failure_policy=FailurePolicy.CLOSED))

    decision = await service.ask("d=x", descriptor("d=y", addend=2, refund=True))

    assert codes(decision) == [OVER, OK]
    assert service.stats.policy_decisions["closed"] == 2
    assert service.tally("d").by_policy == 3


class Here(Away):
    """A store that is away, whose first hit of two is counted here alone."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        over = [hit.key.endswith(b"4:full") for hit in hits]
        return [Outcome(each, 3, MINUTE, 1 - each, local=True) for each in over]


async def test_counted_here_alone(asking: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """What the policy `local` decides shows no limit, and is seen in metrics, metadata and log."""
    service = asking(POLICIES, store=Here(), settings=Settings(failure_policy=FailurePolicy.LOCAL))

    passed, denied = await service.ask("d=x"), await service.ask("d=full")

    told = {"by_policy": [{"descriptor": 0.0, "policy": "local"}]}
    assert passed == Decision(OK, (Status(OK),), metadata=told)
    assert denied == Decision(OVER, (Status(OVER),), metadata=told)
    assert service.stats.policy_decisions["local"] == 2
    assert (service.tally("d").by_policy, service.tally("d").over) == (2, 0)
    assert caplog.text.count("decided by failure policy") == 1


@pytest.mark.parametrize(
    ("policy", "code"), [(FailurePolicy.OPEN, OK), (FailurePolicy.CLOSED, OVER)]
)
async def test_domain_that_never_loaded(asking: Ask, policy: FailurePolicy, code: Code) -> None:
    """Requests of a domain whose file is bad from the start follow the failure policy."""
    service = asking(
        "domain: edge\ndescriptors: [{key: a, vlaue: b}]", settings=Settings(failure_policy=policy)
    )

    decision = await service.ask("a=b")

    told = {"by_policy": [{"descriptor": 0.0, "policy": policy}]}
    assert decision == Decision(code, (Status(code),), metadata=told)


@pytest.mark.parametrize(
    ("policy", "code"), [(FailurePolicy.OPEN, OK), (FailurePolicy.CLOSED, OVER)]
)
async def test_no_rules_ever_loaded(
    asking: Ask, policy: FailurePolicy, code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    """If no file could be read, nobody knows which domains there are: the policy decides all."""
    service = asking("descriptors: [", settings=Settings(failure_policy=policy))

    decision = await service.ask("a=b", domain="any")

    told = {"by_policy": [{"descriptor": 0.0, "policy": policy}]}
    assert decision == Decision(code, (Status(code),), metadata=told)
    assert "its requests are allowed" not in caplog.text


async def test_no_rules_ever_loaded_and_policy_error(asking: Ask) -> None:
    """Under the policy `error` such a request is refused, as envoyproxy/ratelimit does."""
    service = asking("descriptors: [", settings=Settings(failure_policy=FailurePolicy.ERROR))

    answer = await service.answer(Request("any", (descriptor("a=b"),)))

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.UNAVAILABLE
    assert "rules of this domain have never loaded" in answer.message
