"""What `inspect` tells of counters, held against the few decisions that they have counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ratelimit_service.decision_log.line import lines_of
from ratelimit_service.model import SECOND_US, Hit
from ratelimit_service.service.overrides.following import Overrides
from ratelimit_service.service.questions import Deciding, QuestionError
from ratelimit_service.service.questions.registry import QUESTIONS
from ratelimit_service.service.tail import Tail
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Look, Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverridesInMemory
from ratelimit_service.stores.redis import RedisStore
from tests.service.asking import Asking, Away
from tests.service.reserving import Gateway
from tests.stores.cases import T
from tests.stores.conftest import Time


class Walk(NamedTuple):
    """A limit, the hits on it by second, when it is looked at, and how it must stand then."""

    name: str
    limit: str
    hits: dict[int, int]
    second: int
    counted: int
    remaining: int
    ends: float | None
    held: list[tuple[int, float, float]] | None = None
    """Hits, age and time left of each that is told one by one."""


WALKS = [
    Walk("window", "requests_per_unit: 5", {0: 2, 9: 1}, 10, 3, 2, 50),
    Walk("window that is over", "requests_per_unit: 5", {0: 5, 9: 1}, 10, 5, 0, 50),
    Walk("window of before", "requests_per_unit: 5", {0: 5}, 61, 0, 5, None),
    Walk(
        "window that counts the denied",
        "requests_per_unit: 5, count_denied: true",
        {0: 4, 1: 4},
        10,
        8,
        0,
        50,
    ),
    Walk(
        "sliding window",
        "requests_per_unit: 10, algorithm: sliding_window",
        {0: 4, 60: 2},
        90,
        4,
        6,
        30,
    ),
    Walk(
        "sub-counters",
        "requests_per_unit: 10, algorithm: sliding_window, buckets: 6",
        {0: 4},
        10,
        4,
        6,
        60,
    ),
    Walk(
        "log",
        "requests_per_unit: 5, algorithm: sliding_log",
        {0: 2, 10: 1},
        20,
        3,
        2,
        50,
        [(2, 20, 40), (1, 10, 50)],
    ),
    Walk(
        "log of which a part is over",
        "requests_per_unit: 5, algorithm: sliding_log",
        {0: 2, 10: 1},
        65,
        1,
        4,
        5,
        [(1, 55, 5)],
    ),
    Walk("tokens", "requests_per_unit: 6, algorithm: token_bucket", {0: 4}, 10, 3, 3, 30),
    Walk("leaking", "requests_per_unit: 6, algorithm: leaky_bucket", {0: 4}, 10, 3, 3, 30),
    Walk(
        "leases",
        "requests_per_unit: 3, algorithm: concurrency",
        {0: 1, 5: 2},
        10,
        3,
        0,
        55,
        [(1, 10, 50), (2, 5, 55)],
    ),
    Walk("nothing yet", "requests_per_unit: 3, algorithm: concurrency", {}, 10, 0, 3, None, []),
]


def deciding(asking: Asking, store: Store) -> Deciding:
    assert isinstance(store, MemoryStore | RedisStore)
    return Deciding(
        asking.settings,
        asking.service,
        store,
        lambda: asking.rules.snapshot,
        asking.stats,
        asking.health,
        None,
        store.shard_of if isinstance(store, RedisStore) else lambda _: "",
        store.look,
        store.forget,
        Overrides(OverridesInMemory(), asking.service.overrides, asking.stats, asking.clock),
        Tail(asking.service.events),
        lines_of(asking.settings.store, lambda _: ""),
    )


async def inspected(found: Deciding, *entries: tuple[str, str], domain: str = "edge") -> Any:
    return await QUESTIONS["inspect"].answer(
        found, {"domain": domain, "descriptor": [list(entry) for entry in entries]}
    )


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
async def test_counters_stand_as_they_were_counted(
    walk: Walk, store: Store, clock: Time, tmp_path: Path
) -> None:
    """Every algorithm, in every store: what was counted, what remains, and until when."""
    rules = (
        f"domain: edge\ndescriptors:\n- {{key: user, rate_limit: {{unit: minute, {walk.limit}}}}}"
    )
    asking = Asking(tmp_path, rules, store=store, clock=clock)
    for second, hits in walk.hits.items():
        clock.now_us = T + second * SECOND_US
        await asking.ask("user=ann", hits=hits)
        await asking.ask("user=bob")
    clock.now_us = T + walk.second * SECOND_US
    here = deciding(asking, store)

    told = await inspected(here, ("user", "ann"))

    assert (told["rule"], told["domain"]) == ("user", "edge")
    (counter,) = told["counters"]
    assert (counter["count"], counter["remaining"]) == (walk.counted, walk.remaining)
    assert counter["ends_seconds"] == walk.ends
    assert counter["over"] == (walk.remaining == 0)
    each = counter.get("leases") or counter.get("log")
    if walk.held is None:
        assert each is None
    else:
        assert [
            (one["hits"], one["age_seconds"], one["ends_seconds"]) for one in each or []
        ] == walk.held
        assert all(len(one["lease"]) == 16 for one in counter.get("leases", []))
    assert await inspected(here, ("user", "ann")) == told  # looking changes nothing


SEVERAL = """
domain: edge
descriptors:
- key: user
  rate_limits:
  - {name: burst, unit: second, requests_per_unit: 5}
  - {name: steady, unit: hour, requests_per_unit: 100}
