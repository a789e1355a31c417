"""The memory store is bounded, and says so when the bound costs exactness."""

from __future__ import annotations

import pytest

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.model import Calendar, Denied, Hit, Limit, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.memory import MemoryStore
from tests.stores import algorithms
from tests.stores.cases import BROKEN, MINUTE, SECOND, charged, hit, over, refund
from tests.stores.conftest import Time


def small_store(clock: Time, max_counters: int = 8) -> tuple[MemoryStore, Stats, Health]:
    stats, health = Stats(), Health()
    return MemoryStore(max_counters, stats, health, clock), stats, health


async def fill(store: MemoryStore, *hits: Hit) -> None:
    await charged(store, [[one] for one in hits])


async def room_after(store: MemoryStore, *hits: Hit) -> int:
    """How many counters there is room for once these, which are all that it has, are forgotten."""
    await store.forget(hits)
    assert len(store) == 0
    await fill(store, *(hit(key=f"anew{number}") for number in range(1_100)))
    return len(store)


async def test_never_more_counters_than_the_bound(clock: Time) -> None:
    """However many keys come, the store holds at most `max_counters`."""
    store, stats, _ = small_store(clock, 2_000)

    await fill(store, *(hit(key=f"k{number}") for number in range(5_000)))

    assert len(store) == 2_000
    assert stats.evictions == {"live": 3_000}


async def test_peeks_and_denied_hits_take_no_room(clock: Time) -> None:
    """Only what is counted is stored."""
    store, _, _ = small_store(clock)

    await fill(store, hit(0), hit(6), refund(hit(3)))

    assert len(store) == 0


async def test_expired_counters_go_first(clock: Time) -> None:
    """A full store puts out a counter whose window is over before any live one."""
    store, stats, health = small_store(clock)
    long = [hit(key=f"long{number}", window_us=60 * MINUTE) for number in range(4)]
    await fill(store, *long, *(hit(key=f"short{number}") for number in range(4)))
    clock.now_us += MINUTE

    await fill(store, *(hit(key=f"new{number}") for number in range(3)))

    assert "live" not in stats.evictions
    assert health.faults == {}
    answers = await charged(store, [[one._replace(addend=0)] for one in long])
    assert [outcome.remaining for (outcome,) in answers if outcome] == [4, 4, 4, 4]


async def test_smallest_share_goes_when_none_is_expired(clock: Time) -> None:
    """Among a few old live counters the one that has used least of its limit is put out."""
    store, _, _ = small_store(clock, 4)
    await fill(store, hit(4, key="a"), hit(3, key="b"), hit(1, key="c"), hit(5, key="d"))

    await fill(store, hit(key="new"))

    answers = await charged(store, [[hit(0, key=key)] for key in "abcd"])
    assert [outcome.remaining for (outcome,) in answers if outcome] == [1, 2, 5, 0]


async def test_a_light_counter_that_is_used_meanwhile_stays(clock: Time) -> None:
    """What was light when a counter was put out is spared once it has been used up."""
    store, stats, _ = small_store(clock, 12)
    await fill(store, *(hit(key=f"old{number}") for number in range(12)))
    await fill(store, hit(key="new"))
    left = [number for number in range(12) if store.state(hit(key=f"old{number}").key) is not None]
    await fill(store, *(hit(4, key=f"old{number}") for number in left[:8]))

    await fill(store, *(hit(key=f"flood{number}") for number in range(100)))

    answers = await charged(store, [[hit(0, key=f"old{number}")] for number in left[:8]])
    assert [outcome.remaining for (outcome,) in answers if outcome] == [0] * 8
    assert stats.evictions == {"live": 101}


async def test_flood_of_new_keys_does_not_free_a_used_up_counter(clock: Time) -> None:
    """A caller cannot get a new limit by flooding the store with other keys."""
    store, _, _ = small_store(clock, 100)
    await fill(store, hit(5, key="victim"))

    await fill(store, *(hit(key=f"flood{number}") for number in range(1_000)))

    ((outcome,),) = await charged(store, [[hit(key="victim")]])
    assert outcome is not None
    assert outcome.over


async def test_eviction_of_live_counters_degrades_health(clock: Time) -> None:
    """Putting out a live counter degrades health until a minute has passed without another."""
    store, stats, health = small_store(clock, 1)

    await fill(store, hit(key="a"), hit(key="b"))

    assert stats.evictions == {"live": 1}
    assert "--max-counters" in health.faults["memory"]
    clock.now_us += MINUTE
    await fill(store, hit(key="b"))
    assert health.faults == {}


