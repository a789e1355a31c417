"""What the local cache denies by itself, and what it leaves to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
import redis

from ratelimit_service.algorithms import capacity_of, spec_of
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import FailurePolicy, Hit, Limit, Mode, Outcome, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER, Done, Outcomes, Settled, Wanted, always
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.servers.redis import RedisServer
from tests.service.asking import Away
from tests.stores import algorithms
from tests.stores.cases import MINUTE, SECOND, YEAR, T, charged, hearing, hit, over, refund
from tests.stores.conftest import Time
from tests.stores.redis_store import GENEROUS_US, started
from tests.waiting import until


class Counting(Away):
    """The memory store, with how many requests have reached it."""

    waits = True

    def __init__(self, clock: Time) -> None:
        self._memory = MemoryStore(1_000, Stats(), Health(), clock)
        self._clock = clock
        self.asked = 0
        self.way_us = 0
        """How long answers take to come."""
        self.held: list[Callable[[], None]] | None = None

    def hold(self) -> list[Callable[[], None]]:
        """From now on answers are on their way until the test calls them."""
        self.held = []
        return self.held

    def let_go(self) -> None:
        self.held = None

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        def came(settled: list[Settled]) -> None:
            self._clock.now_us += self.way_us
            if self.held is None:
                done(settled)
            else:
                self.held.append(lambda: done(settled))

        self.asked += len(requests)
        self._memory.charge(requests, came, wanted, deadline_us, priority)


class Fixture:
    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.time = Time()
        self.stats = Stats()
        self.store = Counting(self.time)
        self.cache = LocalCache(self.store, max_bytes, self.stats, self.time)

    async def charge(self, *requests: Sequence[Hit]) -> list[Outcomes]:
        return await charged(self.cache, requests)

    async def reached(self, *requests: Sequence[Hit]) -> int:
        """How many of the requests the store is asked for."""
        before = self.store.asked
        await self.charge(*requests)
        return self.store.asked - before


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


async def test_known_to_be_over(fixture: Fixture) -> None:
    """Once denied, a key is denied without the store, with the same answer, for a second."""
    await fixture.charge([hit(5)], [hit()])
    fixture.time.now_us = T + SECOND - 1

    ((known,), (other,)) = await fixture.charge([hit()], [hit(key="b")])

    assert known == over(0, reset_us=MINUTE - SECOND + 1)
    assert other is not None
    assert not other.over
    assert fixture.store.asked == 3
    assert fixture.stats.local_cache == {"hit": 1, "miss": 3}
    fixture.time.now_us = T + SECOND
    assert await fixture.reached([hit()]) == 1


async def test_no_longer_than_it_is_over(fixture: Fixture) -> None:
    """A key leaves when a hit would pass, if that is sooner."""
    fixture.time.now_us = T + MINUTE - 10
    await fixture.charge([hit(5)], [hit()])

    fixture.time.now_us = T + MINUTE

    assert await fixture.charge([hit()]) == [[Outcome(False, 4, MINUTE, 1)]]


@pytest.mark.parametrize("way_us", [1, 8_000, 20_000])
async def test_no_longer_however_slow_the_answer(fixture: Fixture, way_us: int) -> None:
    """A key leaves when its window is over where it was counted, not by the answer's way later."""
    fixture.time.now_us = T + MINUTE - 50_000
    await fixture.charge([hit(5)])
    fixture.store.way_us = way_us
    await fixture.charge([hit()])
    fixture.store.way_us = 0

    fixture.time.now_us = T + MINUTE - 1
    assert await fixture.reached([hit()]) == 0
    fixture.time.now_us = T + MINUTE
    assert await fixture.charge([hit()]) == [[Outcome(False, 4, MINUTE, 1)]]


