"""What callers report at the end counts whoever denies: the same verdicts as the reference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from ratelimit_service.model import MAX_ADDEND, Code, CountDenied
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from tests.service.asking import Asking, descriptor
from tests.service.deciding import OK, OVER
from tests.stores.cases import MINUTE
from tests.stores.conftest import Time

LIMITS: Final = {"minute": 100, "day": 150, "other": 10, "shared": 100, "slow": 100, "parts": 100}
"""Of each key the limit."""

RULES: Final = """
domain: edge
descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 150}}
  - {key: other, rate_limit: {unit: minute, requests_per_unit: 10}}
  - key: shared
    value: a*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 100}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 100, algorithm: sliding_window}}
  - key: parts
    rate_limit: {unit: minute, requests_per_unit: 100, algorithm: sliding_window, buckets: 6}
  - key: both
    rate_limits:
      - {unit: minute, requests_per_unit: 100}
      - {unit: day, requests_per_unit: 150}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket}}
"""

CASES: Final = {
    "a look, then what was used": (
        ("minute=a 0", OK),
        ("minute=a 60", OK),
        ("minute=a 0", OK),
        ("minute=a 60", OVER),
        ("minute=a 0", OVER),
        ("minute=b 0", OK),
    ),
    "a cost of 1 at the limit": (
        ("minute=a 100", OK),
        ("minute=a 0", OK),
        ("minute=a 1", OVER),
        ("minute=a 0", OVER),
    ),
    "a minute and a day together": (
        ("minute=a 0 day=a 0", OK),
        ("minute=a 120 day=a 120", OVER),
        ("day=a 0", OK),
        ("day=a 30", OK),
        ("day=a 1", OVER),
        ("day=a 0", OVER),
        ("minute=b 0 day=a 0", OVER),
    ),
    "two rules in one request, of which one is over": (
        ("other=a 11", OVER),
        ("other=a 5 minute=a 60", OVER),
        ("other=a 5 minute=a 60", OVER),
        ("minute=a 0", OVER),
    ),
    "a shared counter": (
        ("shared=a1 0", OK),
        ("shared=a1 60", OK),
        ("shared=a2 0", OK),
        ("shared=a2 60", OVER),
        ("shared=a3 0", OVER),
    ),
    "a refund after a denied charge": (
        ("minute=a 120", OVER),
        ("minute=a 0", OVER),
        ("minute=a -60", OK),
        ("minute=a 0", OK),
        ("minute=a 40", OK),
        ("minute=a 1", OVER),
    ),
    "sliding windows, as an overlay makes them": (
        ("slow=a 60 parts=a 60", OK),
        ("slow=a 0 parts=a 0", OK),
        ("slow=a 60 parts=a 60", OVER),
        ("slow=a 0", OVER),
        ("parts=a 0", OVER),
    ),
}
"""By what it is: requests, each its descriptors with their own `hits_addend`, and its verdict."""


def reference(counts: Counter[str], descriptors: list[tuple[str, int]]) -> Code:
    """What envoyproxy/ratelimit says: it adds in every descriptor, and then looks."""
    verdict = OK
    for text, hits in descriptors:
        key = text.partition("=")[0]
        counter = key if key == "shared" else text
        counts[counter] += hits
        if hits >= 0 and counts[counter] > LIMITS[key]:
            verdict = OVER
    return verdict


def asked(text: str) -> list[tuple[str, int]]:
    """`user=a 3 plan=b 0`."""
    words = text.split()
    return [(name, int(hits)) for name, hits in zip(words[::2], words[1::2], strict=True)]


async def ask(service: Asking, text: str) -> Code:
    each = [descriptor(name, addend=abs(hits), refund=hits < 0) for name, hits in asked(text)]
    return (await service.ask(*each)).code


@pytest.fixture
def service(tmp_path: Path, store: Store, clock: Time) -> Asking:
    """As it is where rules come over xDS."""
    return serving(tmp_path, store, clock, CountDenied.REPORTED)


def serving(directory: Path, store: Store, clock: Time, counted: CountDenied) -> Asking:
    settings = Settings(count_denied=counted)
    return Asking(directory, RULES, settings=settings, store=store, clock=clock)


@pytest.mark.parametrize("case", CASES)
async def test_verdicts_are_those_of_the_reference(service: Asking, case: str) -> None:
    """What descriptors bring by a `hits_addend` of their own counts, as in the reference."""
    counts: Counter[str] = Counter()
    for text, verdict in CASES[case]:
        assert reference(counts, asked(text)) is verdict, text
        assert await ask(service, text) is verdict, text


async def test_all_limits_of_a_rule_count_what_is_reported(service: Asking, clock: Time) -> None:
    """A charge that the minute denies counts in the rule's day as well."""
    assert await ask(service, "both=a 151") is OVER
    clock.now_us += MINUTE

    assert await ask(service, "both=a 0") is OVER