@pytest.mark.parametrize("before", [0, 1], ids=["first", "behind another"])
async def test_denied_hits_tell_a_full_store_a_lowered_rate(clock: Time, before: int) -> None:
    """What still counts by the rate that last denied a hit is live, also if not by the old one."""
    store, stats, health = small_store(clock, 1)
    old = Limit(100, Unit.SECOND, algorithm="token_bucket", burst=100)
    lowered = old._replace(requests_per_unit=1)
    await fill(store, algorithms.hit(old, 100))
    clock.now_us += 10 * SECOND
    denied = [hit(6, key="denied")] * before + [algorithms.hit(lowered, 11)]
    assert await charged(store, [denied]) == [[over(5)] * before + [over(10, reset_us=SECOND)]]

    await fill(store, hit(key="new"))

    assert stats.evictions == {"live": 1}
    assert "--max-counters" in health.faults["memory"]


async def test_long_states_count_for_several(clock: Time) -> None:
    """What grows large takes the place of others, so that the store's memory stays bounded."""
    store, stats, _ = small_store(clock, 100)
    log = Limit(10_000, Unit.HOUR, algorithm="sliding_log")
    hits = [algorithms.hit(log, key=str(number)) for number in range(20)]
    for _ in range(1_000):
        clock.now_us += MINUTE // 100
        await fill(store, *hits)

    states = [store.state(each.key) for each in hits]
    kept = [state for state in states if isinstance(state, bytes)]
    assert sum(map(len, kept)) < 100 * 256 + 20 * 64
    assert len(store) == len(kept) < 20
    assert stats.evictions["live"] > 0
    assert await room_after(store, *hits) == 100


async def test_old_counters_are_swept_by_new_ones(clock: Time) -> None:
    """Counters whose window is over do not pile up below the bound."""
    store, stats, _ = small_store(clock, 1_000)
    for minute in range(10):
        clock.now_us += MINUTE + SECOND
        await fill(store, *(hit(key=f"{minute}.{number}") for number in range(50)))

    assert len(store) == 50
    assert stats.evictions == {}


BRIEF = [
    limit._replace(unit=unit, multiplier=1)
    for limit in (*algorithms.EVERY_ALGORITHM, algorithms.BRIEF_PARTS)
    for unit in (Unit.SECOND, Unit.MINUTE)
    if not isinstance(limit.anchor, Calendar)
]


@pytest.mark.parametrize("stepped_back", [False, True], ids=["now", "a window ago"])
@pytest.mark.parametrize("limit", BRIEF, ids=lambda limit: spec_of(limit).key)
async def test_new_counters_leave_a_live_one_alone(
    clock: Time, limit: Limit, stepped_back: bool
) -> None:
    """No number of new keys frees a counter that still counts, also if the clock steps back."""
    store, _, _ = small_store(clock, 2_000)
    one = algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
    await fill(store, one)
    if stepped_back:
        clock.now_us -= limit.window_us - 1

    await fill(store, *(hit(key=f"new{number}") for number in range(1_000)))

    ((outcome,),) = await charged(store, [[algorithms.hit(limit, lease=b"lease--2")]])
    assert outcome is not None
    assert outcome.over


@pytest.mark.parametrize("limit", BRIEF, ids=lambda limit: spec_of(limit).key)
async def test_new_counters_beside_a_clock_that_steps_back(clock: Time, limit: Limit) -> None:
    """New keys free no counter that counts again when the clock steps back by a second."""
    store, _, _ = small_store(clock, 2_000)
    alone, _, _ = small_store(clock)
    one = algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
    ((outcome,),) = await charged(store, [[one]])
    assert outcome is not None
    assert await charged(alone, [[one]]) == [[outcome]]
    clock.now_us += outcome.reset_us + SECOND - 1

    await fill(store, *(hit(key=f"new{number}") for number in range(500)))

    clock.now_us -= SECOND
    peek = algorithms.hit(limit, 0)
    ((found,),) = await charged(store, [[peek]])
    assert found is not None
    assert found.remaining < capacity_of(limit)
    assert await charged(alone, [[peek]]) == [[found]]


async def test_what_is_over_the_limit_of_zero_stays_so(clock: Time) -> None:
    """New keys do not free a counter whose limit is 0 and whose denied hits count."""
    store, _, _ = small_store(clock, 1_000)
    await fill(store, hit(3, limit=0, count_denied=True))

    await fill(store, *(hit(key=f"new{number}") for number in range(500)))

    ((outcome,),) = await charged(store, [[hit(0, limit=0)]])
    assert outcome is not None
    assert outcome.over