@pytest.mark.parametrize(
    "limit",
    [
        algorithms.FIRST_HIT,
        algorithms.SLIDING,
        algorithms.PARTS,
        algorithms.LOG,
        algorithms.TOKENS,
        algorithms.METER,
    ],
    ids=lambda limit: spec_of(limit).key,
)
async def test_every_algorithm(limit: Limit, fixture: Fixture) -> None:
    """Whatever counts, a key known to be over asks no store and waits as long as the store says."""
    one = algorithms.hit(limit)
    await fixture.charge([one._replace(addend=capacity_of(limit))])
    ((first,),) = await fixture.charge([one])

    fixture.time.now_us += 7
    ((second,),) = await fixture.charge([one])

    assert first is not None
    assert second == first.replaced(reset_us=first.reset_us - 7)
    assert fixture.store.asked == 2


FULL = hit(5)
NEVER_CACHED = {
    "shadow": hit(mode=Mode.SHADOW),
    "quota": hit(mode=Mode.QUOTA),
    "count_denied": hit(count_denied=True),
    "peek": hit(0),
    "several hits": hit(2),
    "refund": refund(hit()),
}


@pytest.mark.parametrize("one", NEVER_CACHED.values(), ids=NEVER_CACHED)
async def test_never_denied_from_it(one: Hit, fixture: Fixture) -> None:
    """What counts or answers otherwise than an enforced hit always asks the store."""
    await fixture.charge([FULL], [hit()])

    assert await fixture.reached([one]) == 1


@pytest.mark.parametrize("one", list(NEVER_CACHED.values())[:3], ids=list(NEVER_CACHED)[:3])
async def test_never_enters(one: Hit, fixture: Fixture) -> None:
    """Nor does such a hit make a key known to be over."""
    await fixture.charge([FULL], [one])

    assert await fixture.reached([hit()]) == 1


async def test_leases_come_back_at_any_time(fixture: Fixture) -> None:
    """A limit on concurrency is always asked of the store."""
    one = algorithms.hit(algorithms.LEASES, 3, lease=b"lease--1")
    await fixture.charge([one], [one._replace(addend=1)])

    assert await fixture.reached([one._replace(addend=1)]) == 1


async def test_only_if_all_is_known(fixture: Fixture) -> None:
    """A request beside whose denied hit another is not known tells what is left of that."""
    await fixture.charge([FULL], [hit()])

    ((denied, beside),) = await fixture.charge([hit(), hit(key="b")])

    assert (denied, beside) == (over(0), Outcome(False, 5, MINUTE, 0))


async def test_denied_by_its_own_request(fixture: Fixture) -> None:
    """A key that only the other hits of the same request have filled is not known to be over."""
    await fixture.charge([hit(5), hit()])

    assert await fixture.charge([hit()]) == [[Outcome(False, 4, MINUTE, 1)]]


async def test_own_refund_is_known_at_once(fixture: Fixture) -> None:
    """What this process gives back can be taken at once."""
    await fixture.charge([FULL], [hit()])

    await fixture.charge([refund(hit())])

    assert await fixture.charge([hit()]) == [[Outcome(False, 0, MINUTE, 1)]]


async def test_give_back_undoes_what_was_learned(fixture: Fixture) -> None:
    """Once hits are given back, what has denied a key before is not believed any more."""
    await fixture.charge([FULL], [hit()])

    fixture.cache.given_back([hit().key])

    assert await fixture.reached([hit()]) == 1


async def test_denial_under_way_while_hits_are_given_back(fixture: Fixture) -> None:
    """A denial that was settled before a give-back, and is told after it, makes no key known."""
    await fixture.charge([FULL])
    held = fixture.store.hold()
    told: list[list[Outcomes]] = []
    fixture.cache.charge([[hit()], [hit(key="b", limit=0)]], hearing(told.append))
    fixture.time.now_us += 1
    fixture.cache.given_back([hit().key])
    (answer,) = held
    fixture.store.let_go()

    answer()

    fixture.time.now_us += 1
    assert [len(one) for one in told] == [2]
    assert await fixture.reached([hit()]) == 1
    assert await fixture.reached([hit(key="b", limit=0)]) == 0
    assert await fixture.reached([hit()]) == 0


