"""Requests in, decisions out: what the rule language and the caller's fields come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.model import (
    MAX_ADDEND,
    CountDenied,
    Decision,
    Limit,
    Request,
    Status,
    Unit,
)
from ratelimit_service.service import Refusal
from ratelimit_service.settings import Settings
from tests.service.asking import Asking, descriptor
from tests.service.deciding import OK, OVER, USER, Ask, codes
from tests.stores.cases import MINUTE


async def test_counted_to_the_limit(asking: Ask) -> None:
    """A status shows its limit, what is left and the seconds until the window ends."""
    service = asking(USER)
    limit = Limit(2, Unit.MINUTE, 1, "per-user")

    answers = [await service.ask("user=bob") for _ in range(3)]

    assert answers == [
        Decision(OK, (Status(OK, limit, 1, MINUTE),)),
        Decision(OK, (Status(OK, limit, 0, MINUTE),)),
        Decision(OVER, (Status(OVER, limit, 0, MINUTE),)),
    ]


async def test_reset_is_whole_seconds_rounded_up_and_never_zero(asking: Ask) -> None:
    """With a tenth of a second left the reset is one second."""
    service = asking(USER)
    service.now_us += MINUTE - 100_000

    (status,) = (await service.ask("user=bob")).statuses

    assert status.reset_us == 1_000_000


async def test_no_rule_and_unlimited(asking: Ask) -> None:
    """No rule shows nothing; an unlimited rule shows 2^32-1 left; both without a limit."""
    service = asking(USER)

    decision = await service.ask("unknown=x", "free=x", "user=x,deeper=y")

    assert decision == Decision(OK, (Status(OK), Status(OK, remaining=MAX_ADDEND), Status(OK)))


async def test_unknown_domain_is_allowed_and_counted(
    asking: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown domain is allowed, counted for each descriptor and logged once."""
    service = asking(USER)

    await service.ask("user=x", "user=y", domain="nowhere")
    decision = await service.ask("user=x", domain="nowhere")

    assert decision == Decision(OK, (Status(OK),))
    assert service.stats.unknown_domains == 3
    assert [r.getMessage() for r in caplog.records if "nowhere" in r.getMessage()] == [
        "no rule file has the domain 'nowhere': its requests are allowed"
    ]


async def test_denied_request_leaves_the_others_uncharged(asking: Ask) -> None:
    """A denied request shows, for descriptors that had room, what is left without it."""
    service = asking(USER)
    await service.ask("user=bob", hits=2)

    decision = await service.ask("tenant=acme", "user=bob", hits=2)

    assert codes(decision) == [OK, OVER]
    assert decision.code is OVER
    assert [status.remaining for status in decision.statuses] == [10, 0]
    assert service.tally("tenant").uncharged == 2


async def test_shadow_rule_never_denies(asking: Ask) -> None:
    """A rule in shadow mode answers OK with nothing left, and tallies what it let through."""
    service = asking(USER)
    await service.ask("hidden=x")

    decision = await service.ask("hidden=x")

    assert decision.code is OK
    assert codes(decision) == [OK]
    assert decision.statuses[0].remaining == 0
    tally = service.tally("hidden")
    assert (tally.hits, tally.over, tally.shadow) == (2, 1, 1)


async def test_addends(asking: Ask) -> None:
    """A descriptor's addend wins over the request's; 0 is a peek there and 1 at the request."""
    service = asking(USER)

    decision = await service.ask(
        descriptor("tenant=a"),
        descriptor("tenant=b", addend=4),
        descriptor("tenant=c", addend=0),
        hits=3,
    )

    assert [status.remaining for status in decision.statuses] == [7, 6, 10]


async def test_refund_is_ok_even_when_the_request_is_denied(asking: Ask) -> None:
    """Negative hits give back, answer OK and do not keep the rest from being denied."""
    service = asking(USER)
    await service.ask("tenant=a", hits=5)
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", descriptor("tenant=a", addend=2, refund=True))

    assert codes(decision) == [OVER, OK]
    assert decision.statuses[1].remaining == 7
    assert service.tally("tenant").refunded == 2


async def test_refunds_that_are_not_taken(tmp_path: Path) -> None:
    """With --no-refunds a request with a refund is refused whole, also where it is known."""
    service = Asking(tmp_path, USER, settings=Settings(no_refunds=True))
    await service.ask("tenant=a", hits=5)
    refund = Request("edge", (descriptor("tenant=a", addend=2, refund=True),))

    answers = [await service.answer(refund) for _ in range(2)]
    after = await service.ask("tenant=a", hits=0)

    for answer in answers:
        assert isinstance(answer, Refusal)
        assert (answer.code, "--no-refunds" in answer.message) == (
            StatusCode.INVALID_ARGUMENT,
            True,
        )
    assert service.stats.refusals["refund"] == 2
    assert after.statuses[0].remaining == 4


