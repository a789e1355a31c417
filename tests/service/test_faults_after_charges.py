"""A request that is refused for a fault of ours has charged nothing, wherever the fault was met."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.limiter.additions import ADDITIONS, Addition, DecisionContext, ResponseExtras
from ratelimit_service.limiter.additions.header_set import ChosenHeaders
from ratelimit_service.model import Code, Hit, Limit, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Rule
from ratelimit_service.service import Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Wanted, always
from ratelimit_service.stores.memory import MemoryStore
from tests.service.asking import Asking, Away, Busy, descriptor
from tests.service.overriding import GRANT, LIMIT, override
from tests.stores.conftest import Time, store_named

WAYS = {
    "fixed": "",
    "first": "anchor: first_hit",
    "soft": "soft: 50%",
    "counting": "count_denied: true",
    "sliding": "algorithm: sliding_window",
    "parts": "algorithm: sliding_window, buckets: 6",
    "log": "algorithm: sliding_log",
    "token": "algorithm: token_bucket",
    "leaky": "algorithm: leaky_bucket",
    "queue": "algorithm: leaky_bucket, max_wait: 1m",
    "leases": "algorithm: concurrency",
}
RULES = "domain: edge\ndescriptors:\n" + "\n".join(
    f"  - {{key: {way}, rate_limit: {{unit: minute, requests_per_unit: 4, {says}}}}}"
    for way, says in WAYS.items()
)
RULES += """
  - key: turns
    charge: first
    rate_limits:
      - {name: tier, unit: minute, requests_per_unit: 4}
      - {name: reserve, unit: hour, requests_per_unit: 1}
