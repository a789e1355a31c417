"""What callers see of each algorithm: limits, waits, headers and metadata, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ratelimit_service.model import (
    MAX_ADDEND,
    Code,
    Decision,
    Descriptor,
    Entry,
    Header,
    Limit,
    Status,
    Unit,
)
from ratelimit_service.settings import Settings
from tests.service.asking import Asking, descriptor
from tests.stores.cases import DAY, HOUR, MINUTE, SECOND, T
from tests.stores.conftest import Time, store_named

Ask = Callable[..., Asking]

RULES = """
domain: edge
descriptors:
  - key: window
    rate_limit: {window: 90s, requests_per_unit: 2}
  - key: three_hours
    rate_limit: {window: 180m, requests_per_unit: 2, algorithm: sliding_log}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 2, per: calendar, time_zone: America/New_York}
  - key: burst
    rate_limit: {unit: second, requests_per_unit: 100, burst: 500, algorithm: token_bucket}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 2, max_wait: 2s, algorithm: leaky_bucket}
  - key: soft
    rate_limit: {unit: minute, requests_per_unit: 10, soft: 15%}
  - key: soft_bucket
    rate_limit: {unit: minute, requests_per_unit: 60, burst: 10, soft: 10%, algorithm: token_bucket}
  - key: lease
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}
  - key: several
    rate_limits:
      - {unit: second, requests_per_unit: 2, name: quick, algorithm: sliding_window}
      - {unit: hour, requests_per_unit: 5, name: steady}
      - {unit: day, requests_per_unit: 100, algorithm: token_bucket}
  - key: shadow
    shadow_mode: true
    rate_limits:
      - {unit: minute, requests_per_unit: 1}
      - {unit: hour, requests_per_unit: 5}
  - key: shadow_queue
    shadow_mode: true
    rate_limits:
      - {unit: second, requests_per_unit: 2, max_wait: 2s, algorithm: leaky_bucket}
      - {unit: minute, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limits:
      - {unit: minute, requests_per_unit: 1}
      - {unit: hour, requests_per_unit: 5}
  - key: loose
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 9}
  - key: both
    rate_limits:
      - {unit: minute, requests_per_unit: 3}
      - {unit: minute, requests_per_unit: 2, algorithm: concurrency}