async def test_ordinary_hits_of_a_denied_request_are_free(service: Asking) -> None:
    """Beside a report that is denied a descriptor without a number of its own is not charged."""
    await ask(service, "other=a 11")

    for _ in range(3):
        decision = await service.ask(descriptor("other=a", addend=1), "minute=a", hits=7)

        assert decision.code is OVER
        assert decision.statuses[1].remaining == 100


async def test_a_bucket_counts_no_more_than_it_has_room_for(service: Asking) -> None:
    """A bucket cannot owe, so a report beyond what it holds is not counted."""
    assert [await ask(service, f"bucket=a {hits}") for hits in (60, 60, 0, 40)] == [
        OK,
        OVER,
        OK,
        OK,
    ]


@pytest.mark.parametrize(
    ("counted", "admitted"),
    [(CountDenied.NONE, 200), (CountDenied.REPORTED, 2), (CountDenied.ALL, 2)],
)
async def test_token_budgets(
    tmp_path: Path, store: Store, clock: Time, counted: CountDenied, admitted: int
) -> None:
    """Of 200 answers of 60 tokens a limit of 100 lets two through, if what was used counts."""
    service = serving(tmp_path, store, clock, counted)
    passed = 0
    for _ in range(200):
        if await ask(service, "minute=a 0") is OK:
            passed += 1
            await ask(service, "minute=a 60")

    assert passed == admitted


@pytest.mark.parametrize(
    "how",
    [
        "algorithm: fixed_window",
        "anchor: first_hit",
        "per: calendar",
        "algorithm: sliding_window",
        "algorithm: sliding_window, buckets: 6",
    ],
)
async def test_counters_at_their_top_are_over(
    tmp_path: Path, store: Store, clock: Time, how: str
) -> None:
    """What a counter cannot hold any more may have come, so a look at its top does not pass."""
    limit = f"{{unit: day, requests_per_unit: {MAX_ADDEND}, {how}}}"
    rules = f"domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"
    settings = Settings(count_denied=CountDenied.REPORTED)
    service = Asking(tmp_path, rules, settings=settings, store=store, clock=clock)

    hits = [MAX_ADDEND - 1, 0, 1, 0, 1, 0, -1, 0, 5, 0]
    codes = [await ask(service, f"user=a {each}") for each in hits]

    assert codes == [OK, OK, OK, OVER, OVER, OVER, OK, OK, OVER, OVER]


@pytest.mark.parametrize(
    ("rules", "given", "counted"),
    [
        ("rules", None, CountDenied.NONE),
        ("xds://localhost:18000", None, CountDenied.REPORTED),
        ("xds://localhost:18000", CountDenied.NONE, CountDenied.NONE),
        ("rules", CountDenied.ALL, CountDenied.ALL),
    ],
)
def test_default(rules: str, given: CountDenied | None, counted: CountDenied) -> None:
    """Reports count where rules come over xDS, unless something else is said."""
    assert Settings(rules=rules, count_denied=given).denied_counted is counted
