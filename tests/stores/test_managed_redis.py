"""Redis as providers manage it: one address that enforces slots, and commands that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

import ratelimit_service
from ratelimit_service.errors import SettingsError
from ratelimit_service.model import Hit
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.keys import slot_of
from ratelimit_service.stores.redis.address import parse_store
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.error_replies import crosses_slots, is_refused
from tests.servers.cluster import SLOTS
from tests.servers.process import wait_until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import YEAR, charged, hit
from tests.stores.redis_store import Fixture, started
from tests.waiting import PATIENCE_SECONDS, until


def _take_all_slots(client: redis.Redis) -> None:
    client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))  # type: ignore[no-untyped-call]


def _is_whole(client: redis.Redis) -> bool:
    return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]


def _enforcing(path: Path) -> Iterator[RedisServer]:
    path.mkdir(exist_ok=True)
    server = RedisServer(path, "--cluster-enabled", "yes")
    server.start()
    with redis.Redis(port=server.port) as client:
        _take_all_slots(client)
        wait_until(partial(_is_whole, client), "the slots")
    yield server
    server.kill()


@pytest.fixture
def slots_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One address that has all slots and enforces them, as managed Redis behind a proxy does."""
    yield from _enforcing(tmp_path / "one")


@pytest.fixture
def other_slots_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Another one."""
    yield from _enforcing(tmp_path / "other")


def _url_with_rights(server: RedisServer, *rights: str) -> str:
    """The server's URL for a user that may do all but what `rights` take away."""
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "limits", "on", ">secret", "~*", "+@all", *rights)
    return server.url.replace("redis://", "redis://limits:secret@")


async def _remaining(fixture: Fixture, users: int, call: int = 0) -> list[int | None]:
    """What remains of a counter that all share, after each of so many requests at once.

    Each also has a counter of its own, with a limit of one. None is a hit without an answer.
    """
    shared = hit(limit=1_000, key="all", window_us=YEAR)
    requests = [
        [shared, hit(limit=1, key=f"user {call} {number}", window_us=YEAR)]
        for number in range(users)
    ]
    outcomes = await charged(fixture.store, requests)
    return [first and first.remaining for first, _ in outcomes]


async def _left(fixture: Fixture, expected: int) -> int | None:
    """What is left of the counter that all share, once that is so or patience is over."""
    peek = hit(0, limit=1_000, key="all", window_us=YEAR)
    left = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while left != expected:
                ((outcome,),) = await charged(fixture.store, [[peek]])
                left = outcome and outcome.remaining
                await asyncio.sleep(0.01)
    return left


@pytest.mark.parametrize("query", ["", "?slots=yes"])
async def test_one_address_that_enforces_slots(slots_redis: RedisServer, query: str) -> None:
    """Requests with counters in many slots are counted, whether the URL says so or not."""
    fixture = Fixture(slots_redis.url + query)
    await started(fixture.store)

    remaining = await _remaining(fixture, 40)

    assert sorted(each for each in remaining if each is not None) == list(range(960, 1_000))
    assert not fixture.stats.store_errors.total()
    assert not fixture.health.faults
    await fixture.store.close()


async def test_a_ring_of_servers_that_enforce_slots(
    slots_redis: RedisServer, other_slots_redis: RedisServer
) -> None:
    """In a ring each server may enforce slots too."""
    members = f"localhost:{slots_redis.port},localhost:{other_slots_redis.port}"
    fixture = Fixture(f"redis+ring://{members}")
    await started(fixture.store)

    remaining = await _remaining(fixture, 40)

    assert sorted(each for each in remaining if each is not None) == list(range(960, 1_000))
    assert not fixture.stats.store_errors.total()
    await fixture.store.close()


@pytest.mark.parametrize("calls", [1, 300])
async def test_the_first_refusal_of_slots_decides_nothing(
    slots_redis: RedisServer, calls: int
) -> None:
    """Where the server cannot be asked, all that it refuses at first is sent again, by slot."""
    fixture = Fixture(_url_with_rights(slots_redis, "-eval"))
    await started(fixture.store)

    each = 300 // calls
    found = await asyncio.gather(*[_remaining(fixture, each, call) for call in range(calls)])

    remaining = [left for some in found for left in some if left is not None]
    assert sorted(remaining) == list(range(700, 1_000))
    assert not fixture.stats.store_errors.total()
    assert not fixture.health.faults
    await fixture.store.close()


