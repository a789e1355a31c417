"""Pools: rules that charge one counter, of which each leaves a part to those with more priority."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service.model import Code
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.stores import Store
from tests.service.asking import Asking, descriptor
from tests.service.overriding import LIMIT, override
from tests.stores.conftest import Time

WAYS = {
    "fixed": "",
    "first": "anchor: first_hit, ",
    "sliding": "algorithm: sliding_window, ",
    "parts": "algorithm: sliding_window, buckets: 6, ",
    "log": "algorithm: sliding_log, ",
    "token": "algorithm: token_bucket, burst: 12, ",
    "leaky": "algorithm: leaky_bucket, ",
    "leases": "algorithm: concurrency, ",
}


def rule(way: str, value: str, reserve: str) -> str:
    value = f"value: {value}, " if value else ""
    return (
        f"  - {{key: {way}, {value}rate_limit: {{unit: minute, requests_per_unit: 10, {WAYS[way]}"
        f"pool: {way}{reserve}}}}}"
    )


RULES = "domain: edge\ndescriptors:\n" + "\n".join(
    rule(way, value, reserve)
    for way in WAYS
    for value, reserve in (("high", ""), ("test", ", reserve: 49%"), ("", ", reserve: 20%"))
)
NESTED = """
  - key: tenant
    descriptors:
      - {key: level, value: high, rate_limit: {unit: day, requests_per_unit: 4, pool: t}}
      - {key: level, rate_limit: {unit: day, requests_per_unit: 4, pool: t, reserve: 50%}}
"""


@pytest.fixture
def asking(tmp_path: Path, any_store: Store, clock: Time) -> Asking:
    return Asking(tmp_path / "rules", RULES + NESTED, store=any_store, clock=clock)


async def passing(asking: Asking, *asked: str) -> str:
    codes = [(await asking.ask(one)).code for one in asked]
    return "".join("+" if code is Code.OK else "-" for code in codes)


@pytest.mark.parametrize("way", WAYS)
async def test_low_priority_leaves_the_reserve(asking: Asking, way: str) -> None:
    """Rules see the limit without their reserve, all on one counter, by every algorithm."""
    whole = 12 if way == "token" else 10
    low, test = whole - -(-whole // 5), whole - -(-whole * 49 // 100)
    high, other = f"{way}=high", [f"{way}=caller{number}" for number in range(20)]

    assert await passing(asking, *[f"{way}=test"] * (test + 2)) == "+" * test + "--"
    assert await passing(asking, *other[: low - test + 2]) == "+" * (low - test) + "--"
    answer = await asking.ask(other[0])
    assert (answer.statuses[0].code, answer.statuses[0].remaining) == (Code.OVER_LIMIT, 0)
    assert await passing(asking, *[high] * (whole - low + 1)) == "+" * (whole - low) + "-"
    assert await passing(asking, f"{way}=test", other[1], high) == "---"


async def test_what_they_are_told(asking: Asking) -> None:
    """To a rule with a reserve the limit is what is left of it."""
    low, high = await asking.ask("fixed=x"), await asking.ask("fixed=high")

    assert [one.statuses[0].remaining for one in (low, high)] == [7, 8]
    limits = [one.statuses[0].limit for one in (low, high)]
    assert [limit and limit.requests_per_unit for limit in limits] == [8, 10]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("number", "part"), [(10, 1), (5, 2), (0, 0)])
async def test_an_override_keeps_the_reserve(
    asking: Asking, way: str, number: int, part: int
) -> None:
    """Another number leaves the same part of it to the others, by every algorithm."""
    whole = 12 if way == "token" else 10
    left = -(-whole // 5)
    asking.service.overrides.add([override(LIMIT, f"{way}=x", number)])
    passes = -((left - whole) // part) if part else 0

    assert await passing(asking, *[f"{way}=x"] * (passes + 1)) == "+" * passes + "-"
    rest = whole - passes
    assert await passing(asking, *[f"{way}=high"] * (rest + 1)) == "+" * rest + "-"


async def test_a_higher_number_leaves_its_part(asking: Asking) -> None:
    """Of twice the number twice the reserve is left, and the answer shows what remains of it."""
    asking.service.overrides.add([override(LIMIT, "sliding=x", 20), override(LIMIT, "leaky=x", 20)])

    for text in ("sliding=x", "leaky=x"):
        answer = await asking.ask(text)
        assert answer.statuses[0].remaining == 15


async def test_refunds(asking: Asking) -> None:
    """Whoever gives back hits takes them off the counter that all share, and no others."""
    await passing(asking, *["token=high"] * 12)
    await asking.ask(descriptor("token=x", addend=3, refund=True))

    assert await passing(asking, "token=x", *["token=high"] * 4) == "-+++-"


async def test_pools_within_others(asking: Asking) -> None:
    """Entries above count as ever; two descriptors of a request charge the pool twice."""
    assert await passing(asking, *["tenant=a,level=x"] * 3, "tenant=b,level=y") == "++-+"
    assert await passing(asking, *["tenant=a,level=high"] * 3) == "++-"
    both = await asking.ask("tenant=c,level=x", "tenant=c,level=y")
    again = await asking.ask("tenant=c,level=high", "tenant=c,level=x")
    assert [both.code, again.code] == [Code.OK, Code.OVER_LIMIT]
    assert await passing(asking, *["tenant=c,level=high"] * 3) == "++-"


def test_told(tmp_path: Path) -> None:
    """Explain and /rlconfig name the pool and what is left to others."""
    snapshot = Asking(tmp_path, RULES).rules.snapshot

    told = str(explain(snapshot, "edge", descriptor("token=x")))
    assert (
        "10 per minute, token_bucket, burst 9, of pool token, without the 3 that are left" in told
    )
    assert "requests_per_unit=8" in list(dump(snapshot))[2]
    assert "pool: fixed, reserve: 2" in list(dump(snapshot))[2]
