"""What is held and given back: places of leases, and budgets, with the real rules."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ratelimit_client import (
    BadRequestError,
    DeniedError,
    Descriptor,
    Reason,
)
from tests.ratelimit_client.broken import LOST, UNSENT, Broken, virtual


async def test_lease_is_given_back_by_cancelled_tasks() -> None:
    """A task that is cancelled gives its place back, also if it is cancelled while doing so."""
    line = Broken()
    limiter = line.limiter()
    inside = asyncio.Event()

    async def work() -> None:
        async with limiter.lease(slot="a"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)  # it is about to give back
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):  # what goes on without the task
        await asyncio.sleep(0)

    assert (await limiter.check(slot="a", cost=0)).remaining == 2


async def test_lease_is_given_back_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Giving back is tried again, since that cannot give back too much; a failure is logged."""
    line = Broken(None, LOST, UNSENT)
    limiter = line.limiter()
    async with limiter.lease(slot="a", cost=2):
        pass
    assert (await limiter.check(slot="a", cost=0)).remaining == 2

    line = Broken(None, LOST, LOST, LOST)
    caplog.set_level(logging.WARNING, "ratelimit_client")
    async with line.limiter().lease(slot="a"):
        pass
    assert len(line.asked) == 4
    assert "ends with its window" in caplog.text


async def test_denied_lease() -> None:
    """A block whose place is taken is not entered."""
    limiter = virtual()
    first, second = await limiter.lease(slot="a"), await limiter.lease(slot="a")
    with pytest.raises(DeniedError) as raised:
        async with limiter.lease(slot="a"):
            raise AssertionError

    assert raised.value.decision.reason is Reason.OVER_LIMIT
    for lease in (first, second, second):
        await lease.release()
    assert (await limiter.check(slot="a", cost=0)).remaining == 2


async def test_lease_beside_other_limits() -> None:
    """A block gives its place back, and nothing of the limits beside it."""
    limiter = virtual()
    async with limiter.lease({"slot": "a"}, {"user": "a"}):
        pass

    assert (await limiter.check(slot="a", cost=0)).remaining == 2
    assert (await limiter.check(user="a", cost=0)).remaining == 2


async def test_lease_without_an_answer() -> None:
    """Who was let in because the service is away gives nothing back."""
    line = Broken(LOST)
    async with line.limiter(on_failure="open").lease(slot="a") as lease:
        assert lease.decision.reason is Reason.UNAVAILABLE
    assert len(line.asked) == 1


@pytest.mark.parametrize(
    ("reserved", "actual", "left"),
    [(400, 150, 850), (400, 400, 600), (400, 900, 100), (400, 1500, 0), (0, 300, 700)],
)
async def test_budget(reserved: int, actual: int, left: int) -> None:
    """What is settled is what was used, or all that is left of the limit."""
    limiter = virtual()
    async with limiter.reserve(tokens="a", cost=reserved) as budget:
        assert (await limiter.check(tokens="a", cost=0)).remaining == 1000 - reserved
        budget.spend(100)
        budget.spend(actual - 100)

    assert (await limiter.check(tokens="a", cost=0)).remaining == left


async def test_budget_is_held_until_its_end() -> None:
    """A virtual limiter holds as the service: until it is settled, or its time is over."""
    limiter = virtual()
    async with limiter.reserve(stream="a", cost=400, ttl=10) as budget:
        limiter.clock.advance(9)
        assert (await budget.extend(10)).reservation == budget.decision.reservation
        limiter.clock.advance(9)
        assert (await limiter.check(stream="a", cost=0)).remaining == 600
        with pytest.raises(DeniedError):
            await limiter.reserve(stream="a", cost=601)
        with pytest.raises(DeniedError, match="may not hold so much"):
            await limiter.reserve(stream="a", cost=1_001)
        budget.spend(1_100)
    assert not await limiter.check(stream="a", cost=0)

    await limiter.reserve(stream="b", cost=400, ttl=10)
    limiter.clock.advance(10)
    assert (await limiter.check(stream="b", cost=0)).remaining == 1_000


