"""What `benchmarks.leased` takes for a window's hits."""

from __future__ import annotations

from collections import Counter

from benchmarks.leased import InStore
from ratelimit_service.model import SECOND_US, Limit, Unit
from ratelimit_service.stores.memory import MemoryStore
from tests.stores.conftest import Time
from tests.stores.leasing import hit

LIMIT = 10


async def test_hits_belong_to_the_window_that_counted_them(
    memory: MemoryStore, clock: Time
) -> None:
    """A hit asked in one window and counted in the next is not beyond the first one's limit."""
    one = hit(Limit(LIMIT, Unit.SECOND))
    window = clock.now_us // SECOND_US
    asked_us = (window + 1) * SECOND_US - 1_000
    decider = InStore(memory, lambda: asked_us)
    admitted = Counter[int]()

    for counted_us in (asked_us, asked_us + 100_000):
        clock.now_us = counted_us
        admitted.update(await decider.hit(one, 2 * LIMIT))

    assert admitted == {window: LIMIT, window + 1: LIMIT}
