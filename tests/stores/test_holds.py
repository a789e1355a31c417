"""What is held beside counters: every store says the same, on each algorithm."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import redis

from ratelimit_service.algorithms import ALGORITHMS, capacity_of
from ratelimit_service.model import (
    Anchor,
    Hit,
    Hold,
    Limit,
    Mode,
    Outcome,
    Reservations,
    Unit,
)
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.algorithms.asking import hit
from tests.algorithms.ways import WALKED
from tests.servers.redis import RedisServer
from tests.stores.cases import MINUTE, SECOND, T, charged
from tests.stores.conftest import Time

RESERVING = Reservations()
WINDOW = Limit(10, Unit.MINUTE, reservations=RESERVING)
PLAIN = Limit(10, Unit.MINUTE)
TTL = 30 * SECOND
ID = b"a" * 16
OTHER = b"b" * 16


def reserve(
    limit: Limit, hits: int, hold_id: bytes = ID, *, key: str = "a", ttl_us: int = TTL
) -> Hit:
    """A hit that holds."""
    charges = limit.reservations is not None and limit.reservations.charged
    hold = Hold(ttl_us, charged=charges)
    return hit(limit, hits, key=key, lease=hold_id)._replace(receipt=hold)


def settle(limit: Limit, hits: int, hold_id: bytes = ID, *, key: str = "a") -> Hit:
    """A hit that settles."""
    hold = Hold(2 * MINUTE, settles=True)
    settled = hit(limit, hits, key=key, count_denied=True, lease=hold_id)
    return settled._replace(mode=Mode.SHADOW, receipt=hold)


async def one(store: Store, asked: Hit) -> Outcome:
    """What becomes of a request of one hit."""
    ((outcome,),) = await charged(store, [[asked]])
    assert outcome is not None
    return outcome


def taken(outcome: Outcome) -> tuple[bool, int]:
    """Whether a hit passed, and what remains."""
    return not outcome.over, outcome.remaining


EVERY = [
    WINDOW._replace(algorithm=name)
    for name, algorithm in ALGORITHMS.items()
    if not algorithm.leases
]


@pytest.mark.parametrize("limit", EVERY, ids=lambda limit: str(limit.algorithm))
async def test_there_is_room_only_beside_what_is_held(store: Store, limit: Limit) -> None:
    """Counted + held + hits keeps within the limit, for charges, peeks and reservations."""
    assert taken(await one(store, reserve(limit, 6))) == (True, 4)
    assert taken(await one(store, hit(limit, 5))) == (False, 4)
    assert taken(await one(store, reserve(limit, 5, OTHER))) == (False, 4)
    assert taken(await one(store, hit(limit, 4))) == (True, 0)
    assert taken(await one(store, hit(limit, 0))) == (True, 0)
    assert taken(await one(store, hit(limit, 1))) == (False, 0)

    settled = await one(store, settle(limit, 2))

    assert (settled.over, settled.remaining, settled.charged) == (False, 6, 2)
    assert taken(await one(store, hit(limit, 0))) == (True, 4)


@pytest.mark.parametrize("limit", EVERY, ids=lambda limit: str(limit.algorithm))
async def test_holds_alone_make_nobody_wait_longer_than_a_second(
    store: Store, clock: Time, limit: Limit
) -> None:
    """They can be settled at any moment. So it is for charges, reservations and peeks alike."""
    await one(store, hit(limit, 4))
    await one(store, reserve(limit, 5))
    clock.now_us += 1

    waits = [
        (await one(store, asked)).reset_us
        for asked in (hit(limit, 2), reserve(limit, 2, OTHER), reserve(limit, 2, OTHER, ttl_us=0))
    ]
    assert waits == [SECOND, SECOND, SECOND]

    await one(store, settle(limit, 2, OTHER))
    assert (await one(store, hit(limit, 0))).reset_us == SECOND
    denied = await one(store, hit(limit, 1, count_denied=True))
    assert (denied.over, denied.reset_us) == (True, SECOND)


@pytest.mark.parametrize(
    ("limit", "wait_us"),
    [
        (WINDOW, 20 * SECOND),
        (WINDOW._replace(anchor=Anchor.FIRST_HIT), 20 * SECOND),
        (WINDOW._replace(algorithm="sliding_log"), 20 * SECOND),
        (WINDOW._replace(algorithm="sliding_window", buckets=60), 21 * SECOND),
        (WINDOW._replace(algorithm="token_bucket"), 2 * SECOND),
    ],
)
async def test_where_what_counts_denies_as_well_it_alone_is_waited_for(
    store: Store, clock: Time, limit: Limit, wait_us: int
) -> None:
    """The wait is no longer than it would be if nothing was held."""
    await one(store, hit(limit, 10 if limit.algorithm == "token_bucket" else 5))
    clock.now_us += 40 * SECOND
    await one(store, reserve(limit, 5))

    denied = await one(store, hit(limit, 7 if limit.algorithm == "token_bucket" else 6))

    assert (denied.over, denied.reset_us) == (True, wait_us)


async def test_a_wait_that_is_shorter_than_a_second_is_told(store: Store, clock: Time) -> None:
    """Though what is held may stay: with the window's end there is room in any case."""
    await one(store, hit(WINDOW, 4))
    await one(store, reserve(WINDOW, 5, ttl_us=2 * MINUTE))
    clock.now_us += MINUTE - 7

    assert (await one(store, hit(WINDOW, 2))).reset_us == 7