"""


@pytest.fixture(params=["memory", "redis"])
def service(tmp_path: Path, request: pytest.FixtureRequest, clock: Time) -> Asking:
    return Asking(tmp_path, RULES, store=store_named(request.param, request), clock=clock)


def headers(decision: Decision) -> dict[str, str]:
    return {header.key: header.value for header in decision.request_headers}


async def test_any_window_is_told_in_its_largest_unit(service: Asking) -> None:
    """A window of 90 s is 90 seconds, one of 180 minutes is 3 hours."""
    decision = await service.ask("window", "three_hours")

    assert decision.statuses == (
        Status(Code.OK, Limit(2, Unit.SECOND, 90), 1, 60 * SECOND),
        Status(Code.OK, Limit(2, Unit.HOUR, 3), 1, 3 * HOUR),
    )


async def test_calendar_month(service: Asking, clock: Time) -> None:
    """A month of New York's calendar ends at its midnight, five hours after UTC's."""
    clock.now_us = (1_701_406_800 - 1) * SECOND  # 30 November 2023, 23:59:59 there

    first = await service.ask(descriptor("month", addend=2))
    full = await service.ask("month")
    clock.now_us += SECOND
    december = await service.ask("month")

    assert first.statuses[0] == Status(Code.OK, Limit(2, Unit.MONTH), 0, SECOND)
    assert full.code is Code.OVER_LIMIT
    assert december.statuses[0] == Status(Code.OK, Limit(2, Unit.MONTH), 1, 31 * DAY)


async def test_burst_and_rate_are_apart(service: Asking) -> None:
    """Of 100 a second with a burst of 500, 500 pass at once, and the answer says 100 a second."""
    decision = await service.ask(descriptor("burst", addend=500))
    denied = await service.ask("burst")

    assert decision.statuses[0] == Status(Code.OK, Limit(100, Unit.SECOND), 0, 5 * SECOND)
    assert denied.statuses[0].code is Code.OVER_LIMIT
    assert denied.statuses[0].reset_us == SECOND  # 10 ms, in whole seconds


async def test_no_place_in_the_queue_no_delay(service: Asking) -> None:
    """Hits that another limit keeps out of the queue are told no delay."""
    decisions = [await service.ask("shadow_queue") for _ in range(2)]

    assert [decision.code for decision in decisions] == [Code.OK] * 2
    assert [headers(each).get("x-ratelimit-delay-ms") for each in decisions] == ["0", None]


async def test_queue_tells_the_delay(service: Asking, clock: Time) -> None:
    """Each hit of a queue waits for those before it; callers that can wait are told how long."""
    decisions = [await service.ask("queue") for _ in range(5)]
    clock.now_us += 250_000
    looked = await service.ask(descriptor("queue", addend=0))
    clock.now_us += 250_000
    later = await service.ask("queue")

    assert [decision.code for decision in decisions] == [Code.OK] * 4 + [Code.OVER_LIMIT]
    assert [headers(each).get("x-ratelimit-delay-ms") for each in decisions] == [
        "0",
        "500",
        "1000",
        "1500",
        None,
    ]
    assert decisions[1].metadata == {"delay_ms": 500}
    assert decisions[4].metadata is None
    assert headers(looked) == {"x-ratelimit-delay-ms": "1750"}
    assert headers(later) == {"x-ratelimit-delay-ms": "1500"}
    assert later.response_headers == ()


async def test_soft_limit_warns_before_it_denies(service: Asking) -> None:
    """Remaining counts down to the limit; above it hits pass with a warning, up to the hard one."""
    within = await service.ask(descriptor("soft", addend=9))
    last = await service.ask("soft")
    above = await service.ask("soft")
    denied = await service.ask("soft")
    looked = await service.ask(descriptor("soft", addend=0))

    assert [each.statuses[0].remaining for each in (within, last, above)] == [1, 0, 0]
    assert within.request_headers == last.request_headers == denied.request_headers == ()
    assert above.request_headers == (Header("x-ratelimit-warning", "soft"),)
    assert above.response_headers == (Header("x-ratelimit-warning", "soft"),)
    assert (above.code, above.metadata) == (Code.OK, {"soft": True})
    assert denied.statuses[0] == Status(Code.OVER_LIMIT, Limit(10, Unit.MINUTE), 0, MINUTE)
    assert looked.metadata == {"soft": True}


async def test_soft_bucket_grows_its_burst_and_not_its_rate(service: Asking, clock: Time) -> None:
    """A burst of 10 with 10 % soft holds 11, and still gets one back a second."""
    full = await service.ask(descriptor("soft_bucket", addend=10))
    above = await service.ask("soft_bucket")
    denied = await service.ask("soft_bucket")
    clock.now_us += SECOND
    again = [await service.ask("soft_bucket") for _ in range(2)]

    assert full.metadata is None
    assert above.metadata == {"soft": True}
    assert denied.code is Code.OVER_LIMIT
    assert [each.code for each in again] == [Code.OK, Code.OVER_LIMIT]


async def test_lease_is_taken_and_given_back(service: Asking) -> None:
    """An admitted request gets a lease's id, which gives back that lease and no other."""
    first, second = await service.ask("lease=a"), await service.ask("lease=a")
    denied = await service.ask("lease=a")
    ids = [headers(each)["x-ratelimit-lease"] for each in (first, second)]

    async def give_back(lease: str) -> int:
        entries = (Entry("lease", "a"), Entry("lease", lease))
        decision = await service.ask(Descriptor(entries, is_negative_hits=True))
        assert decision.code is Code.OK
        return decision.statuses[0].remaining

    assert [len(bytes.fromhex(each)) for each in ids] == [8, 8]
    assert ids[0] != ids[1]
    assert denied.code is Code.OVER_LIMIT
    assert denied.request_headers == ()
    assert await give_back("0123456789abcdef") == 0
    assert await give_back("nonsense") == 0
    assert await give_back(ids[0]) == 1
    assert await give_back(ids[0]) == 1
    assert await give_back(f"0123456789abcdef, {ids[1]}") == 2
    assert (await service.ask("lease=a")).statuses[0].remaining == 1