- key: free
  rate_limit: {unlimited: true}
"""


async def test_all_limits_of_a_rule_are_told(store: Store, clock: Time, tmp_path: Path) -> None:
    """Each limit has a counter of its own, and one home for both."""
    asking = Asking(tmp_path, SEVERAL, store=store, clock=clock)
    for second in range(3):
        clock.now_us = T + second * SECOND_US
        await asking.ask("user=ann", hits=second + 1)

    told = await inspected(deciding(asking, store), ("user", "ann"))

    assert [(each["name"], each["count"], each["remaining"]) for each in told["counters"]] == [
        ("burst", 3, 2),
        ("steady", 6, 94),
    ]
    assert len({(each["shard"], each["key"][:10]) for each in told["counters"]}) == 1


async def test_who_meets_no_limit_is_told_why(memory: MemoryStore, tmp_path: Path) -> None:
    """Without a limit there is no counter, and the answer says why."""
    here = deciding(Asking(tmp_path, SEVERAL, store=memory), memory)

    unlimited = await inspected(here, ("free", "x"))
    unmatched = await inspected(here, ("nobody", "x"))
    elsewhere = await inspected(here, ("user", "x"), domain="nowhere")

    assert [each["counters"] for each in (unlimited, unmatched, elsewhere)] == [[], [], []]
    assert (unlimited["rule"], unmatched["rule"], elsewhere["rule"]) == ("free", None, None)
    assert "no domain 'nowhere'" in elsewhere["why"]


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"domain": "", "descriptor": [["user", "ann"]]},
        {"domain": "edge"},
        {"domain": "edge", "descriptor": []},
        {"domain": "edge", "descriptor": "user=ann"},
        {"domain": "edge", "descriptor": [["user"]]},
        {"domain": "edge", "descriptor": [["", "ann"]]},
        {"domain": "edge", "descriptor": [["user", 7]]},
    ],
)
async def test_what_is_no_descriptor_is_refused(
    memory: MemoryStore, tmp_path: Path, about: dict[str, object]
) -> None:
    """A question without a domain and entries is the asker's mistake."""
    here = deciding(Asking(tmp_path, SEVERAL, store=memory), memory)

    with pytest.raises(QuestionError):
        await QUESTIONS["inspect"].answer(here, about)