@pytest.mark.parametrize("limit", EVERY, ids=lambda limit: str(limit.algorithm))
async def test_a_settle_counts_once(store: Store, limit: Limit) -> None:
    """Sent again it counts nothing, also where the hold had ended before the first one came."""
    await one(store, reserve(limit, 6))
    assert (await one(store, settle(limit, 3))).charged == 3
    assert (await one(store, settle(limit, 3))).charged == 0
    assert (await one(store, settle(limit, 3, OTHER))).charged == 3
    assert (await one(store, settle(limit, 3, OTHER))).charged == 0

    assert taken(await one(store, hit(limit, 0))) == (True, 4)


@pytest.mark.parametrize("limit", [WINDOW, PLAIN])
async def test_a_denied_request_forgets_no_settled_id(store: Store, limit: Limit) -> None:
    """Also where nothing is counted: what was settled by 0 hits is settled."""
    await one(store, settle(limit, 0))
    await charged(store, [[hit(limit, 1), hit(PLAIN, 11, key="b")]])

    assert (await one(store, settle(limit, 3))).charged == 0
    assert taken(await one(store, hit(limit, 0))) == (True, 10)


async def test_a_hold_ends_at_its_time_and_not_with_the_window(store: Store, clock: Time) -> None:
    """It outlives the window that it began in, and counts nothing when its time is over."""
    clock.now_us = T + 50 * SECOND
    await one(store, reserve(WINDOW, 6))
    clock.now_us = T + MINUTE + 10 * SECOND

    assert taken(await one(store, hit(WINDOW, 0))) == (True, 4)

    clock.now_us = T + 50 * SECOND + TTL - 1
    assert taken(await one(store, hit(WINDOW, 5))) == (False, 4)
    clock.now_us += 1
    assert taken(await one(store, hit(WINDOW, 5))) == (True, 5)


async def test_a_second_reserve_with_the_same_id_extends_it(store: Store, clock: Time) -> None:
    """It takes the place of the first: its hits, and from now on its time. If denied, none is."""
    await one(store, reserve(WINDOW, 6))
    clock.now_us = T + 20 * SECOND

    assert taken(await one(store, reserve(WINDOW, 8))) == (True, 2)
    assert taken(await one(store, reserve(WINDOW, 11))) == (False, 10)
    clock.now_us = T + 49 * SECOND
    assert taken(await one(store, hit(WINDOW, 0))) == (True, 2)
    clock.now_us = T + 50 * SECOND
    assert taken(await one(store, hit(WINDOW, 0))) == (True, 10)


async def test_a_settled_id_holds_nothing_again(store: Store) -> None:
    """An extension that comes after the settle is denied, and who only asks with it is not."""
    await one(store, reserve(WINDOW, 6))
    await one(store, settle(WINDOW, 1))

    assert taken(await one(store, reserve(WINDOW, 6))) == (False, 3)
    assert taken(await one(store, reserve(WINDOW, 0))) == (True, 9)
    assert taken(await one(store, hit(WINDOW, 0))) == (True, 9)


