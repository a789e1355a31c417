"""The quota field of denials: until when the same request is denied."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.model import Descriptor, FailurePolicy, Limit, Request, Unit
from ratelimit_service.service import Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.wire.messages import RateLimitResponse
from tests.service.asking import Asking, Away, descriptor
from tests.service.overriding import BAN, override
from tests.stores.cases import T

RULES = """
domain: edge
descriptors:
- {key: fixed, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: first, rate_limit: {unit: minute, requests_per_unit: 3, anchor: first_hit}}
- {key: calendar, rate_limit: {unit: day, requests_per_unit: 3, per: calendar}}
- {key: sliding, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window}}
- {key: log, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log}}
- {key: token, rate_limit: {unit: second, requests_per_unit: 3, algorithm: token_bucket}}
- {key: leaky, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: leaky_bucket}}
- key: several
  rate_limits: [{unit: second, requests_per_unit: 3}, {unit: hour, requests_per_unit: 3}]
- {key: slots, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: concurrency}}
- {key: held, rate_limit: {unit: minute, requests_per_unit: 3, reservations: true}}
- {key: counted, rate_limit: {unit: minute, requests_per_unit: 3, count_denied: true}}
- {key: queued, on_limit: enqueue, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
"""
TOLD = Settings(denial_quota=True)


async def ask(asking: Asking, *descriptors: str | Descriptor) -> RateLimitResponse:
    wanted = [descriptor(one) if isinstance(one, str) else one for one in descriptors]
    (body,) = await asking.service.decide([wire.encode_request(Request("edge", tuple(wanted)))])
    assert not isinstance(body, Refusal)
    return RateLimitResponse.FromString(body)


def until_us(answer: RateLimitResponse) -> int:
    """Until when an answer denies; 0 if it does not say."""
    assert answer.HasField("quota") == answer.quota.HasField("valid_until")
    assert answer.quota.requests == answer.HasField("quota")
    until = answer.quota.valid_until
    return until.seconds * 1_000_000 + until.nanos // 1_000


@pytest.mark.parametrize(
    "key", ["fixed", "first", "calendar", "sliding", "log", "token", "leaky", "several"]
)
async def test_a_denial_holds_exactly_as_long_as_it_says(tmp_path: Path, key: str) -> None:
    """The same request is denied until the last microsecond, and passes from then on."""
    asking = Asking(tmp_path, RULES, settings=TOLD)
    for step in range(4):
        asking.now_us += 123_457 * (step < 3)
        answer = await ask(asking, f"{key}=a")
        assert bool(until_us(answer)) == (step == 3)

    until = until_us(answer)
    assert until > asking.now_us
    asking.now_us = until - 1
    last = await ask(asking, f"{key}=a")
    asking.now_us = until
    first = await ask(asking, f"{key}=a")

    assert (last.overall_code, first.overall_code) == (2, 1)
    assert until_us(last) == until


async def test_the_longest_wait_counts(tmp_path: Path) -> None:
    """A request with several descriptors passes when all that deny it have room."""
    asking = Asking(tmp_path, RULES, settings=TOLD)
    both = [descriptor("token=a", addend=3), descriptor("fixed=a", addend=3)]
    await ask(asking, *both)

    answer = await ask(asking, *both, "shadow=a")

    assert until_us(answer) == T - T % 60_000_000 + 60_000_000


@pytest.mark.parametrize(
    "descriptors",
    [
        ["slots=a"],
        ["held=a"],
        ["counted=a"],
        ["queued=a"],
        ["quota=a"],
        ["fixed=a", "queued=b"],
        ["fixed=a", "counted=b"],
        ["fixed=a", descriptor("log=a", refund=True)],
        ["shadow=a"],
    ],
)
async def test_where_nothing_is_said(tmp_path: Path, descriptors: list[str | Descriptor]) -> None:
    """Not where a later try may pass, or where the service has to hear of each try."""
    asking = Asking(tmp_path, RULES, settings=TOLD)
    for key in ("slots", "held", "counted", "queued", "quota", "fixed", "shadow"):
        await ask(asking, descriptor(f"{key}=a", addend=3))

    answer = await ask(asking, *descriptors)

    assert answer.overall_code == (1 if descriptors == ["shadow=a"] else 2)
    assert until_us(answer) == 0


async def test_limits_that_callers_bring(tmp_path: Path) -> None:
    """They deny for as long as rules do."""
    asking = Asking(tmp_path, RULES, settings=TOLD)
    brought = Descriptor(descriptor("any=a").entries, Limit(1, Unit.SECOND))
    await ask(asking, brought)

    assert until_us(await ask(asking, brought)) == T - T % 1_000_000 + 1_000_000


@pytest.mark.parametrize("policy", [FailurePolicy.CLOSED, FailurePolicy.LOCAL])
async def test_failure_policies(tmp_path: Path, policy: FailurePolicy) -> None:
    """What is decided without the store can be other in a moment."""
    settings = Settings(denial_quota=True, failure_policy=policy)
    asking = Asking(tmp_path, RULES, settings=settings, store=Away())

    assert until_us(await ask(asking, "fixed=a")) == 0


async def test_bans(tmp_path: Path) -> None:
    """A ban can be taken back."""
    asking = Asking(tmp_path, RULES, settings=TOLD)
    asking.service.overrides.add([override(BAN, "fixed=a")])

    answer = await ask(asking, "fixed=a")

    assert (answer.overall_code, until_us(answer)) == (2, 0)


async def test_off_by_default(tmp_path: Path) -> None:
    """Nobody reads it unless asked, so no answer has a byte of it."""
    asking = Asking(tmp_path, RULES)
    await ask(asking, descriptor("fixed=a", addend=3))

    answer = await ask(asking, "fixed=a")

    assert (answer.overall_code, answer.HasField("quota")) == (2, False)
