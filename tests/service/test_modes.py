"""What a request comes to as a whole: quotas, shadows, and hits that count though denied."""

from __future__ import annotations

from itertools import product

import pytest

from ratelimit_service.model import (
    Code,
    CountDenied,
)
from ratelimit_service.settings import Settings
from tests.service.asking import descriptor
from tests.service.deciding import OK, OVER, USER, Ask, codes


def quota_rules(kinds: str) -> str:
    """A rule for each letter: e enforced, s shadow, q quota, Q quota in shadow; upper limit 1."""
    lines = ["domain: edge", "descriptors:"]
    for number, kind in enumerate(kinds):
        flags = {"e": "", "s": "shadow_mode: true, ", "q": "quota_mode: true, "}.get(
            kind, "quota_mode: true, shadow_mode: true, "
        )
        limit = "rate_limit: {unit: minute, requests_per_unit: 1}"
        lines.append(f"  - {{key: k{number}, {flags}{limit}}}")
    return "\n".join(lines)


@pytest.mark.parametrize("kinds", ["".join(kinds) for kinds in product("esqQ", repeat=2)])
@pytest.mark.parametrize("overs", list(product([False, True], repeat=2)))
async def test_overall_code(asking: Ask, kinds: str, overs: tuple[bool, bool]) -> None:
    """Over limit: an enforced rule is over, or there are quota rules and all of them are over."""
    service = asking(quota_rules(kinds))
    for number, over in enumerate(overs):
        if over:
            await service.ask(f"k{number}=x")

    decision = await service.ask("k0=x", "k1=x")

    rules = list(zip(kinds, overs, strict=True))
    quotas = [kind == "q" and over for kind, over in rules if kind in "qQ"]
    denied = any(kind == "e" and over for kind, over in rules) or (bool(quotas) and all(quotas))
    assert decision.code is (OVER if denied else OK)
    assert codes(decision) == [OVER if over and kind in "eq" else OK for kind, over in rules]


async def test_global_shadow_mode(asking: Ask) -> None:
    """The global shadow mode leaves statuses as they are and turns the overall code to OK."""
    service = asking(USER, settings=Settings(shadow_mode=True))
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", "tenant=a")

    assert decision.code is OK
    assert codes(decision) == [OVER, OK]
    assert service.stats.global_shadow_mode == 1
    assert decision.statuses[1].remaining == 9


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["user=bob"], OVER),
        (["user=bob", "tenant=a"], OK),
        (["user=bob", "unknown=x"], OK),
        (["user=bob", "free=x"], OVER),
        (["user=bob", "hidden=x"], OK),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else value.name,
)
async def test_global_quota_mode(asking: Ask, asked: list[str], code: Code) -> None:
    """Every rule is a quota then; unmatched descriptors count as passed, unlimited ones not."""
    service = asking(USER, settings=Settings(quota_mode=True))
    await service.ask("user=bob", hits=2)

    decision = await service.ask(*asked)

    assert decision.code is code
    assert codes(decision)[0] is OVER


SEVERAL = """
domain: edge
descriptors:
  - key: job
    {mode}: true
    rate_limits:
      - {{unit: minute, requests_per_unit: 5, algorithm: concurrency}}
      - {{unit: minute, requests_per_unit: 0}}
"""


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("quota_mode", Settings(quota_mode=True)),
        ("quota_mode", Settings(shadow_mode=True)),
        ("detailed_metric", Settings(quota_mode=True)),
    ],
    ids=["beside a descriptor without rule", "global shadow mode", "global quota mode"],
)
async def test_quota_that_cannot_deny_counts_every_limit(
    asking: Ask, mode: str, settings: Settings
) -> None:
    """A quota takes what has room in each of its limits, also where it cannot deny."""
    service = asking(SEVERAL.format(mode=mode), settings=settings)

    await service.ask("job=a", "unknown=x")
    decision = await service.ask("job=a", "unknown=x")

    assert decision.code is OK
    assert decision.metadata is not None
    assert [limit["remaining"] for limit in decision.metadata["limits"]] == [3, 0]  # type: ignore[attr-defined]


async def test_refund_is_no_quota(asking: Ask) -> None:
    """What gives back hits of a quota in shadow lets no other quota pass."""
    service = asking(quota_rules("qQ"))
    await service.ask("k0=x")

    decision = await service.ask("k0=x", descriptor("k1=x", refund=True))

    assert decision.code is OVER


async def test_token_budget(asking: Ask) -> None:
    """With count_denied, a limit of 1000 and uses of 300, the fifth peek is over."""
    service = asking(
        """
domain: edge
descriptors:
  - {key: budget, rate_limit: {unit: day, requests_per_unit: 1000, count_denied: true}}
"""
    )
    peeks = []
    for _ in range(5):
        peeks.append((await service.ask(descriptor("budget=x", addend=0))).code)
        await service.ask(descriptor("budget=x", addend=300))

    assert peeks == [OK, OK, OK, OK, OVER]


async def test_global_count_denied(asking: Ask) -> None:
    """With --count-denied a denied request is charged in every descriptor."""
    service = asking(USER, settings=Settings(count_denied=CountDenied.ALL))
    await service.ask("user=bob", hits=2)

    decision = await service.ask("user=bob", "tenant=a", hits=3)

    assert decision.code is OVER
    assert decision.statuses[1].remaining == 7


LOOKED_AT = """
domain: edge
descriptors:
  - {key: lost, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: kept, rate_limit: {unit: day, requests_per_unit: 100, count_denied: true}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 100, algorithm: token_bucket}}
"""


@pytest.mark.parametrize(
    ("counted", "rule", "look", "cost", "mend"),
    [
        (None, "lost", 0, 101, "say count_denied in the rule, or --count-denied reported"),
        (None, "lost", None, 101, ""),
        (None, "lost", 0, 25, ""),
        (None, "kept", 0, 101, ""),
        (CountDenied.REPORTED, "lost", 0, 101, ""),
        (CountDenied.REPORTED, "bucket", 0, 101, "so make it a window"),
        (CountDenied.ALL, "lost", 0, 101, ""),
    ],
)
async def test_reports_that_are_lost_are_noted(
    asking: Ask,
    caplog: pytest.LogCaptureFixture,
    counted: CountDenied | None,
    rule: str,
    look: int | None,
    cost: int,
    mend: str,
) -> None:
    """A limit that is asked with 0 hits, and then loses what was used, is told of once."""
    service = asking(LOOKED_AT, settings=Settings(count_denied=counted))
    for _ in range(3):
        await service.ask(descriptor(f"{rule}=a", addend=look))
        await service.ask(descriptor(f"{rule}=a", addend=cost))

    notes, said = service.health.notes, [record.getMessage() for record in caplog.records]
    assert list(notes) == ([f"rule {rule} of edge"] if mend else [])
    assert all(note.endswith(mend) for note in notes.values())
    assert said == [f"{name}: {note}" for name, note in notes.items()]
    assert not service.health.faults
