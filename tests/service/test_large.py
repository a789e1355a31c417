"""A request of hundreds of descriptors is no long turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.model import Code, Descriptor, Entry, Hit, Request
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.stores import NEVER, Done, Wanted, always
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import decode_decision, encode_request
from tests.service.asking import Asking, descriptor

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


class Noting:
    """A store that notes how many hits it was charged with, and in which turn."""

    waits = False
    broken = False

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.turns = Turns()
        self.charged: list[tuple[int, int]] = []

    def wait_us(self, rank: int) -> int:
        return 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        rank: int = 0,
    ) -> None:
        if self.broken:
            raise KeyError("no counter")
        self.charged.append((self.turns.number, sum(map(len, requests))))
        self._store.charge(requests, done, wanted, deadline_us, rank)


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

    asking.service.submit([body(256)], told.extend)

    assert store.charged == []
    await store.turns.until(lambda: bool(told))
    assert store.charged == [(1, 256)]
    assert isinstance(told[0], bytes)
    decision = decode_decision(told[0])
    assert decision.code is Code.OK
    assert [status.remaining for status in decision.statuses] == [99] * 256


async def test_usual_requests_are_answered_at_once(scene: Scene) -> None:
    """Requests of few hits are planned, charged and answered in one turn, however many."""
    asking, store = scene
    told: list[Answer] = []

    asking.service.submit([body(2)] * 40, told.extend)

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