async def test_a_ring_whose_servers_begin_to_refuse(
    slots_redis: RedisServer, other_slots_redis: RedisServer
) -> None:
    """Pieces of requests that lie in several shards are divided once more, each by slot."""
    members = ",".join(
        _url_with_rights(each, "-eval").partition("@")[2].partition("/")[0]
        for each in (slots_redis, other_slots_redis)
    )
    fixture = Fixture(f"redis+ring://limits:secret@{members}")
    await started(fixture.store)

    requests = [
        [hit(limit=1_000, key=key, window_us=YEAR) for key in ("all", "b", "c", f"user {number}")]
        for number in range(100)
    ]
    found = await asyncio.gather(*[charged(fixture.store, [request]) for request in requests])

    remaining = [[outcome and outcome.remaining for outcome in one] for ((one),) in found]
    assert [sorted(map(str, column)) for column in zip(*remaining, strict=True)] == [
        *[sorted(map(str, range(900, 1_000)))] * 3,
        ["999"] * 100,
    ]
    assert not fixture.stats.store_errors.total()
    await fixture.store.close()


async def test_what_is_denied_at_the_first_refusal_is_free(slots_redis: RedisServer) -> None:
    """A denied request of the very first calls counts nothing, in whatever slots its hits lie."""
    fixture = Fixture(_url_with_rights(slots_redis, "-eval"))
    await started(fixture.store)
    requests = [
        [hit(limit=1_000, key="all", window_us=YEAR), hit(limit=1, key=f"{number % 10}")]
        for number in range(100)
    ]

    found = await asyncio.gather(*[charged(fixture.store, [request]) for request in requests])

    assert sum([not any(outcome and outcome.over for outcome in one) for (one,) in found]) == 10
    assert await _left(fixture, 990) == 990
    await fixture.store.close()


@pytest.fixture
async def ring_proxies(
    own_redis: RedisServer, redis_server: RedisServer
) -> AsyncIterator[list[Proxy]]:
    """The ways to two servers that do not enforce slots."""
    redis_server.flush()
    proxies = [Proxy(own_redis.port), Proxy(redis_server.port)]
    yield proxies
    for proxy in proxies:
        await proxy.close()


async def test_a_server_that_enforces_slots_before_hits_are_given_back(
    own_redis: RedisServer, slots_redis: RedisServer, ring_proxies: list[Proxy]
) -> None:
    """Hits of several slots are given back once, by slot, to a server that enforces them by now."""
    first, second = ring_proxies
    members = [f"127.0.0.1:{await proxy.start()}" for proxy in ring_proxies]
    fixture = Fixture(f"redis+ring://{','.join(members)}", 60_000_000)
    store = fixture.store
    await started(store)
    homes: dict[str, list[Hit]] = {member: [] for member in members}
    for number in range(100):
        one = hit(2, limit=10, key=str(number), window_us=YEAR)
        homes[store.shard_of(one)].append(one)
    hits, full = homes[members[0]][:5], homes[members[1]][0]._replace(addend=100)
    shard = next(shard for shard in store.shards if shard.name == members[0])
    assert len({slot_of(one.key) for one in hits}) > 1
    await charged(store, [hits])

    keys = [one.key for one in hits]
    second.hold = True
    denied = asyncio.create_task(charged(store, [[*hits, full]]))
    with redis.Redis(port=own_redis.port) as before, redis.Redis(port=slots_redis.port) as after:
        counted = before.mget(keys)
        await until(lambda: before.mget(keys) != counted and shard.idle)
        first.refuse = True
        await until(lambda: not shard.available)
        second.hold = False
        await until(lambda: shard.state("").waiting == 1)
        for key in keys:
            after.restore(key, 0, before.dump(key))
    first.target, first.refuse = slots_redis.port, False
    await denied

    peeks = [[one._replace(addend=0)] for one in hits]
    left = [outcome and outcome.remaining for (outcome,) in await charged(store, peeks)]
    assert left == [8] * len(hits)
    assert fixture.stats.lost_give_backs == {}
    await store.close()


async def test_outcomes_of_what_is_sent_again_by_slot(slots_redis: RedisServer) -> None:
    """What is told of each request has its outcomes in the order of its hits."""
    fixture = Fixture(slots_redis.url)
    await started(fixture.store)
    (shard,) = fixture.store.shards
    told: list[Outcomes | None] = []

    requests = [
        [hit(addend, limit=10, key=f"{call} {addend}", window_us=YEAR) for addend in range(1, 6)]
        for call in range(3)
    ]
    shard.charge(Background(requests, told.append))
    await until(lambda: len(told) == len(requests))

    remaining = [[outcome and outcome.remaining for outcome in found or []] for found in told]
    assert remaining == [[9, 8, 7, 6, 5]] * len(requests)
    assert fixture.stats.lost_give_backs == {}
    await fixture.store.close()


async def test_denied_requests_are_free_across_slots(slots_redis: RedisServer) -> None:
    """A request that is denied in one slot gives back what it was charged in another."""
    fixture = Fixture(slots_redis.url)
    await started(fixture.store)
    await _remaining(fixture, 40)
    assert None not in await _remaining(fixture, 40)

    assert await _left(fixture, 960) == 960
    await fixture.store.close()


