"""Leased limits on a real Redis: processes hold counted parts, and nobody gets more.

It is long because it follows such a part from when it is given until it is spent or handed back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ratelimit_service.model import Anchor, Calendar, Hit, Limit, Mode, Unit
from ratelimit_service.stores import Settled
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.redis.advances import Advances
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.stores import leasing
from tests.stores.cases import DAY, MINUTE, SECOND, T
from tests.stores.conftest import Time
from tests.stores.leasing import Process, counted, two_processes

_MINUTE = Limit(1_000, Unit.MINUTE, advances=True)

_WAYS = {
    "clock": _MINUTE,
    "first_hit": _MINUTE._replace(anchor=Anchor.FIRST_HIT),
    "calendar": Limit(1_000, Unit.DAY, anchor=Calendar(Unit.DAY), advances=True),
    "two counters": _MINUTE._replace(algorithm="sliding_window"),
    "sub-counters": _MINUTE._replace(algorithm="sliding_window", buckets=6),
}

_BUCKETS = {
    name: Limit(600, Unit.MINUTE, algorithm=name, burst=2_000, advances=True)
    for name in ("token_bucket", "leaky_bucket")
}

_every_way = pytest.mark.parametrize("limit", _WAYS.values(), ids=_WAYS)


@pytest.fixture
async def processes(redis_server: RedisServer, clock: Time) -> AsyncIterator[list[Process]]:
    """Two processes on one Redis, which know of each other."""
    async with two_processes(redis_server, clock) as two:
        yield two


def hit(limit: Limit = _MINUTE, addend: int = 1, key: str = "a", tag: int = 0xABCD) -> Hit:
    return leasing.hit(limit, addend, key, tag)


@_every_way
async def test_never_more_than_the_limit(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """Two processes that take turns admit the whole limit between them, and no hit more."""
    one, other = processes
    passed = 0
    for _ in range(150):
        clock.now_us += 1_000
        passed += await one.admitted(6, hit(limit))
        passed += await other.admitted(6, hit(limit))

    assert passed == 1_000
    sent = one.stats.leased_sent + other.stats.leased_sent
    assert sent["hit"] < passed  # the others were paid from balances


async def test_most_calls_make_no_round_trip(processes: list[Process]) -> None:
    """A call that a balance pays is answered in its turn, before `charge` returns."""
    one, _ = processes
    await one.admitted(20, hit())
    found: list[Settled] = []

    one.advances.charge([[hit()]], found.extend)

    assert [settled.verdict.passes for settled in found] == [True]


async def test_what_is_held_may_be_spent_while_the_server_is_away(
    processes: list[Process],
) -> None:
    """A balance was counted, so it is spent whatever becomes of the connection."""
    one, _ = processes
    await one.admitted(40, hit())
    held = one.advances.held(hit())
    await one.store.close()
    found: list[Settled] = []

    for _ in range(held):
        one.advances.charge([[hit()]], found.extend)

    assert held > 0
    assert [settled.outcomes[0] is not None for settled in found] == [True] * held


async def test_hits_of_a_denied_request_are_put_back(processes: list[Process]) -> None:
    """In a request that another limit denies nothing is spent, and the next one can use it."""
    one, _ = processes
    await one.admitted(20, hit())
    held = one.advances.held(hit())
    none = hit(Limit(0, Unit.DAY), key="b")

    (denied,) = await one.ask([hit(), none])

    assert not denied.verdict.passes
    assert denied.by == 1
    assert one.advances.held(hit()) == held


async def test_an_addend_above_the_balance_is_charged_as_a_whole(
    processes: list[Process],
) -> None:
    """Nothing of it is taken from the balance, so it passes or is denied as anywhere."""
    one, _ = processes
    await one.admitted(20, hit())
    held, before = one.advances.held(hit()), await counted(one, hit())

    (settled,) = await one.ask([hit(addend=held + 1)])

    assert settled.verdict.passes
    assert await counted(one, hit()) >= before + held + 1
    assert one.stats.leased_hits["spent"] + one.stats.leased_sent["hit"] == 21


async def test_a_balance_ends_with_its_window(processes: list[Process], clock: Time) -> None:
    """Hits of a window that is over are lost: they are neither spent nor handed back."""
    one, _ = processes
    await one.admitted(40, hit())
    held = one.advances.held(hit())

    clock.now_us = T + MINUTE - 2_000

    assert held > 0
    assert one.advances.held(hit()) == 0
    await one.ask([hit()])
    assert one.stats.leased_hits["lost"] == held
    assert one.stats.leased_hits["handed_back"] == 0


@_every_way
async def test_idle_balances_are_handed_back(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """What nobody uses for twice the time that it was asked for has room again for others."""
    one, _ = processes
    used = await one.admitted(40, hit(limit))
    assert await counted(one, hit(limit)) > used

    for _ in range(110):
        clock.now_us += SECOND // 10
        one.advances.hand_back_idle()
        await one.quiet()

    assert await counted(one, hit(limit)) == used
    assert one.stats.leased_hits["lost"] == 0


async def test_closing_hands_back(processes: list[Process]) -> None:
    """A process that stops leaves on the counter just what it has admitted."""
    one, other = processes
    used = await one.admitted(40, hit())

    await one.advances.close()

    assert await counted(other, hit()) == used
    assert one.stats.leased_hits["lost"] == 0


async def test_another_limit_has_a_balance_of_its_own(processes: list[Process]) -> None:
    """After a limit was changed nothing is spent of what was given under the old one.

    It is back on the counter with the first hit under the new one.
    """
    one, _ = processes
    await one.admitted(40, hit())
    assert one.advances.held(hit()) > 10
    lower = _MINUTE._replace(requests_per_unit=50)

    passed = await one.admitted(60, hit(lower))

    assert one.advances.held(hit()) == 0
    assert passed == 10


@pytest.mark.parametrize(
    "plain",
    [
        {"mode": Mode.SHADOW},
        {"mode": Mode.QUOTA},
        {"count_denied": True},
        {"refund": True},
        {"addend": 0},
    ],
)
async def test_what_is_charged_plainly(processes: list[Process], plain: dict[str, object]) -> None:
    """Shadows, quotas, what counts though it is denied, refunds and peeks ask the server."""
    one, _ = processes
    await one.admitted(40, hit())
    spent = one.stats.leased_hits["spent"]

    await one.ask([hit()._replace(**plain)])  # type: ignore[arg-type]

    assert one.stats.leased_hits["spent"] == spent


async def test_limits_that_are_not_leased_are_charged_as_ever(processes: list[Process]) -> None:
    """Without `sync: leased` nothing is held."""
    one, _ = processes
    exact = _MINUTE._replace(advances=False)

    await one.admitted(40, hit(exact))

    assert await counted(one, hit(exact)) == 40
    assert len(one.advances) == 0


async def test_after_a_reset_what_is_out_stays_good(processes: list[Process]) -> None:
    """A reset admits one further limit, and what processes held before it."""
    one, _ = processes
    used = await one.admitted(40, hit())
    held = one.advances.held(hit())

    await one.store.forget([hit()])
    passed = await one.admitted(1_200, hit())

    assert passed <= 1_000 + held
    assert used == 40


async def test_long_windows_lose_nothing(processes: list[Process], clock: Time) -> None:
    """An advance lives ten seconds at most. In a longer window it is handed back before that."""
    limit = Limit(10_000, Unit.DAY, advances=True)
    one, _ = processes
    passed = 0
    for _ in range(50):
        clock.now_us += SECOND
        passed += await one.admitted(2, hit(limit))
        one.advances.hand_back_idle()
        await one.quiet()

    await one.advances.close()

    assert passed == 100
    assert one.stats.leased_hits["lost"] == 0
    assert clock.now_us < T + DAY


@pytest.mark.parametrize("where", ["ring", "cluster", "by slot"])
async def test_wherever_counters_lie(
    where: str, ring_url: str, redis_server: RedisServer, request: pytest.FixtureRequest,
    clock: Time,
) -> None:  # fmt: skip
    """In a ring, in a cluster and slot by slot advances come from where the counter is."""
    redis_server.flush()
    url = {"ring": ring_url, "by slot": f"{redis_server.url}?slots=yes"}.get(where, "")
    if where == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        url = cluster.url
    clock.now_us = T
    keys = [hit(key=f"a{number}", tag=number * 9_999_991) for number in range(6)]
    async with leasing.processes_on(url, clock) as two:
        for one in keys:
            passed = 0
            for _ in range(60):
                for process in two:
                    settled = await process.ask(*[(one,)] * 10)
                    passed += sum(each.verdict.passes for each in settled)
            assert passed == 1_000
        assert all(process.stats.leased_hits["spent"] > 1_000 for process in two)
        for process in two:
            process.advances.hand_back_all()
            await process.quiet()


@pytest.mark.parametrize("limit", _BUCKETS.values(), ids=_BUCKETS)
async def test_an_advance_of_a_bucket_lives_for_a_twentieth_of_it(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """It ends when 5 % of the burst could have come back; what is unspent then leaks as any hit."""
    one, _ = processes
    await one.admitted(40, hit(limit))
    assert one.advances.held(hit(limit)) > 0

    clock.now_us += 10 * SECOND * 999 // 1000 - 2_001
    assert one.advances.held(hit(limit)) > 0
    clock.now_us += 1

    assert one.advances.held(hit(limit)) == 0


@pytest.mark.parametrize("limit", _BUCKETS.values(), ids=_BUCKETS)
async def test_a_leased_bucket_keeps_a_twentieth_free(
    processes: list[Process], limit: Limit
) -> None:
    """At one moment 95 % of the burst pass, so that what is spent late never makes more of it."""
    one, other = processes

    passed = await one.admitted(1_500, hit(limit)) + await other.admitted(1_500, hit(limit))
    passed += await one.admitted(1_500, hit(limit))

    assert passed == 1_900


async def test_a_look_tells_what_is_held_here(processes: list[Process]) -> None:
    """Hits that are counted ahead lie on the counter; operators see which process holds them."""
    one, other = processes
    await one.admitted(40, hit())

    (look,) = await one.advances.look([hit(addend=0)])
    (there,) = await other.advances.look([hit(addend=0)])

    assert look is not None
    assert there is not None
    assert look.held == one.advances.held(hit()) > 0
    assert there.held == 0
    assert 1_000 - look.outcome.remaining == 40 + look.held


async def test_a_bounded_number_of_counters_is_known(processes: list[Process], clock: Time) -> None:
    """Of more than 30,000 one is put out, and whatever is not held any more was handed back."""
    one, _ = processes
    first = hit(addend=5, key="first")
    await one.ask((first,))
    await one.ask((first,))
    assert await counted(one, first) > 10
    clock.now_us += SECOND

    for start in range(0, 30_000, 1_000):
        tags = range(start, start + 1_000)
        await one.ask(*[(hit(key=f"k{tag}", tag=tag),) for tag in tags])

    assert len(one.advances) == 30_000
    assert await counted(one, first) == 10 + one.advances.held(first)


@pytest.mark.parametrize("limit", _BUCKETS.values(), ids=_BUCKETS)
async def test_a_reload_that_lowers_the_rate(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """From then on nothing is asked for at the old rate: admitted is what the new one allows."""
    one, _ = processes
    fast = limit._replace(requests_per_unit=60_000, burst=1_000)
    slow = limit._replace(requests_per_unit=600, burst=1_000)
    for _ in range(500):
        clock.now_us += 2_000
        await one.admitted(1, hit(fast))
    passed = 0
    for _ in range(5_000):
        clock.now_us += 2_000
        passed += await one.admitted(1, hit(slow))

    assert passed <= 1_000 + 10 * 10


async def test_a_counter_that_is_hit_once_costs_one_hit(processes: list[Process]) -> None:
    """Many counters are met once. Of such nothing is asked for ahead, nor handed back."""
    one, _ = processes

    await one.ask(*[(hit(key=f"k{tag}", tag=tag),) for tag in range(2_000)])
    one.advances.hand_back_all()
    await one.quiet()

    assert one.stats.leased_sent == {"hit": 2_000}


async def test_limits_that_rules_do_not_have_any_more(processes: list[Process]) -> None:
    """After a reload what is held of other limits is on its way back, and the rest stays."""
    one, _ = processes
    kept, removed = hit(), hit(_BUCKETS["token_bucket"], key="b")
    await one.admitted(40, kept)
    await one.admitted(40, removed)
    held = one.advances.held(kept)

    one.advances.lease({kept.spec})
    await one.quiet()

    assert one.advances.held(removed) == 0
    assert await counted(one, removed) == 40
    assert one.advances.held(kept) == held > 0


async def test_without_leased_limits_in_the_rules_nothing_is_paid_from_here(
    processes: list[Process],
) -> None:
    """When the last leased limit is gone, all that was held is back, and each hit is charged."""
    one, _ = processes
    await one.admitted(40, hit())

    one.advances.lease(set())
    await one.admitted(5, hit(_MINUTE._replace(advances=False)))

    assert len(one.advances) == 0
    assert await counted(one, hit()) == 45


@pytest.mark.parametrize("number", [300, 3_000, 1_000])
async def test_what_an_override_takes_over_is_handed_back(
    processes: list[Process], number: int
) -> None:
    """The first hit that is charged under an override brings back what is held, at once."""
    one, _ = processes
    await one.admitted(40, hit())
    assert one.advances.held(hit()) > 0
    overridden = hit(_MINUTE._replace(requests_per_unit=number, advances=False))

    assert await one.admitted(5, overridden) == 5

    assert len(one.advances) == 0
    assert await counted(one, hit()) == 45


_every_kind = pytest.mark.parametrize("limit", [_MINUTE, _BUCKETS["token_bucket"]])


@_every_kind
async def test_a_refund_goes_to_the_advance_that_it_was_spent_from(
    processes: list[Process], limit: Limit
) -> None:
    """Before the end of an advance a refund can be spent here again, and asks no server."""
    one, _ = processes
    await one.admitted(40, hit(limit))
    held, on_counter = one.advances.held(hit(limit)), await counted(one, hit(limit))

    (settled,) = await one.ask([hit(limit, 3)._replace(refund=True)])

    assert settled.verdict.passes
    assert settled.outcomes[0] is not None
    assert settled.outcomes[0].charged == 3
    assert one.advances.held(hit(limit)) == held + 3
    assert await counted(one, hit(limit)) == on_counter


@_every_kind
async def test_a_refund_after_the_end_goes_to_the_server(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """What was spent of an advance that is over is given back where it was counted, if at all."""
    one, _ = processes
    await one.admitted(40, hit(limit))
    clock.now_us += 10 * MINUTE
    await one.ask([hit(limit, 5)])

    await one.ask([hit(limit, 3)._replace(refund=True)])

    assert await counted(one, hit(limit)) == 2
    assert one.advances.held(hit(limit)) == 0


async def test_a_refund_of_more_than_was_spent_goes_to_the_server(
    processes: list[Process],
) -> None:
    """A balance takes back no more than was spent of it in this window."""
    one, _ = processes
    await one.ask([hit(addend=90)])
    on_counter = await counted(one, hit())

    await one.ask([hit(addend=50)._replace(refund=True)])

    assert await counted(one, hit()) == on_counter - 50


async def test_a_refund_beside_another_limit(processes: list[Process]) -> None:
    """In a request of several limits each refund goes where its hits came from."""
    one, _ = processes
    exact = hit(Limit(50, Unit.DAY), key="b")
    await one.admitted(40, hit(), exact)
    held = one.advances.held(hit())
    back = [each._replace(addend=2, refund=True) for each in (hit(), exact)]

    (settled,) = await one.ask(back)

    assert [each and each.charged for each in settled.outcomes] == [2, 2]
    assert one.advances.held(hit()) == held + 2
    assert await counted(one, exact) == 38


async def test_one_call_finds_out_for_all_whether_a_limit_is_still_over(
    processes: list[Process], clock: Time
) -> None:
    """Of many calls that are denied one asks now and then; when it passes, so may the others."""
    one, other = processes
    cache = LocalCache(one.store, 1 << 20, one.stats, clock)
    one.advances = Advances(cache, one.store, one.stats, cache.known_over, clock)
    await other.ask([hit(addend=1_000)])
    await one.ask([hit()])
    asked = one.stats.leased_sent["hit"]

    clock.now_us += 2 * SECOND
    denied = await one.ask(*[(hit(),)] * 50)
    await other.ask([hit(addend=900)._replace(refund=True)])
    clock.now_us += 2 * SECOND
    first = await one.ask(*[(hit(),)] * 50)
    then = await one.ask(*[(hit(),)] * 50)

    assert one.stats.leased_sent["hit"] == asked + 1 + 1 + 50
    assert [each.verdict.passes for each in denied] == [False] * 50
    assert [each.verdict.passes for each in first] == [True] + [False] * 49
    assert [each.verdict.passes for each in then] == [True] * 50


@pytest.mark.parametrize("limit", [Limit(1, Unit.HOUR), _BUCKETS["leaky_bucket"]])
async def test_who_is_known_to_be_over_waits_for_a_second_at_most(
    processes: list[Process], clock: Time, limit: Limit
) -> None:
    """Also where there is no time to count: any process may hand back what it holds."""
    one, _ = processes
    cache = LocalCache(one.store, 1 << 20, one.stats, clock)
    one.advances = Advances(cache, one.store, one.stats, cache.known_over, clock)
    over = hit(limit._replace(advances=True))
    await one.admitted(2_000, over)

    known = one.advances.known_over([over])
    (asked,) = await one.ask([over])

    assert known is not None
    assert not asked.verdict.passes
    assert asked.cached
    for settled in (known, asked):
        assert [each and each.reset_us for each in settled.outcomes] == [SECOND]