async def test_without_an_id_the_oldest_lease_is_given_back(service: Asking) -> None:
    """A negative hit that names no lease gives back one all the same."""
    await service.ask("lease=a")
    await service.ask("lease=a")

    decision = await service.ask(descriptor("lease=a", refund=True))

    assert decision.statuses[0].remaining == 1


async def test_giving_back_a_lease_refunds_no_other_limit(service: Asking) -> None:
    """Beside a lease a descriptor's other limits keep what they have counted."""
    taken = await service.ask("both=a")
    lease = headers(taken)["x-ratelimit-lease"]

    await service.ask(descriptor(f"both=a,lease={lease}", refund=True))

    decision = await service.ask("both=a")
    assert [each["remaining"] for each in limits_of(decision)] == [1, 1]


LEASES_AT_TIMES = """
domain: edge
descriptors:
  - key: one
    rate_limits:
      - {unit: minute, requests_per_unit: 2, algorithm: concurrency, when: {to: "08:00"}}
      - {unit: hour, requests_per_unit: 5}
  - key: two
    rate_limits:
      - {unit: minute, requests_per_unit: 2, algorithm: concurrency, when: {to: "08:00"}}
      - {unit: hour, requests_per_unit: 5}
      - {unit: day, requests_per_unit: 5, algorithm: sliding_log}
"""


@pytest.mark.parametrize("key", ["one", "two"])
@pytest.mark.parametrize("lease", ["", "0123456789abcdef", "nonsense"])
async def test_a_lease_gives_back_no_hits_when_its_limit_does_not_hold(
    tmp_path: Path, key: str, lease: str
) -> None:
    """Who gives back a lease outside of the limit's times gives back no other limit's hits."""
    service = Asking(tmp_path, LEASES_AT_TIMES)
    await service.ask(f"{key}=a", hits=3)

    entries = (Entry(key, "a"), Entry("lease", lease))
    told = await service.ask(Descriptor(entries, is_negative_hits=True))

    assert told.statuses[0].remaining == 2
    assert (await service.ask(f"{key}=a")).statuses[0].remaining == 1


async def test_a_denied_request_leaves_no_lease(service: Asking) -> None:
    """Whatever denies a request, the leases that its other descriptors would have are free."""
    await service.ask(descriptor("window", addend=2))

    denied = await service.ask("lease=a", "window")

    assert denied.code is Code.OVER_LIMIT
    assert denied.request_headers == ()
    assert (await service.ask("lease=a")).statuses[0].remaining == 1


def limits_of(decision: Decision) -> list[dict[str, object]]:
    assert decision.metadata
    found = decision.metadata["limits"]
    assert isinstance(found, list)
    return found


async def test_several_limits_are_one_status(service: Asking, clock: Time) -> None:
    """The status is the one with the fewest left; of those that deny, the longest to wait for."""
    first = await service.ask("several")
    both = await service.ask("several")
    quick = await service.ask("several")
    clock.now_us += 10 * SECOND
    await service.ask(descriptor("several", addend=2))
    clock.now_us += 10 * SECOND
    await service.ask("several")
    steady = await service.ask(descriptor("several", addend=2))

    assert first.statuses == (Status(Code.OK, Limit(2, Unit.SECOND, 1, "quick"), 1, SECOND),)
    assert both.statuses[0].remaining == 0
    assert quick.statuses[0].limit == Limit(2, Unit.SECOND, 1, "quick")
    assert quick.code is Code.OVER_LIMIT
    assert steady.statuses[0].limit == Limit(5, Unit.HOUR, 1, "steady")
    assert steady.statuses[0].reset_us == HOUR - (T + 20 * SECOND) % HOUR