async def test_all_or_none_over_limits_and_algorithms(store: Store) -> None:
    """If one limit has no room nothing is held anywhere; one without reservations only asks."""
    logged = WINDOW._replace(algorithm="sliding_log")
    small = PLAIN._replace(requests_per_unit=3)
    request = [reserve(WINDOW, 4), reserve(logged, 4), reserve(small, 4)]

    (outcomes,) = await charged(store, [request])

    assert [outcome.charged for outcome in outcomes if outcome] == [0, 0, 0]
    assert taken(await one(store, hit(WINDOW, 0))) == (True, 10)

    request[2] = reserve(small, 3)
    (outcomes,) = await charged(store, [request])

    assert [outcome.charged for outcome in outcomes if outcome] == [4, 4, 0]
    assert taken(await one(store, hit(WINDOW, 0))) == (True, 6)
    assert taken(await one(store, hit(logged, 0))) == (True, 6)
    assert taken(await one(store, hit(small, 0))) == (True, 3)


async def test_more_than_was_held_is_counted(store: Store) -> None:
    """A window counts beyond its limit; a bucket is full at the most."""
    bucket = WINDOW._replace(algorithm="token_bucket")
    for limit in (WINDOW, bucket):
        await one(store, reserve(limit, 6))

    assert (await one(store, settle(WINDOW, 13))).charged == 13
    assert (await one(store, settle(bucket, 13))).charged == 10
    assert taken(await one(store, hit(WINDOW, 1))) == (False, 0)


async def test_a_hold_can_be_taken_back(store: Store) -> None:
    """A refund with the hold leaves nothing behind: the id can hold again."""
    held = reserve(WINDOW, 6)
    await one(store, held)

    assert (await one(store, held._replace(refund=True))).remaining == 10
    assert taken(await one(store, held)) == (True, 4)


CHARGED = Reservations(charged=True)


@pytest.mark.parametrize(
    ("limit", "ends_us"),
    [
        (WINDOW, T + MINUTE),
        (WINDOW._replace(algorithm="sliding_log"), T + TTL + MINUTE),
        (WINDOW._replace(algorithm="sliding_window"), T + 110 * SECOND + 1),
        (WINDOW._replace(algorithm="sliding_window", buckets=60), T + TTL + 61 * SECOND),
        (WINDOW._replace(algorithm="token_bucket"), T + TTL + 36 * SECOND),
    ],
)
async def test_a_hold_can_stay_as_long_as_it_would_count(
    store: Store, clock: Time, limit: Limit, ends_us: int
) -> None:
    """With `charged` it ends when it would not count any more, had it been charged at its time."""
    limit = limit._replace(reservations=CHARGED)
    await one(store, reserve(limit, 6))

    clock.now_us = ends_us - 1
    assert taken(await one(store, hit(limit, 0))) == (True, 4)
    clock.now_us = ends_us
    assert taken(await one(store, hit(limit, 0))) == (True, 10)


async def test_no_counter_has_more_than_ten_thousand_holds(store: Store) -> None:
    """A hold takes at least a ten-thousandth of its limit."""
    limit = Limit(1_000_000, Unit.MINUTE, reservations=RESERVING)

    assert taken(await one(store, reserve(limit, 1))) == (True, 999_900)
    assert taken(await one(store, reserve(limit, 0, OTHER))) == (True, 999_900)


async def test_who_only_asks_needs_no_more_room_than_asked_for(store: Store) -> None:
    """The least that a hold takes is for what is held."""
    for limit in (
        Limit(1_000_000, Unit.MINUTE, reservations=RESERVING),
        Limit(1_000_000, Unit.HOUR),
    ):
        await one(store, hit(limit, 999_999))

        assert taken(await one(store, reserve(limit, 1, ttl_us=0))) == (True, 0)
        assert taken(await one(store, reserve(limit, 2, ttl_us=0))) == (False, 1)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
async def test_a_bucket_counts_no_denied_hits_beside_what_is_held(
    store: Store, algorithm: str
) -> None:
    """With `count_denied` it takes only what has room, as ever."""
    limit = WINDOW._replace(algorithm=algorithm)
    await one(store, reserve(limit, 6))

    outcome = await one(store, hit(limit, 5, count_denied=True))

    assert (outcome.over, outcome.charged, outcome.remaining) == (True, 0, 4)
    assert taken(await one(store, hit(limit, 4))) == (True, 0)