@pytest.mark.parametrize("max_counters", [60, 5_000], ids=["full", "roomy"])
async def test_a_bucket_beside_new_keys_admits_no_more(clock: Time, max_counters: int) -> None:
    """A bucket of 100 a second admits 400 in three seconds, whatever keys come beside it."""
    store, _, _ = small_store(clock, max_counters)
    one = algorithms.hit(Limit(100, Unit.SECOND, algorithm="token_bucket"))
    admitted = 0
    for number in range(3_000):
        ((outcome,), _) = await charged(store, [[one], [hit(key=f"new{number}", limit=100)]])
        admitted += outcome is not None and not outcome.over
        clock.now_us += SECOND // 1_000

    assert admitted <= 400


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
async def test_new_counters_leave_alone_a_bucket_whose_rate_is_lowered(
    clock: Time, algorithm: str
) -> None:
    """A bucket that is empty by its own rate keeps what counts by the rate that its rule gets."""
    store, _, _ = small_store(clock, 1_000)
    old = Limit(100, Unit.SECOND, algorithm=algorithm)
    lowered = old._replace(requests_per_unit=1, burst=100)
    await fill(store, algorithms.hit(old, 100))
    clock.now_us += 2_200_000

    await fill(store, *(hit(key=f"new{number}") for number in range(500)))

    ((outcome,),) = await charged(store, [[algorithms.hit(lowered, 0)]])
    assert outcome is not None
    assert outcome.remaining == 2


async def test_a_denied_request_of_new_keys_leaves_nothing(clock: Time) -> None:
    """What is new in a request that its last hit denies is taken back, whatever its algorithm.

    Only algorithms that count denied hits always keep what they have counted.
    """
    store, _, _ = small_store(clock, 1_000)
    limits = [limit for limit in BRIEF if limit.unit is Unit.SECOND]
    counted = [int(ALGORITHMS[limit.algorithm].denied is Denied.ALWAYS_COUNTED) for limit in limits]
    await fill(store, hit(5, key="full"))

    for number in range(100):
        new = [algorithms.hit(limit, key=f"{number}") for limit in limits]
        (outcomes,) = await charged(store, [[*new, hit(key="full")]])
        assert [outcome.charged for outcome in outcomes if outcome] == [*counted, 0]

    assert len(store) == 1 + 100 * sum(counted)


@pytest.mark.parametrize("max_counters", [1, 8])
async def test_a_request_puts_out_none_of_its_own(clock: Time, max_counters: int) -> None:
    """New counters of a request in a full store do not take the place of its others."""
    store, stats, _ = small_store(clock, max_counters)
    await fill(store, hit(key="old"))
    request = [hit(key=f"k{number}") for number in range(7)] + [hit(key="old")]

    (outcomes,) = await charged(store, [[*request, *request]])

    assert [outcome.remaining for outcome in outcomes if outcome] == [4] * 7 + [3] + [3] * 7 + [2]
    assert len(store) == max_counters
    assert stats.evictions == ({"live": 7} if max_counters == 1 else {})


UNKNOWN = hit(key="unknown")._replace(spec=BROKEN)


@pytest.mark.parametrize("max_counters", [1, 1_000], ids=["full", "roomy"])
async def test_fault_of_ours_is_of_one_request(clock: Time, max_counters: int) -> None:
    """A request that cannot be settled counts nothing; those before and behind it are counted."""
    store, _, _ = small_store(clock, max_counters)
    log = algorithms.hit(Limit(5, Unit.MINUTE, algorithm="sliding_log"), key="log")
    failing = [
        [UNKNOWN],
        [hit(3), UNKNOWN],
        [hit(), log, hit(key="new"), UNKNOWN],
        [refund(hit()), UNKNOWN],
        [hit(6), UNKNOWN],
    ]
    requests = [each for bad in failing for each in ([hit()], bad)]

    told: list[list[Settled]] = []
    store.charge(requests, told.append)

    (settled,) = told
    assert [each.verdict is Verdict.BROKEN for each in settled] == [False, True] * 5
    passed = [each.outcomes[0] for each in settled[::2]]
    assert [outcome.remaining for outcome in passed if outcome] == [4, 3, 2, 1, 0]
    assert len(store) == 1
    assert await room_after(store, hit()) == max_counters


async def test_fault_of_ours_in_making_room(clock: Time) -> None:
    """A counter that cannot be judged costs no request that has been counted its outcome."""
    store, _, _ = small_store(clock, 2)
    log = algorithms.hit(Limit(1_000, Unit.HOUR, algorithm="sliding_log"))
    await fill(store, hit(key="odd"), log)
    odd = store._tables[0][hit(key="odd").key]
    odd.spec = UNKNOWN.spec

    outcomes = []
    for _ in range(100):
        clock.now_us += MINUTE // 100
        outcomes += await charged(store, [[log]])

    state = store.state(log.key)
    assert isinstance(state, bytes)
    assert len(state) > 256  # so it takes the room of others
    assert [outcome.remaining for (outcome,) in outcomes if outcome] == list(range(998, 898, -1))
