"""What is seen of reservations over every store: in the metrics of rules, and of counters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratelimit_service.decision_log.line import line_of
from ratelimit_service.model import SECOND_US, Code
from ratelimit_service.rule_lab.replay.denials import last_denials
from ratelimit_service.stores import Store
from tests.service.asking import Asking, Heard, descriptor
from tests.service.overriding import BAN, GRANT, LIMIT, override
from tests.service.reserving import Gateway
from tests.stores.conftest import Time

RULES = """
domain: llm
reservations: true
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 1000}
- key: model
  rate_limits:
  - {name: minute, unit: minute, requests_per_unit: 500}
  - {name: day, unit: day, requests_per_unit: 5000, reservations: false}
- key: watched
  shadow_mode: true
  rate_limit: {unit: year, requests_per_unit: 10}
- key: quota
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 10}
- key: strict
  rate_limit: {unit: year, requests_per_unit: 10, count_denied: true}
- key: soft
  rate_limit: {unit: year, requests_per_unit: 10, soft: 50%}
- key: bucket
  rate_limit: {unit: year, requests_per_unit: 10, algorithm: token_bucket}
- key: free
  rate_limit: {unlimited: true}
- key: place
  rate_limit: {unit: year, requests_per_unit: 1, algorithm: concurrency}
"""


@pytest.fixture
def asking(tmp_path: Path, store: Store, clock: Time) -> Asking:
    return Asking(tmp_path, RULES, store=store, clock=clock)


@pytest.fixture
def gateway(asking: Asking) -> Gateway:
    return Gateway(asking)


def tallied(asking: Asking, path: str) -> dict[str, int]:
    """What the metrics of a rule say, without zeros."""
    rules = asking.rules.snapshot.domains["llm"].rules
    (tally,) = [rule.tallies.of() for rule in rules if rule.path == path]
    names = ("hits", "within", "over", "held", "settled", "released", "overrun")
    return {name: number for name in names if (number := getattr(tally, name))}


async def test_rules_tally_what_was_held_and_what_became_of_it(
    asking: Asking, gateway: Gateway
) -> None:
    """All that is held was used, or released, or its hold ended; what is beyond it is overrun."""
    first = await gateway.reserve(600, "user=a")
    second = await gateway.reserve(300, "user=a")
    assert not await gateway.reserve(200, "user=a")
    assert tallied(asking, "user") == {"held": 900, "hits": 200, "over": 200}

    await gateway.commit(first, 250, "user=a")
    await gateway.commit(first, 250, "user=a")
    await gateway.commit(second, 310, "user=a")

    used = {"hits": 760, "within": 560, "over": 200}
    assert tallied(asking, "user") == {
        **used,
        "held": 900,
        "settled": 550,
        "released": 350,
        "overrun": 10,
    }


async def test_an_extended_reservation_is_tallied_once(
    asking: Asking, gateway: Gateway, clock: Time
) -> None:
    """Only what it holds more is added; a hold that has ended is neither used nor released."""
    held = await gateway.reserve(300, "model=m", seconds=10)
    assert await gateway.reserve(400, "model=m", hold_id=held, seconds=10) == held
    assert tallied(asking, "model") == {"held": 400}

    clock.now_us += 10 * SECOND_US
    await gateway.commit(held, 50, "model=m")

    assert tallied(asking, "model") == {"held": 400, "hits": 50, "within": 50}


@pytest.mark.parametrize(("key", "hits"), [("watched", 20), ("quota", 8)])
async def test_shadow_rules_and_quotas_are_not_held_only_settled(
    asking: Asking, gateway: Gateway, key: str, hits: int
) -> None:
    """There is as much room as before, and what was used counts."""
    held = await gateway.reserve(hits, "user=a", f"{key}=w")

    assert held
    assert tallied(asking, key) == {}
    assert (await asking.ask(f"{key}=w", domain="llm")).statuses[0].remaining == 9
    assert await gateway.commit(held, 6, "user=a", f"{key}=w")
    assert tallied(asking, key) == {"hits": 7, "within": 7}
    assert (await asking.ask(f"{key}=w", domain="llm")).statuses[0].remaining == 2


async def test_a_quota_without_room_denies_what_is_reserved(
    asking: Asking, gateway: Gateway
) -> None:
    """As it denies any request; but of what is denied nothing counts."""
    assert not await gateway.reserve(11, "user=a", "quota=w")
    assert (await asking.ask("quota=w", domain="llm")).statuses[0].remaining == 9
    assert (await asking.ask("user=a", domain="llm")).statuses[0].remaining == 999


async def test_places_are_no_hits(asking: Asking, gateway: Gateway) -> None:
    """What takes a place is not tallied as held."""
    held = await gateway.reserve(20, "user=a", "place=p")
    await gateway.commit(held, 20, "user=a", "place=p")

    assert tallied(asking, "place") == {}
    assert tallied(asking, "user")["settled"] == 20


async def test_why_a_reservation_was_denied(asking: Asking, gateway: Gateway) -> None:
    """No room beside what is held, too much for one reservation, or an operator's ban."""
    heard = Heard(asking.service)
    ban = override(BAN, "user=c", domain="llm")
    asking.service.overrides.add([ban])
    await gateway.reserve(800, "user=a")
    await gateway.reserve(201, "user=a")
    await asking.ask("user=b", domain="llm")
    await gateway.reserve(501, "user=b", "model=m")
    await gateway.reserve(1, "user=c")

    lines = [line_of(record, asking.now_us) for record in heard if record.denied]

    words = [line.split(" UTC", 1)[1] for line in last_denials(lines, 9, asking.now_us)]
    assert [re.sub(r" \(/[^ ]*\)", "", line) for line in words] == [
        f": by override (ban {ban.id} by ops: because)",
        " by `model`: 500 a minute, of which one reservation may not hold 501",
        " by `user`: 1000 a year, 800 used or held, 1 s to wait",
    ]


