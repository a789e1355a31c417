"""Calls that there is no time for: how long one is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import FailurePolicy, Hit, Outcome
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER, Done, Outcomes, Wanted, always, judge
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.grpc.served_ends import RULES, Ends
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, Away, Timed
from tests.stores.cases import hearing, hit
from tests.stores.redis_store import started

PAST_US = 0
"""A deadline that is over."""

WAY_US = 60_000_000


async def test_a_count_is_waited_for_as_long_as_an_answer_can_still_be_in_time(
    tmp_path: Path,
) -> None:
    """A fifth of the caller's time is left for the answer."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))

    before = elapsed_us()
    assert ends.call(timeout="20S")
    after = elapsed_us()

    assert before + 16_000_000 <= store.deadlines_us[-1] <= after + 16_000_000


async def test_a_burst_is_no_overload(tmp_path: Path) -> None:
    """Calls that came together are all counted if they can be answered in time.

    So it is in memory and in a store that is waited for, and nobody hears of an overload.
    """
    for store in (Timed(), MemoryStore(100, Stats(), Health())):
        ends = Ends(Asking(tmp_path, RULES, store=store))
        ends.settle()

        assert all(ends.call(waited_us=40_000_000) for _ in range(20))
        ends.calls.look()
        assert not ends.stats.overloaded
        assert not ends.health.faults


async def test_what_waited_too_long_is_not_counted(tmp_path: Path) -> None:
    """A store is not asked about such a call, which is refused; fresh calls are counted again."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()

    assert ends.call()
    assert not ends.call(waited_us=66_000_000)
    assert not ends.call(waited_us=80_000_000)
    assert ends.call()

    assert len(store.deadlines_us) == 2
    assert ends.stats.overloaded == {"refused": 2}
    assert list(ends.health.faults) == ["overloaded"]


async def test_who_waits_for_less_than_the_way_to_a_store_is_asked_for(tmp_path: Path) -> None:
    """A far or slow store is no overload: failure policies answer those for whom it is that.

    Who has time for it is refused only if calls wait longer than its replies take.
    """
    store = Far()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()
    ends.service.reply_us = lambda: WAY_US

    assert ends.call(timeout="60S")
    assert ends.call(timeout="200S")
    assert not ends.call(timeout="100S", waited_us=1_000)

    assert len(store.deadlines_us) == 2
    assert ends.stats.overloaded == {"refused": 1}


async def test_callers_that_wait_longer_are_counted(tmp_path: Path) -> None:
    """Beside callers without time one that has time is counted."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    ends.call(waited_us=50_000_000)
    store.deadlines_us.clear()

    assert ends.call(waited_us=50_000_000, timeout="10000S")

    assert len(store.deadlines_us) == 1


@pytest.mark.parametrize("named", ["1n", "999999n", "1u", "2000u", "0m", "1m", "2m", "0S"])
async def test_who_waits_for_next_to_nothing_is_counted(tmp_path: Path, named: str) -> None:
    """A deadline of two milliseconds or less counts as none: nobody could answer in time."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()

    assert ends.call(timeout=named, waited_us=50_000_000)
    ends.calls.look()

    assert store.deadlines_us == [NEVER]
    assert not ends.stats.overloaded
    assert not ends.health.faults


async def test_a_long_wait_shows_in_health(tmp_path: Path) -> None:
    """Health says so while a call has waited for more than a second to be counted."""
    store = Holding()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.call(timeout="1m")
    (waiting,) = ends.pending[0]
    ends.pending[0][waiting] -= 1_100_000
    ends.calls.look()
    assert list(ends.health.faults) == ["waiting"]

    store.answer()
    ends.calls.look()

    assert ends.health.faults == {}


async def test_overload_is_over_when_all_calls_are_counted(tmp_path: Path) -> None:
    """Health speaks of it for a few seconds more."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.call(waited_us=80_000_000)

    ends.overload.look()
    assert list(ends.health.faults) == ["overloaded"]
    ends.overload._noted_us -= 6_000_000
    ends.overload.look()

    assert ends.health.faults == {}


class Holding(Away):
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.held: list[tuple[Done, Sequence[Sequence[Hit]]]] = []

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        self.held.append((done, requests))

    def answer(self) -> None:
        held, self.held = self.held, []
        for done, requests in held:
            super().charge(requests, done)


class Far(Timed):
    """A store that is far away, and busy as well."""

    def wait_us(self, priority: int) -> int:
        return WAY_US + 10_000_000


def minutely(policy: FailurePolicy, key: str = "a") -> Hit:
    return hit(key=key, limit=5)._replace(policy=policy)


async def test_a_well_server_is_not_asked_without_time(own_redis: RedisServer) -> None:
    """What there is no time for is decided by policy, also `local`, and blames no server."""
    stats, health = Stats(), Health()
    store = RedisStore(own_redis.url, 10_000_000, stats, health)
    await started(store)
    answers: list[list[Outcomes]] = []

    store.charge([[minutely(FailurePolicy.OPEN)]] * 9, hearing(answers.append), deadline_us=PAST_US)
    store.charge([[minutely(FailurePolicy.LOCAL)]], hearing(answers.append), deadline_us=PAST_US)

    assert answers[0] == [[None]] * 9
    ((local,),) = answers[1]
    assert local is not None
    assert local.local
    assert stats.store_errors == {"overloaded": 10}
    assert health.faults == {}
    await store.close()


async def test_who_is_known_to_be_over_is_denied_all_the_same() -> None:
    """A key in the local cache is denied whether or not there is time for the store."""
    over, answers = Over(), list[list[Outcomes]]()
    cache = LocalCache(over, 1 << 20, Stats())
    cache.charge([[minutely(FailurePolicy.OPEN)]], hearing(answers.append))

    cache.charge(
        [[minutely(FailurePolicy.OPEN)], [minutely(FailurePolicy.OPEN, "b")]],
        hearing(answers.append),
        deadline_us=PAST_US,
    )

    (denied,), (other,) = answers[1]
    assert denied is not None
    assert denied.over
    assert other is None


class Over(Away):
    """A store in which everything is over its limit, if it is given time."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        over = Outcome(True, 0, 60_000_000, 0) if deadline_us > PAST_US else None
        done([judge(hits, [over] * len(hits)) for hits in requests])