async def test_looks_past_the_local_cache(
    redis_store: RedisStore, clock: Time, tmp_path: Path
) -> None:
    """What is told is what the store has, also of who is known to be over."""
    asking = Asking(tmp_path, SEVERAL, store=redis_store, clock=clock)
    cache = LocalCache(redis_store, 1 << 20, asking.stats)
    asking.service = asking.served_by(cache, Settings())
    for _ in range(3):
        await asking.ask("user=ann", hits=4)

    told = await inspected(deciding(asking, redis_store), ("user", "ann"))

    assert [each["count"] for each in told["counters"]] == [4, 4]


async def test_a_store_that_is_away_is_said_to_be(tmp_path: Path, memory: MemoryStore) -> None:
    """If no counter can be read there is no answer, and the reason is the store."""
    asking = Asking(tmp_path, SEVERAL, store=Away())

    async def nothing(peeks: Sequence[Hit]) -> list[Look | None]:
        return [None for _ in peeks]

    here = replace(deciding(asking, memory), look_at=nothing)
    with pytest.raises(
        QuestionError, match=r"the store does not say .*: `ratelimit status` says why"
    ):
        await inspected(here, ("user", "ann"))


STREAMS = """
domain: llm
descriptors:
- key: user
  rate_limits:
  - {name: minute, unit: minute, requests_per_unit: 100, reservations: true}
  - {name: day, unit: day, requests_per_unit: 500, reservations: true, max_reservation_ttl: 5s}
  - {name: year, unit: year, requests_per_unit: 5000}
"""


async def test_holds_are_told_one_by_one(store: Store, clock: Time, tmp_path: Path) -> None:
    """What each reservation holds beside a counter and until when, the first to end first.

    Of an id so much is told as logs have. Settled and ended ones hold nothing.
    """
    asking = Asking(tmp_path, STREAMS, store=store, clock=clock)
    gateway = Gateway(asking)
    held = [await gateway.reserve(hits, "user=ann", seconds=30 - hits) for hits in (3, 10, 20, 7)]
    await gateway.commit(held[3], 5, "user=ann")
    clock.now_us += 4 * SECOND_US
    here = deciding(asking, store)

    minute, day, year = (await inspected(here, ("user", "ann"), domain="llm"))["counters"]

    ids = [each[:8] for each in held]
    assert (minute["count"], minute["held"], minute["held_by"], minute["remaining"]) == (
        5,
        33,
        3,
        62,
    )
    assert minute["holds"] == [
        {"id": ids[2], "hits": 20, "ends_seconds": 6},
        {"id": ids[1], "hits": 10, "ends_seconds": 16},
        {"id": ids[0], "hits": 3, "ends_seconds": 23},
    ]
    assert {each["ends_seconds"] for each in day["holds"]} == {1}
    assert "held" not in year
    assert "holds" not in year

    clock.now_us += 6 * SECOND_US
    minute, day, _ = (await inspected(here, ("user", "ann"), domain="llm"))["counters"]
    assert [each["hits"] for each in minute["holds"]] == [10, 3]
    assert (day["held"], day["held_by"], day["holds"]) == (0, 0, [])


async def test_of_many_holds_some_are_told(store: Store, clock: Time, tmp_path: Path) -> None:
    """All are counted, however many settled ids lie between them."""
    asking = Asking(tmp_path, STREAMS.replace("100,", "5000,"), store=store, clock=clock)
    gateway = Gateway(asking)
    for _ in range(1_050):
        await gateway.commit(await gateway.reserve(1, "user=ann", seconds=60), 0, "user=ann")
    clock.now_us += 605 * SECOND_US
    for _ in range(120):
        await gateway.reserve(1, "user=ann", seconds=60)

    told = await inspected(deciding(asking, store), ("user", "ann"), domain="llm")

    minute = told["counters"][0]
    assert (minute["held"], minute["held_by"], len(minute["holds"])) == (120, 120, 100)