async def test_refund_while_a_denial_is_under_way(fixture: Fixture) -> None:
    """The same goes for a refund by a request of this process."""
    await fixture.charge([FULL])
    held = fixture.store.hold()
    fixture.cache.charge([[hit()]], lambda _: None)
    (answer,) = held
    fixture.store.let_go()
    fixture.time.now_us += 1
    await fixture.charge([refund(hit())])

    answer()

    assert await fixture.charge([hit()]) == [[Outcome(False, 0, MINUTE - 1, 1)]]


async def test_more_give_backs_than_are_known_by_key(fixture: Fixture) -> None:
    """However many keys are given back meanwhile, a denial from before is never believed."""
    await fixture.charge([FULL])
    held = fixture.store.hold()
    fixture.cache.charge([[hit()]], lambda _: None)
    (answer,) = held
    fixture.store.let_go()
    fixture.time.now_us += 1
    fixture.cache.given_back([hit().key])
    for number in range(5_000):
        fixture.cache.given_back([b"%d" % number])

    answer()

    assert await fixture.reached([hit()]) == 1


async def test_denied_by_a_charge_that_is_given_back_late(own_redis: RedisServer) -> None:
    """What was counted after its request was answered denies nobody once it is given back."""
    store = RedisStore(own_redis.url, GENEROUS_US, Stats(), Health())
    # No time passes in the cache, so that nothing leaves it because of its age.
    cache = LocalCache(store, 1 << 20, Stats(), lambda: T)
    store.tell_of_give_backs(cache.given_back)
    await started(store)
    (shard,) = store.shards
    one = hit(limit=1, window_us=YEAR)._replace(policy=FailurePolicy.CLOSED)
    told: list[list[Outcomes]] = []

    with redis.Redis.from_url(own_redis.url) as client:
        cache.charge([[one]], hearing(told.append))
        while not shard.state("").under_way:
            await asyncio.sleep(0)
        while not client.get(one.key):
            pass  # nor is anything read meanwhile
        # No deadline ends just between the count and the read of its reply.
        ((_, _, asked),) = store._waiting
        asked.expire(elapsed_us())  # its time is over before its reply is read
        assert told == [[[None]]]
        ((denied,),) = await charged(cache, [[one]])
        await until(lambda: shard.idle)

    assert denied is not None
    assert denied.over
    ((outcome,),) = await charged(cache, [[one]])
    assert outcome is not None
    assert (outcome.over, outcome.charged) == (False, 1)
    await store.close()


async def test_changed_limit(fixture: Fixture) -> None:
    """A rule with another number asks the store."""
    await fixture.charge([FULL], [hit()])

    assert await fixture.charge([hit(limit=6)]) == [[Outcome(False, 0, MINUTE, 1)]]


async def test_emptied_by_another_rate(fixture: Fixture) -> None:
    """A bucket that leaks by another descriptor's rate may have room again: the store is asked."""
    slow = Limit(6, Unit.MINUTE, algorithm="token_bucket")
    one = hit()._replace(spec=spec_of(slow))
    faster = hit()._replace(spec=spec_of(slow._replace(requests_per_unit=600)))
    await fixture.charge([one._replace(addend=6)], [one])
    fixture.time.now_us = T + SECOND // 2

    await fixture.charge([faster])

    ((outcome,),) = await fixture.charge([one])
    assert outcome is not None
    assert not outcome.over


async def test_bounded_in_bytes() -> None:
    """What no longer fits goes, the oldest first."""
    fixture = Fixture(max_bytes=4_000)
    keys = [f"{number:02}" for number in range(20)]
    for key in keys:
        await fixture.charge([hit(key=key, limit=0)])

    assert 10 <= len(fixture.cache) < 13
    assert await fixture.reached([hit(key=keys[0], limit=0)]) == 1
    assert await fixture.reached([hit(key=keys[-2], limit=0)]) == 0