async def left(asking: Asking, text: str) -> int:
    """What remains, as it is told to a look."""
    answer = await asking.ask(descriptor(text, addend=0), domain="llm")
    return answer.statuses[0].remaining


async def test_a_denied_reservation_counts_nothing(asking: Asking, gateway: Gateway) -> None:
    """Not even where denied hits count; what is settled counts beyond the limit."""
    held = await gateway.reserve(8, "strict=a")
    assert not await gateway.reserve(3, "strict=a")
    assert await left(asking, "strict=a") == 2
    await gateway.commit(held, 12, "strict=a")

    assert (await asking.ask("strict=a", domain="llm")).code is Code.OVER_LIMIT


async def test_the_soft_part_is_room(gateway: Gateway) -> None:
    """A reservation may hold hits that would pass with a warning."""
    held = await gateway.reserve(10, "soft=a")
    more = await gateway.reserve(5, "soft=a")

    assert held
    assert more
    assert not await gateway.reserve(1, "soft=a")
    assert await gateway.commit(more, 0, "soft=a")
    assert await gateway.reserve(5, "soft=a")


async def test_a_bucket_is_full_at_the_most(asking: Asking, gateway: Gateway) -> None:
    """What was used beyond a hold counts until the bucket has nothing left."""
    held = await gateway.reserve(4, "bucket=a")
    assert await gateway.commit(held, 50, "bucket=a")

    assert await left(asking, "bucket=a") == 0
    assert tallied(asking, "bucket")["overrun"] == 46


async def test_a_grant_gives_no_room_to_reservations(asking: Asking, gateway: Gateway) -> None:
    """They have the room of the limit; what was used is counted there."""
    asking.service.overrides.add([override(GRANT, "user=a", 500, domain="llm")])

    held = await gateway.reserve(1_000, "user=a")

    assert held
    assert not await gateway.reserve(1, "user=a")
    assert await gateway.commit(held, 700, "user=a")
    assert await gateway.reserve(300, "user=a")


async def test_a_limit_of_an_operator_holds_for_reservations(
    asking: Asking, gateway: Gateway
) -> None:
    """As it stands at each call: what is held under the rule's limit stays."""
    held = await gateway.reserve(300, "user=a")
    asking.service.overrides.add([override(LIMIT, "user=a", 400, domain="llm")])

    assert not await gateway.reserve(101, "user=a")
    assert await gateway.reserve(100, "user=a")
    assert await gateway.commit(held, 300, "user=a")
    assert await left(asking, "user=a") == 0


async def test_a_caller_without_a_limit_holds_nothing(gateway: Gateway) -> None:
    """Nor is there anything to settle."""
    held = await gateway.reserve(10, "free=a")

    assert held
    assert not await gateway.commit(held, 10, "free=a")
