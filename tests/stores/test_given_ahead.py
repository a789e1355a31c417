"""How many hits are given ahead: the same in Python and in Redis, from one table of cases."""

from __future__ import annotations

import pytest

from ratelimit_service.algorithms import settle, spec_of
from ratelimit_service.model import Anchor, Calendar, Hit, Limit, Mode, Receipt, State, Unit
from ratelimit_service.stores.redis import RedisStore
from tests.stores.cases import SECOND, T, charged
from tests.stores.conftest import Time

_LIMITS = {
    "clock": Limit(100, Unit.MINUTE),
    "first_hit": Limit(100, Unit.MINUTE, anchor=Anchor.FIRST_HIT),
    "calendar": Limit(100, Unit.DAY, anchor=Calendar(Unit.DAY, "Europe/Berlin")),
    "two counters": Limit(100, Unit.MINUTE, algorithm="sliding_window"),
    "sub-counters": Limit(100, Unit.MINUTE, algorithm="sliding_window", buckets=6),
}

_BUCKETS = {
    "token bucket": Limit(60, Unit.MINUTE, algorithm="token_bucket", burst=100),
    "leaky bucket": Limit(60, Unit.MINUTE, algorithm="leaky_bucket", burst=100),
}

_every_way = pytest.mark.parametrize("way", _LIMITS)


def _hit(way: str, addend: int = 1) -> Hit:
    limit = {**_LIMITS, **_BUCKETS}[way]
    return Hit(b"{0000abcd}" + way.encode(), spec_of(limit), addend)


def _advance(way: str, wanted: int, processes: int) -> Hit:
    lease = processes.to_bytes(2, "big")
    return _hit(way, wanted)._replace(mode=Mode.ADVANCE, lease=lease)


async def _both(store: RedisStore, clock: Time, hits: list[Hit]) -> list[int]:
    """How many of each hit are counted, a second apart, in Python; in Redis it is the same."""
    states: dict[bytes, State | None] = {}
    counted = []
    clock.now_us = T
    for hit in hits:
        clock.now_us += SECOND
        (step,), changes, _ = settle([hit], states.get, clock.now_us)
        states.update({key: changed.state for key, (_, changed) in changes.items()})
        ((outcome,),) = await charged(store, [[hit]])
        assert outcome is not None
        until_us = step.reset_us if step.passed else step.retry_us
        assert (outcome.charged, outcome.remaining) == (step.counted, step.remaining)
        assert (outcome.over, outcome.reset_us) == (not step.passed, until_us)
        counted.append(step.counted)
    return counted


@_every_way
@pytest.mark.parametrize(
    ("before", "asked", "given"),
    [
        (0, (10, 1), 10),
        (0, (90, 1), 50),
        (0, (90, 2), 25),
        (40, (90, 3), 10),
        (99, (90, 1), 0),
        (100, (90, 1), 0),
        (84, (90, 2), 4),
        (85, (90, 2), 0),
        (0, (3, 1), 0),
    ],
)
async def test_at_most_its_share_of_half_of_what_is_left(
    redis_store: RedisStore,
    clock: Time,
    way: str,
    before: int,
    asked: tuple[int, int],
    given: int,
) -> None:
    """What is asked for, but at most left / 2N, and nothing below 4: such hits are soon spent."""
    hits = [_hit(way, before), _advance(way, *asked)]

    assert await _both(redis_store, clock, hits) == [before, given]


@_every_way
async def test_what_is_given_is_charged(redis_store: RedisStore, clock: Time, way: str) -> None:
    """Hits that are given ahead are on the counter, as if they had been asked for one by one."""
    hits = [_advance(way, 40, 1), _hit(way, 61), _hit(way, 60), _hit(way, 1)]

    assert await _both(redis_store, clock, hits) == [40, 0, 60, 0]


@_every_way
async def test_what_is_handed_back_has_room_again(
    redis_store: RedisStore, clock: Time, way: str
) -> None:
    """A part of an advance is given back by its receipt, where it was charged."""
    (given,) = await charged(redis_store, [[_advance(way, 40, 1)]])
    assert given[0] is not None
    receipt = Receipt(clock.now_us, clock.now_us + given[0].reset_us)
    back = _hit(way, 30)._replace(refund=True, receipt=receipt)

    (told,) = await charged(redis_store, [[back]])
    (left,) = await charged(redis_store, [[_hit(way, 90)]])

    assert told[0] is not None
    assert left[0] is not None
    assert (told[0].charged, left[0].charged, left[0].remaining) == (30, 90, 0)


@_every_way
async def test_nothing_is_given_back_twice_into_another_window(
    redis_store: RedisStore, clock: Time, way: str
) -> None:
    """A hand-back that comes when its window is over takes nothing off the next one."""
    (given,) = await charged(redis_store, [[_advance(way, 40, 1)]])
    assert given[0] is not None
    receipt = Receipt(clock.now_us, clock.now_us + given[0].reset_us)
    clock.now_us += 2 * 86_400 * SECOND
    await charged(redis_store, [[_hit(way, 50)]])

    (told,) = await charged(redis_store, [[_hit(way, 40)._replace(refund=True, receipt=receipt)]])

    assert told[0] is not None
    assert told[0].charged == 0


@pytest.mark.parametrize("way", _BUCKETS)
async def test_buckets_give_of_what_is_free(redis_store: RedisStore, clock: Time, way: str) -> None:
    """In a bucket it is half of what is free at that moment, and it leaks away as any hits."""
    hits = [_hit(way, 40), _advance(way, 90, 1), _hit(way, 33), _hit(way, 32)]

    assert await _both(redis_store, clock, hits) == [40, 30, 0, 32]
