"""What an algorithm can do is asked of what it declares: held by algorithms that are made up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from ratelimit_service.algorithms import ALGORITHMS, DEFAULT
from ratelimit_service.limiter import Planner
from ratelimit_service.model import (
    Algorithm,
    CountDenied,
    CounterSpec,
    Denied,
    Descriptor,
    Entry,
    Hit,
    Request,
)
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.local import Local
from tests.stores.cases import MINUTE, T

numbers = count(1_000_003)
"""Of limits that no other test has: a limit's spec is remembered."""


def hits(*, refund: bool = False, settings: Settings | None = None) -> list[Hit]:
    """What is planned of three hits on a rule with one limit, and on one with two."""
    number = next(numbers)
    limits = [f"{{unit: {unit}, requests_per_unit: {number}}}" for unit in ("minute", "hour")]
    rules = (
        "domain: d\ndescriptors:\n"
        f"  - {{key: one, rate_limit: {limits[0]}}}\n"
        f"  - {{key: two, rate_limits: [{', '.join(limits)}]}}\n"
    )
    domain = Domain("d", Level.of(parse("f", rules.encode()).nodes))
    descriptors = [
        Descriptor((Entry(key, ""),), hits_addend=3, is_negative_hits=refund)
        for key in ("one", "two")
    ]
    planner = Planner(settings or Settings())
    plans = planner.plan(Request("d", tuple(descriptors)), Snapshot(1, {"d": domain}))
    return [hit for plan in plans for hit in plan.hits]


@pytest.fixture
def can(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the fixed window other abilities."""

    def declare(**abilities: Any) -> None:
        other = Algorithm(DEFAULT.name, DEFAULT.letter, DEFAULT.charge, DEFAULT.refund, **abilities)
        monkeypatch.setitem(ALGORITHMS, DEFAULT.name, other)

    return declare


@pytest.mark.parametrize(
    ("denied", "counted"),
    [
        (Denied.NOT_COUNTED, (False, False)),
        (Denied.COUNTED_WITH_ROOM, (False, True)),
        (Denied.COUNTED, (False, True)),
        (Denied.ALWAYS_COUNTED, (True, True)),
    ],
)
def test_denied(can: Callable[..., None], denied: Denied, counted: tuple[bool, bool]) -> None:
    """Denied hits are counted where the algorithm always does, or a setting says so and it can."""
    can(denied=denied)

    alone, counting = hits(), hits(settings=Settings(count_denied=CountDenied.ALL))

    assert {hit.count_denied for hit in alone} == {counted[0]}
    assert {hit.count_denied for hit in counting} == {counted[1]}


@pytest.mark.parametrize("refunded", [True, False])
def test_refunded(can: Callable[..., None], refunded: bool) -> None:
    """Where callers can give nothing back a refund is of nothing."""
    can(refunded=refunded)

    assert [hit.addend for hit in hits()] == [3, 3, 3]
    assert [hit.addend for hit in hits(refund=True)] == [3 * refunded] * 3


@pytest.mark.parametrize(("divided", "admitted"), [(True, 4), (False, 0)])
def test_divided(divided: bool, admitted: int) -> None:
    """Of what cannot be divided each of several processes that count alone admits nothing."""
    spec = CounterSpec(
        Algorithm("x", "x", DEFAULT.charge, DEFAULT.refund, divided=divided), 10, MINUTE
    )
    local = Local(Stats())

    answers = [local.charge([Hit(b"k", spec)], 3, T) for _ in range(9)]
    alone = Local(Stats()).charge([Hit(b"k", spec)], 1, T)

    assert sum(outcome.charged for (outcome,) in answers) == admitted
    assert alone[0].charged == 1