"""
SETTINGS = {
    "reference": Settings(headers="reference"),
    "x-ratelimit": Settings(headers="x-ratelimit"),
    "ietf": Settings(headers="ietf"),
    "DenialBody": Settings(denial_body="json"),
    "RequestMetadata": Settings(dynamic_metadata=True),
    "DecisionMetadata": Settings(decision_metadata=True),
    "Quota": Settings(denial_quota=True),
}
"""What makes an addition speak, where no rule does."""


class Failing:
    """An addition that speaks when another does, and fails where a request has hits."""

    def __init__(self, of: Addition) -> None:
        self._of = of
        self.needs_request, self.covers_bans = of.needs_request, of.covers_bans
        self.failing = True

    def enabled(self, settings: Settings) -> bool:
        return self._of.enabled(settings)

    def applies_to(self, settings: Settings, rule: Rule | None, limits: Sequence[Limit]) -> bool:
        return self._of.applies_to(settings, rule, limits)

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        if self.failing:
            raise RuntimeError("an addition failed")
        self._of.add(context, extras)


NAMES = [
    str(each.chosen) if isinstance(each, ChosenHeaders) else type(each).__name__
    for each in ADDITIONS
]


@pytest.fixture(params=NAMES)
def failing(request: pytest.FixtureRequest) -> Iterator[Failing]:
    place = NAMES.index(request.param)
    addition = ADDITIONS[place]
    ADDITIONS[place] = failing = Failing(addition)
    yield failing
    ADDITIONS[place] = addition


@pytest.fixture(params=["memory", "redis"])
def asking(tmp_path: Path, request: pytest.FixtureRequest, failing: Failing, clock: Time) -> Asking:
    settings = SETTINGS.get(request.node.callspec.params["failing"], Settings())
    store = store_named(request.param, request)
    return Asking(tmp_path, RULES, settings=settings, store=store, clock=clock)


def request(*asked: str, hits: int = 0) -> Request:
    return Request("edge", tuple(map(descriptor, asked)), hits)


ALL = [f"{way}=x" for way in (*WAYS, "turns")]
GRANTED = [text for text in ALL if text != "leases=x"]


async def test_a_fault_in_an_answer_gives_back(asking: Asking, failing: Failing) -> None:
    """Whatever says something in an answer: if it fails, all hits of the request are given back."""
    for _ in range(3):
        answer = await asking.answer(request(*ALL, hits=2))
        assert isinstance(answer, Refusal), answer
        assert answer.code is StatusCode.INTERNAL

    failing.failing = False
    decision = await asking.ask(*ALL, hits=4)
    assert decision.code is Code.OK
    assert len([one for one in decision.statuses if one.code is Code.OK]) == len(ALL)


async def test_denied_hits_that_count_are_given_back(asking: Asking, failing: Failing) -> None:
    """A denial that cannot be told has counted nothing either."""
    failing.failing = False
    assert (await asking.ask(*ALL)).code is Code.OK
    failing.failing = True
    for _ in range(2):
        answer = await asking.answer(request(*ALL, hits=4))
        assert isinstance(answer, Refusal), answer

    failing.failing = False
    assert (await asking.ask(*ALL, hits=3)).code is Code.OK


async def test_granted_hits_are_given_back_to_the_grant(asking: Asking, failing: Failing) -> None:
    """Hits come back to the counter that they were charged on: a grant's, or the limit's."""
    asking.service.overrides.add([override(GRANT, text, 2) for text in GRANTED])
    for _ in range(2):
        answer = await asking.answer(request(*ALL))
        assert isinstance(answer, Refusal), answer

    failing.failing = False
    assert (await asking.ask(*ALL, hits=2)).code is Code.OK
    assert (await asking.ask(*GRANTED, hits=4)).code is Code.OK
    assert (await asking.ask(*GRANTED)).code is Code.OVER_LIMIT


async def test_hits_that_were_given_back_stay_so(asking: Asking, failing: Failing) -> None:
    """A refund whose answer fails has counted; what was charged beside it is given back."""
    failing.failing = False
    assert (await asking.ask(*ALL, hits=2)).code is Code.OK
    failing.failing = True
    back = descriptor("fixed=x", addend=2, refund=True)
    answer = await asking.answer(Request("edge", (back, *map(descriptor, ALL[1:]))))
    assert isinstance(answer, Refusal), answer

    failing.failing = False
    assert (await asking.ask("fixed=x", hits=4)).code is Code.OK
    assert (await asking.ask(*ALL[1:], hits=2)).code is Code.OK


class Raising(Away):
    """A memory store that fails behind each charge, and says afterwards what it has counted."""

    def __init__(self) -> None:
        self._memory = MemoryStore(99, Stats(), Health(), Time())
        self._waiting: list[Callable[[], None]] = []
        self.failing = True

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        if not self.failing or requests[0][0].refund:
            self._memory.charge(requests, done, wanted, deadline_us, priority)
            return
        self._memory.charge(requests, lambda found: self._waiting.append(partial(done, found)))
        raise RuntimeError("the store failed behind a charge")

    def go_on(self) -> None:
        """Says what was counted."""
        for each in self._waiting:
            each()
        self._waiting.clear()


@pytest.mark.parametrize("granted", [False, True])
async def test_a_store_that_fails_behind_a_charge(tmp_path: Path, granted: bool) -> None:
    """Where the store fails and later says what it has counted, that is given back."""
    store = Raising()
    asking = Asking(tmp_path, RULES, store=store)
    if granted:
        asking.service.overrides.add([override(GRANT, "fixed=x", 4)])
    answer = await asking.answer(request("fixed=x", "log=x", hits=3))
    assert isinstance(answer, Refusal), answer
    store.go_on()

    store.failing = False
    assert (await asking.ask("fixed=x", "log=x", hits=4)).code is Code.OK


async def test_an_answer_that_comes_twice_gives_nothing_back(tmp_path: Path) -> None:
    """What was charged for a request that passes stays counted, whatever the store says again."""
    store = Busy()
    asking = Asking(tmp_path, RULES, store=store)
    asked = asyncio.create_task(asking.ask("fixed=x"))
    await asyncio.sleep(0)
    store.waiting *= 2
    store.go_on()

    assert (await asked).code is Code.OK
    assert len(store.priorities) == 1  # it was asked for nothing else


@pytest.mark.parametrize("hits", [0, 1])
async def test_a_queue_without_places(tmp_path: Path, hits: int) -> None:
    """A queue that an override leaves no hits answers who looks, and denies who asks."""
    asking = Asking(tmp_path, RULES)
    asking.service.overrides.add([override(LIMIT, "queue=x", 0)])
    look = descriptor("queue=x", addend=0)
    for _ in range(2):
        decision = await asking.ask("fixed=x", descriptor("queue=x", addend=hits))
        assert decision.code is (Code.OVER_LIMIT if hits else Code.OK)
        if not hits:
            assert decision.metadata is not None
            assert decision.metadata["delay_ms"] == 0

    assert (await asking.ask("fixed=x", look, hits=4 if hits else 2)).code is Code.OK
    assert (await asking.ask("fixed=x")).code is Code.OVER_LIMIT