REPLACING = """
domain: edge
descriptors:
  - {key: base, rate_limit: {unit: minute, requests_per_unit: 1, name: base}}
  - key: vip
    rate_limit: {unit: minute, requests_per_unit: 9, name: vip, replaces: [{name: base}]}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: base}]}}
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a, replaces: [{name: b}]}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 1, name: b, replaces: [{name: a}]}}
  - key: top
    rate_limit: {unit: minute, requests_per_unit: 9, name: top, replaces: [{name: vip}]}
"""


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        (["base=x"], [True]),
        (["base=x", "vip=x"], [False, True]),
        (["vip=x", "base=x"], [True, False]),
        (["free=x", "base=x"], [False, False]),
        (["a=x", "b=x"], [False, False]),
        (["base=x", "vip=x", "top=x"], [False, False, True]),
    ],
    ids=lambda value: "+".join(map(str, value)),
)
async def test_replaces(asking: Ask, asked: list[str], counted: list[bool]) -> None:
    """A replaced rule is as no rule; chains count, unlimited rules replace, pairs drop both."""
    service = asking(REPLACING)

    decision = await service.ask(*asked)

    assert [status.limit is not None for status in decision.statuses] == counted


async def test_override_counts_with_the_rule(asking: Ask) -> None:
    """A caller's limit counts on the counter of a rule with the same entries and window."""
    service = asking(USER)
    await service.ask("user=bob")
    limit = Limit(5, Unit.MINUTE)

    decision = await service.ask(descriptor("user=bob", limit=limit))

    assert decision.statuses == (Status(OK, limit, 3, MINUTE),)
    assert service.rules.snapshot.domains["edge"].overrides.of().hits == 1


async def test_override_needs_no_rule_but_a_domain(asking: Ask) -> None:
    """Any entries can be limited by the caller in a known domain, none in an unknown one."""
    service = asking(USER)
    own = descriptor("any=thing", limit=Limit(0, Unit.WEEK))

    assert (await service.ask(own)).code is OVER
    assert (await service.ask(own, domain="nowhere")).code is OK


SHARED = """
domain: edge
descriptors:
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - {key: path, value: /own/*, rate_limit: {unit: minute, requests_per_unit: 3}}
"""


async def test_shared_threshold(asking: Ask) -> None:
    """Values of one pattern share a counter with share_threshold, and have their own without."""
    service = asking(SHARED)
    for value in ("/api/a", "/own/a"):
        await service.ask(f"path={value}")

    decision = await service.ask("path=/api/b", "path=/own/b")

    assert [status.remaining for status in decision.statuses] == [1, 2]


@pytest.mark.parametrize(
    ("limit", "hits", "after", "counted"),
    [
        (15, 1, 11, (0, 0, 1)),
        (15, 1, 13, (0, 1, 1)),
        (15, 1, 16, (1, 0, 0)),
        (20, 3, 5, (0, 0, 3)),
        (8, 2, 7, (0, 1, 2)),
        (20, 3, 19, (0, 3, 3)),
        (20, 3, 22, (2, 1, 0)),
        (20, 7, 22, (2, 4, 0)),
        (10, 3, 30, (3, 0, 0)),
    ],
)
async def test_tallies_as_the_reference(
    asking: Ask, limit: int, hits: int, after: int, counted: tuple[int, int, int]
) -> None:
    """Where denied hits are counted, over, near and within split as in envoyproxy/ratelimit."""
    rule = f"{{key: k, rate_limit: {{unit: minute, requests_per_unit: {limit}}}}}"
    service = asking(
        f"domain: edge\ndescriptors: [{rule}]", settings=Settings(count_denied=CountDenied.ALL)
    )
    if after > hits:
        await service.ask(descriptor("k=x", addend=after - hits))
    tally = service.tally("k")
    before = (tally.over, tally.near, tally.within)

    await service.ask(descriptor("k=x", addend=hits))

    found = (tally.over, tally.near, tally.within)
    assert tuple(b - a for a, b in zip(before, found, strict=True)) == counted


async def test_unlimited_rules_are_tallied(asking: Ask) -> None:
    """An unlimited rule counts its hits, so that it can be used for statistics."""
    service = asking(USER)

    await service.ask("free=x", hits=3)

    assert (service.tally("free").hits, service.tally("free").within) == (3, 3)