async def test_a_settle_without_an_answer_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It decides on no request, so the log tells of the budget and not of requests."""
    line = Broken(None, LOST, LOST, LOST)
    caplog.set_level(logging.WARNING, "ratelimit_client")
    async with line.limiter(on_failure="open").reserve(stream="a", cost=400) as budget:
        budget.spend(50)

    assert len(line.asked) == 4
    assert caplog.messages == [
        "no answer in time; what a budget has used may not be counted, and its hold ends by itself"
    ]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 31_536_001])
async def test_what_is_no_time_to_live(ttl: float) -> None:
    """It is refused before anything is asked, and what is allowed is said."""
    line = Broken()
    budget = await line.limiter().reserve(stream="a", cost=1)
    with pytest.raises(BadRequestError, match="seconds above 0 and up to a year"):
        await line.limiter().reserve(stream="a", cost=1, ttl=ttl)
    with pytest.raises(BadRequestError, match="or None for the longest"):
        await budget.extend(ttl)
    assert len(line.asked) == 1


async def test_extending_is_tried_again() -> None:
    """A lost answer does no harm: it takes the place of what it held before."""
    line = Broken(None, LOST, UNSENT)
    limiter = line.limiter()
    budget = await limiter.reserve(stream="a", cost=400)

    assert await budget.extend(60)
    assert (await limiter.check(stream="a", cost=0)).remaining == 600


async def test_budget_that_is_settled_by_hand() -> None:
    """Each settling says what was used in all, and charges the difference."""
    limiter = virtual()
    budget = await limiter.reserve({"tokens": "a"}, Descriptor.of({"user": "a"}, cost=1), cost=500)
    left = []
    for actual in (700, 700, 200, 0):
        assert (await budget.settle(actual)).allowed
        left.append((await limiter.check(tokens="a", cost=0)).remaining)

    assert left == [300, 300, 800, 1000]
    assert (await limiter.check(user="a", cost=0)).remaining == 2
    denied = await (await limiter.reserve(tokens="a", cost=900)).settle(1100)
    assert not denied.allowed


async def test_budget_of_rules_that_count_denied() -> None:
    """With a cost of 0 it looks, and what was used is charged even beyond the limit."""
    limiter = virtual()
    async with limiter.reserve(spent="a", cost=0) as budget:
        budget.spend(1200)

    with pytest.raises(DeniedError):
        await limiter.reserve(spent="a", cost=0)
    await limiter.refund(spent="a", cost=199)
    assert not await limiter.check(spent="a", cost=0)
    await limiter.refund(spent="a", cost=1)
    assert await limiter.check(spent="a", cost=0)


async def test_budget_that_nobody_settled() -> None:
    """A block that fails, or is cancelled, is charged what it told, else what was reserved."""
    limiter = virtual()

    async def work(spent: int) -> None:
        async with limiter.reserve(tokens="a", cost=100) as budget:
            if spent:
                budget.spend(spent)
            raise asyncio.CancelledError

    for spent, left in ((0, 900), (30, 870)):
        with pytest.raises(asyncio.CancelledError):
            await work(spent)
        assert (await limiter.check(tokens="a", cost=0)).remaining == left


async def test_budget_that_was_not_counted() -> None:
    """What was reserved while the service was away is charged whole, and not given back."""
    line = Broken(LOST)
    limiter = line.limiter(on_failure="open")
    async with limiter.reserve(tokens="a", cost=500) as budget:
        budget.spend(120)

    assert (await limiter.check(tokens="a", cost=0)).remaining == 880


def test_budget_of_nothing() -> None:
    """A budget whose descriptors all have a cost of their own has nothing to settle."""
    with pytest.raises(BadRequestError, match="has a cost of its own"):
        virtual().reserve(Descriptor.of({"tokens": "a"}, cost=1), cost=5)