async def test_what_is_left_when_several_hits_are_denied(service: Asking) -> None:
    """A status over its limit says 0 left; the metadata say how many hits would pass."""
    await service.ask(descriptor("burst", addend=460))

    denied = await service.ask(descriptor("burst", addend=60))
    passed = await service.ask(descriptor("burst", addend=40))
    empty = await service.ask(descriptor("burst"))

    assert (denied.code, denied.statuses[0].remaining) == (Code.OVER_LIMIT, 0)
    (limit,) = limits_of(denied)
    assert (limit["descriptor"], limit["remaining"], limit["overLimit"]) == (0, 40, True)
    assert (passed.code, passed.statuses[0].remaining) == (Code.OK, 0)
    assert empty.code is Code.OVER_LIMIT
    assert (passed.metadata, empty.metadata) == (None, None)


async def test_several_limits_are_charged_all_or_none(service: Asking) -> None:
    """What one limit denies is counted on none of the others; metadata lists them all."""
    await service.ask(descriptor("several", addend=2))
    denied = await service.ask("several")

    assert [each["remaining"] for each in limits_of(denied)] == [0, 3, 98]
    assert [each["overLimit"] for each in limits_of(denied)] == [True, False, False]
    assert limits_of(denied)[1] == {
        "descriptor": 0,
        "algorithm": "fixed_window",
        "name": "steady",
        "requestsPerUnit": 5,
        "unit": "HOUR",
        "unitMultiplier": 1,
        "remaining": 3,
        "resetSeconds": (HOUR - T % HOUR) // SECOND,
        "overLimit": False,
    }


async def test_several_limits_in_shadow_are_charged_all_or_none(service: Asking) -> None:
    """A shadow descriptor passes; without room for one of its limits none of them is charged."""
    decisions = [await service.ask("shadow") for _ in range(3)]

    assert [decision.code for decision in decisions] == [Code.OK] * 3
    assert [each["remaining"] for each in limits_of(decisions[2])] == [0, 4]


async def test_several_limits_of_a_quota_are_one_quota(service: Asking) -> None:
    """A quota with one limit over is over; the request is denied when all quotas are."""
    await service.ask("quota")

    alone = await service.ask("quota")
    beside = await service.ask("quota", "loose")

    assert alone.code is Code.OVER_LIMIT
    assert beside.code is Code.OK
    assert [status.code for status in beside.statuses] == [Code.OVER_LIMIT, Code.OK]


async def test_tallies_count_a_descriptor_once(service: Asking) -> None:
    """However many limits a rule has, its metrics count each hit once."""
    for _ in range(3):
        await service.ask("several")

    tally = service.tally("several")
    assert (tally.hits, tally.within, tally.over) == (3, 2, 1)


async def test_all_algorithms_pass_a_peek_of_the_largest_request(service: Asking) -> None:
    """More hits than any limit are denied whole, and the next single hit passes."""
    keys = ["window", "three_hours", "month", "burst", "queue", "soft", "lease", "several"]
    denied = [await service.ask(descriptor(key, addend=MAX_ADDEND)) for key in keys]
    allowed = [await service.ask(key) for key in keys]

    assert {decision.code for decision in denied} == {Code.OVER_LIMIT}
    assert {decision.code for decision in allowed} == {Code.OK}


async def test_limits_are_in_metadata_beside_the_reference_s(tmp_path: Path) -> None:
    """With --dynamic-metadata the list of limits stands beside what else is told."""
    service = Asking(tmp_path, RULES, settings=Settings(dynamic_metadata=True))

    decision = await service.ask("several")

    assert decision.metadata
    assert decision.metadata["domain"] == "edge"
    assert len(limits_of(decision)) == 3
