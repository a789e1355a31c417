"""The queue before one Redis server: what goes out in which script call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import PRIORITIES
from ratelimit_service.stores.redis.batch import Background, Batch, Retry, Urgency
from ratelimit_service.stores.redis.batches import Batches
from ratelimit_service.stores.redis.server import Server
from ratelimit_service.stores.redis.server_clock import ServerClock
from tests.stores.cases import hit

pytestmark = pytest.mark.skipif(compiled(), reason="its server cannot be replaced then")

TIMEOUT_US = 10_000_000
OVERTAKEN_US, FRESH_US = TIMEOUT_US // 2, TIMEOUT_US


class Queue(Batches):
    """A queue whose calls are taken out here, and are not sent."""

    def __init__(self) -> None:
        clock = ServerClock(None)
        server = SimpleNamespace(available=True, timeout_us=TIMEOUT_US, clock=clock)
        super().__init__(cast(Server, server), Stats())
        self._sending = True

    def add(self, priority: int, left_us: int, hits: int = 1, *, wanted: bool = True) -> Background:
        """Adds a request with so many hits."""
        requests = [[hit(key=f"{priority}-{at}") for at in range(hits)]]
        batch = Background(requests, urgency=Urgency(elapsed_us() + left_us, priority=priority))
        if not wanted:
            batch.wanted = lambda _: False
        self.charge(batch)
        return batch

    def next_priorities(self, below: int = PRIORITIES) -> list[int]:
        """The priorities of the requests in the next call."""
        calls = self._next_calls(below, elapsed_us())
        return [batch.urgency.priority for call in calls.values() for batch, _ in call.parts]

    def next_lowest(self) -> int:
        """The priority of the next call."""
        return self._next_calls(PRIORITIES, elapsed_us())[0].priority


@pytest.mark.parametrize(("overtaken", "lowest"), [(1, 1), (1, 70), (130, 1), (300, 1), (300, 300)])
async def test_every_other_call_is_for_what_was_overtaken_for_long(
    overtaken: int, lowest: int
) -> None:
    """So nothing is planned in vain, and the smallest priority waits for one call at most.

    That is so whatever requests weigh.
    """
    queue = Queue()
    for _ in range(1_000 // overtaken):
        queue.add(7, OVERTAKEN_US, overtaken)
    for _ in range(1_000 // lowest):
        queue.add(0, FRESH_US, lowest)

    calls = [queue.next_priorities() for _ in range(4)]

    assert [each[0] for each in calls] == [7, 0, 7, 0]
    assert all(calls)


async def test_what_has_time_waits_for_lower_priorities() -> None:
    """Who has little under way comes first, as long as it is not too late for others soon."""
    queue = Queue()
    for _ in range(1_000):
        queue.add(7, FRESH_US)
        queue.add(0, FRESH_US)

    assert [set(queue.next_priorities()) for _ in range(4)] == [{0}] * 4


async def test_what_was_overtaken_goes_in_the_order_of_deadlines() -> None:
    """Not of priorities: else those of larger priorities would be overtaken again."""
    queue = Queue()
    queue.add(3, OVERTAKEN_US + 100_000)
    queue.add(7, OVERTAKEN_US)
    queue.add(0, FRESH_US)
    queue.add(5, OVERTAKEN_US - 100_000)

    assert queue.next_priorities() == [5, 7, 3, 0]


async def test_what_may_not_be_sent_holds_back_no_other_priority() -> None:
    """While enough of the largest priority is under way, others go as if nothing of it waited."""
    queue = Queue()
    queue.add(7, OVERTAKEN_US - 100_000)
    for _ in range(300):
        queue.add(3, OVERTAKEN_US)
        queue.add(0, FRESH_US)

    assert set(queue.next_priorities(below=7)) == {3}
    assert set(queue.next_priorities(below=7)) == {0}


async def test_a_call_has_the_lowest_priority_of_what_it_charges() -> None:
    """And not of what nobody wants: what waits for its reply is held back by that."""
    queue = Queue()
    queue.add(7, OVERTAKEN_US)
    queue.add(0, FRESH_US, wanted=False)

    assert queue.next_lowest() == 7


def test_what_is_sent_again_and_again_can_be_told() -> None:
    """A process that is held up for seconds sends the same requests hundreds of times."""
    told: list[object] = []
    batch: Batch = Background([[hit(key=str(number))] for number in range(3)], told.append)
    batch = Retry(Retry(batch, [0, 2]), [1])
    for _ in range(5_000):
        batch = Retry(batch, [0])

    assert not batch.finished
    assert [hits[0].key for hits in batch.requests] == [hit(key="2").key]
    batch.failed([0], "overloaded")

    assert told == [None]