async def test_places_can_be_asked_for(store: Store) -> None:
    """A limit of places among others that pay in turn is asked, and gives none."""
    places = PLAIN._replace(algorithm="concurrency")

    for _ in range(2):
        assert taken(await one(store, reserve(places, 6, ID[:8]))) == (True, 4)
    assert taken(await one(store, reserve(places, 11, ID[:8]))) == (False, 10)


async def test_a_reset_drops_what_is_held(store: Store) -> None:
    """The counter is as new."""
    assert isinstance(store, MemoryStore | RedisStore)
    await one(store, reserve(WINDOW, 6))

    await store.forget([hit(WINDOW, 0)])

    assert taken(await one(store, hit(WINDOW, 0))) == (True, 10)


async def test_a_reset_drops_what_was_settled(store: Store) -> None:
    """Also of a limit without reservations: the counter is as new in every store."""
    assert isinstance(store, MemoryStore | RedisStore)
    await one(store, settle(PLAIN, 6))

    await store.forget([hit(PLAIN, 0)])
    await one(store, settle(PLAIN, 6))

    assert taken(await one(store, hit(PLAIN, 0))) == (True, 4)


async def test_many_ended_holds_are_let_go_of_some_at_a_time(
    redis_store: RedisStore, clock: Time
) -> None:
    """Each call of the script takes out 128: so none of them holds Redis for long."""
    limit = Limit(1_000, Unit.MINUTE, reservations=RESERVING)
    for number in range(300):
        await one(redis_store, reserve(limit, 1, b"%016d" % number))
    clock.now_us += MINUTE

    left = [(await one(redis_store, hit(limit, 0))).remaining for _ in range(3)]

    assert left == [828, 956, 1_000]