async def test_slots_are_told_once(
    slots_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once that a server enforces slots, and what to write to say so."""
    caplog.set_level(logging.INFO)
    fixture = Fixture(slots_redis.url)
    await started(fixture.store)
    with redis.Redis(port=slots_redis.port) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await fixture.until(lambda outcomes: outcomes[0] is not None)

    said = [each.getMessage() for each in caplog.records if "slots" in each.getMessage()]
    await fixture.store.close()
    assert len(said) == 1
    assert "?slots=yes" in said[0]


def test_slots_are_yes_or_nothing() -> None:
    """Any other value of the option is refused."""
    with pytest.raises(SettingsError, match="'slots' can only be yes"):
        parse_store("redis://localhost:6379/0?slots=maybe")


@pytest.mark.parametrize(
    ("rights", "told"),
    [
        pytest.param(["-script"], ["SCRIPT"], id="SCRIPT"),
        pytest.param(["-evalsha"], ["EVALSHA"], id="EVALSHA"),
        pytest.param(["-script", "-evalsha"], ["SCRIPT", "EVALSHA"], id="both"),
        pytest.param(["-eval"], ["EVAL"], id="EVAL"),
        pytest.param(["-client", "-hello", "-info", "-config"], [], id="what nobody needs"),
    ],
)
async def test_commands_that_are_refused(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, rights: list[str], told: list[str]
) -> None:
    """What the rights of a user refuse is done without, and the log says so once."""
    caplog.set_level(logging.INFO)
    fixture = Fixture(_url_with_rights(own_redis, *rights))
    await started(fixture.store)

    remaining = [outcome.remaining for _ in range(5) for outcome in await fixture.hit() if outcome]
    said = [each.getMessage() for each in caplog.records if "refuses" in each.getMessage()]

    await fixture.store.close()
    assert remaining == [999, 998, 997, 996, 995]
    assert [any(f"refuses {word} " in line for line in said) for word in told] == [True] * len(told)
    assert len(said) == len(told)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("server", ["own_redis", "slots_redis"])
async def test_many_calls_at_once_where_evalsha_is_refused(
    request: pytest.FixtureRequest, server: str
) -> None:
    """All calls that are under way when EVALSHA is first refused are sent again, not the first."""
    fixture = Fixture(_url_with_rights(request.getfixturevalue(server), "-evalsha"))
    await started(fixture.store)

    pairs = [
        [hit(limit=1_000, key=key, window_us=YEAR) for key in ("all", f"user {number}")]
        for number in range(300)
    ]
    found = await asyncio.gather(*[charged(fixture.store, [pair]) for pair in pairs])

    await fixture.store.close()
    remaining = [outcome and outcome.remaining for ((outcome, _),) in found]
    assert sorted(each for each in remaining if each is not None) == list(range(700, 1_000))
    assert not fixture.stats.store_errors.total()


@pytest.mark.parametrize(
    ("error", "crosses"),
    [
        ("CROSSSLOT Keys in request don't hash to the same slot", True),
        ("ERR CROSSSLOT Keys in request don't hash to the same slot (command='evalsha')", True),
        ("ERR 'EVAL' command keys must in same slot", True),
        ("MOVED 3999 127.0.0.1:6381", False),
        ("NOSCRIPT No matching script. Please use EVAL.", False),
    ],
)
def test_how_servers_and_proxies_refuse_keys_of_several_slots(error: str, crosses: bool) -> None:
    """Redis' words and those of proxies are known; no other error is taken for them."""
    assert crosses_slots(error) == crosses


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ("NOPERM this user has no permissions to run the 'script|load' command", True),
        ("ERR unknown command 'SCRIPT', with args beginning with: 'LOAD'", True),
        ("unsupported command 'script'", True),
        ("ERR handle request, command 'SCRIPT' is not allowed", True),
        ("ERR command is disabled", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("LOADING Redis is loading the dataset in memory", False),
        ("BUSY Redis is busy running a script.", False),
    ],
)
def test_how_servers_and_proxies_refuse_a_command_for_good(error: str, refused: bool) -> None:
    """What a server or proxy never does is done without; what it may do later is tried again."""
    assert is_refused(Exception(error)) == refused


ONLY_LUA_5_1 = re.compile(
    r"(?<![.\w])(unpack|loadstring|setfenv|getfenv)\(|math\.(pow|mod)|table\.getn|string\.gfind"
)


def test_scripts_run_on_later_lua() -> None:
    """No script calls what only Lua 5.1 has: some servers run Lua 5.4."""
    package = Path(ratelimit_service.__file__).parent
    texts = {
        path: path.read_text()
        for path in sorted(package.rglob("*"))
        if path.suffix == ".lua" or (path.parent.name == "redis" and path.suffix == ".py")
    }

    assert len(texts) > 20
    assert {path.name for path, text in texts.items() if ONLY_LUA_5_1.search(text)} == set()
