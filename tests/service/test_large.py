"""A request of hundreds of descriptors is no long turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.model import Code, Descriptor, Entry, Hit, Override, OverrideKind, Request
from ratelimit_service.service import Answer, CallbackBatch, Refusal
from ratelimit_service.stores import NEVER, Done, Wanted, always
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import decode_decision, encode_request
from tests.service.asking import Asking, Away, descriptor
from tests.stores.cases import T

RULES = """
domain: edge
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100}}]
"""


def body(count: int) -> bytes:
    return encode_request(
        Request("edge", tuple(descriptor(f"user={number}") for number in range(count)))
    )


class Turns:
    """Which turn of the loop it is."""

    def __init__(self) -> None:
        self.number = 0

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.number += 1
            await asyncio.sleep(0)


class Noting(Away):
    """A store that notes how many hits it was charged with, and in which turn."""

    waits = False
    broken = False

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.turns = Turns()
        self.charged: list[tuple[int, int]] = []

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        if self.broken:
            raise KeyError("no counter")
        self.charged.append((self.turns.number, sum(map(len, requests))))
        self._store.charge(requests, done, wanted, deadline_us, priority)


Scene = tuple[Asking, Noting]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    asking = Asking(tmp_path, RULES)
    store = Noting(MemoryStore(1_000, asking.stats, asking.health, asking.clock))
    asking.service = asking.served_by(store, asking.settings)
    return asking, store


async def test_planned_and_charged_in_different_turns(scene: Scene) -> None:
    """It is planned in one turn, and charged and answered in the next."""
    asking, store = scene
    told: list[Answer] = []

    asking.service.submit(CallbackBatch([body(256)], told.extend))

    assert store.charged == []
    await store.turns.until(lambda: bool(told))
    assert store.charged == [(1, 256)]
    assert isinstance(told[0], bytes)
    decision = decode_decision(told[0])
    assert decision.code is Code.OK
    assert [status.remaining for status in decision.statuses] == [99] * 256


FOUR = """
domain: edge
descriptors:
- key: user
  rate_limits: [{window: 1h, requests_per_unit: 9}, {window: 2h, requests_per_unit: 9},
    {window: 3h, requests_per_unit: 9}, {window: 4h, requests_per_unit: 9}]
"""


def users(count: int, addend: int | None) -> Request:
    found = tuple(
        Descriptor((Entry("user", f"{each}"),), hits_addend=addend) for each in range(count)
    )
    return Request("edge", found)


@pytest.mark.parametrize("addend", [None, 1])
async def test_as_many_limits_as_one_request_is_counted_on(
    tmp_path: Path, addend: int | None
) -> None:
    """A request is counted on 256 limits; one of more is refused, counted nowhere and told why."""
    asking = Asking(tmp_path, FOUR)

    refused = [await asking.answer(users(count, addend)) for count in (65, 256)]
    counted = await asking.answer(users(64, addend))

    assert not isinstance(counted, Refusal)
    assert [each.remaining for each in counted.statuses] == [8] * 64
    assert (
        refused
        == [
            Refusal(
                StatusCode.INVALID_ARGUMENT,
                "the descriptors meet more than 256 limits together, and that is the most that one "
                "request is counted on: send fewer descriptors, or give their rules fewer limits",
            )
        ]
        * 2
    )
    assert asking.stats.refusals["too_many_limits"] == 2


async def test_what_overrides_touch_is_charged_in_a_later_turn(scene: Scene) -> None:
    """A large request with overrides takes a turn more than one without: to apply them."""
    asking, store = scene
    taken = (Entry("user", "1*"),)
    asking.service.overrides.add([Override("a", OverrideKind.LIMIT, "edge", taken, T, 50)])
    told: list[Answer] = []

    asking.service.submit(CallbackBatch([body(200)], told.extend))

    assert store.charged == []
    await store.turns.until(lambda: bool(told))
    assert store.charged == [(2, 200)]
    assert isinstance(told[0], bytes)
    left = [each.remaining for each in decode_decision(told[0]).statuses]
    assert left == [49 if str(user).startswith("1") else 99 for user in range(200)]


async def test_overrides_that_change_while_a_request_is_planned(scene: Scene) -> None:
    """A ban of meanwhile holds for the same request when it comes again, at the latest."""
    asking, store = scene
    overrides = asking.service.overrides
    overrides.add([Override("a", OverrideKind.LIMIT, "edge", (Entry("user", "1*"),), T, 50)])
    told: list[Answer] = []

    asking.service.submit(CallbackBatch([body(200)], told.extend))
    overrides.add([Override("b", OverrideKind.BAN, "edge", (Entry("user", "5*"),), T)])
    await store.turns.until(lambda: bool(told))
    told.clear()
    asking.service.submit(CallbackBatch([body(200)], told.extend))
    await store.turns.until(lambda: bool(told))

    assert isinstance(told[0], bytes)
    assert decode_decision(told[0]).code is Code.OVER_LIMIT


async def test_usual_requests_are_answered_at_once(scene: Scene) -> None:
    """Requests of few hits are planned, charged and answered in one turn, however many."""
    asking, store = scene
    told: list[Answer] = []

    asking.service.submit(CallbackBatch([body(2)] * 40, told.extend))

    assert store.charged == [(0, 80)]
    assert len(told) == 40


async def test_fault_in_the_second_turn(scene: Scene) -> None:
    """A fault of the store in the second turn refuses the request, as one in the first does."""
    asking, store = scene
    store.broken = True

    (answer,) = await asking.service.decide([body(256)])

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.INTERNAL


@pytest.mark.parametrize("count", [4, 5, 25])
async def test_too_many_short_entries(scene: Scene, count: int) -> None:
    """More than 1,024 entries are refused also where each descriptor is as short as it can be."""
    asking, _ = scene
    short = Descriptor((Entry("k", ""),) * count)

    answer = await asking.answer(Request("edge", (short,) * 256))

    assert isinstance(answer, Refusal) == (count > 4)
    if isinstance(answer, Refusal):
        assert "1024" in answer.message