async def test_nothing_is_left_in_redis(redis_store: RedisStore, redis_server: RedisServer) -> None:
    """All keys expire, also those that were emptied and are written again."""
    client = redis.Redis.from_url(redis_server.url)
    held = reserve(WINDOW, 6)
    for asked in (held, held._replace(refund=True), held, settle(WINDOW, 1), settle(WINDOW, 1)):
        await one(redis_store, asked)

        assert all(0 < client.pttl(key) < 5 * MINUTE // 1_000 for key in client.scan_iter())


STEPS = 20_000
PAUSES_US = [0, 0, 1, 999_999, 7 * SECOND, TTL, MINUTE // 2, MINUTE, -1, -SECOND]


async def test_random_walk(redis_store: RedisStore, redis_server: RedisServer, clock: Time) -> None:
    """Memory and Redis answer the same over 20,000 hits that hold, settle, charge and refund."""
    chance = random.Random(20261128)
    memory = MemoryStore(10_000, Stats(), Health(), clock)
    client = redis.Redis.from_url(redis_server.url)
    limits = [
        limit._replace(reservations=chance.choice([None, RESERVING, RESERVING, CHARGED]))
        for limit in WALKED
        if not ALGORITHMS[limit.algorithm].leases and not limit.max_wait_us
    ]
    walked = held = denied = 0
    while walked < STEPS:
        clock.now_us += chance.choice(PAUSES_US)
        requests = [random_hits(chance, limits) for _ in range(chance.choice([1, 2, 30]))]
        walked += sum(map(len, requests))

        expected = await charged(memory, requests)

        assert await charged(redis_store, requests) == expected
        for key in client.scan_iter():
            client.persist(key)  # Redis' expiry runs by a clock that is not the walk's
        for hits, outcomes in zip(requests, expected, strict=True):
            held += sum(
                isinstance(asked.receipt, Hold) and bool(outcome and outcome.charged)
                for asked, outcome in zip(hits, outcomes, strict=True)
            )
            denied += any(outcome and outcome.over for outcome in outcomes)

    assert held > STEPS // 50
    assert denied > STEPS // 50


def random_hits(chance: random.Random, limits: Sequence[Limit]) -> list[Hit]:
    """A request of charges, refunds, reserves and settles, all of them under few ids."""
    hits: list[Hit] = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        if chance.random() < 0.3:
            hits += random_turns(chance, limits)
            continue
        limit, key = chance.choice(limits), chance.choice("ab")
        most = min(capacity_of(limit), 20)
        hold_id = b"%016d" % chance.randrange(12)
        amount = chance.choice([0, 1, 2, most // 2, most])
        kind = chance.choice(["charge", "reserve", "reserve", "settle", "refund", "release"])
        if kind == "reserve":
            asked = reserve(limit, amount, hold_id, key=key, ttl_us=chance.choice([SECOND, TTL]))
        elif kind == "settle":
            asked = settle(limit, amount, hold_id, key=key)
        elif kind == "release":
            asked = reserve(limit, amount, hold_id, key=key)._replace(refund=True)
        else:
            asked = hit(limit, amount, key=key, refund=kind == "refund")
        hits.append(asked)
    return hits


def random_turns(chance: random.Random, limits: Sequence[Limit]) -> list[Hit]:
    """Limits that pay in turn, and are charged, reserved on or settled."""
    hold_id = b"%016d" % chance.randrange(12)
    amount, key = chance.choice([0, 1, 2, 5, 10]), chance.choice("ab")
    kind = chance.choice(["charge", "reserve", "reserve", "settle", "settle"])
    hits = []
    for limit in chance.sample(limits, chance.choice([1, 2, 3])):
        asked = hit(limit, amount, key=key)
        if kind == "reserve":
            asked = reserve(limit, amount, hold_id, key=key)
        elif kind == "settle":
            asked = settle(limit, amount, hold_id, key=key)._replace(count_denied=False)
        hits.append(asked._replace(mode=Mode.IN_TURN))
    if kind != "settle":
        hits[-1] = hits[-1]._replace(mode=chance.choice([Mode.ENFORCED, Mode.SHADOW]))
    rest = [each._replace(addend=0, joined=True) for each in hits[1:]]
    return [hits[0], *rest]


class _Stream:
    """An answer that is still coming: when it ends, its estimate, and what it will have used."""

    def __init__(self, ends_us: int, estimate: int, used: int, hold_id: bytes) -> None:
        self.ends_us = ends_us
        self.estimate = estimate
        self.used = used
        self.hold_id = hold_id


@pytest.mark.parametrize("reserves", [True, False])
async def test_streams_keep_within_the_limit_only_if_they_reserve(
    memory: MemoryStore, clock: Time, reserves: bool
) -> None:
    """A thousand streams of twenty tenants, at twice what is allowed; a tenth of callers die.

    With reservations no window counts more than the limit. Without them streams ask with 0 hits and
    report later, and some windows count more.
    """
    chance = random.Random(20261128)
    limit = Limit(10_000, Unit.MINUTE, count_denied=True, reservations=RESERVING)
    tenants = [f"tenant-{number}" for number in range(20)]
    streams: list[tuple[str, _Stream]] = []
    counted: dict[tuple[str, int], int] = {}
    for number in range(20 * 600):
        clock.now_us += SECOND // 40
        tenant = chance.choice(tenants)
        estimate = min(2_000, round(chance.lognormvariate(5, 1)) + 1)
        used = chance.randint(1, estimate)
        hold_id = b"%016d" % number
        asked = reserve(limit, estimate, hold_id, key=tenant) if reserves else None
        look = hit(limit, 0, key=tenant)
        if not (await one(memory, asked or look)).over:
            ends_us = clock.now_us + chance.randint(1, 25) * SECOND
            streams.append((tenant, _Stream(ends_us, estimate, used, hold_id)))
        over = [each for each in streams if each[1].ends_us <= clock.now_us]
        streams = [each for each in streams if each[1].ends_us > clock.now_us]
        for of, stream in over:
            if chance.random() < 0.1:
                continue  # its caller is dead
            report = hit(limit, stream.used, key=of, count_denied=True)
            ended = settle(limit, stream.used, stream.hold_id, key=of) if reserves else report
            await one(memory, ended)
            window = of, clock.now_us // MINUTE
            counted[window] = counted.get(window, 0) + stream.used

    most = max(counted.values())
    assert (most <= 10_000) == reserves
