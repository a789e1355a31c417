"""What the Redis store does when Redis, or what lies in it, is not as it should be."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import trustme

from ratelimit_service.algorithms import capacity_of, spec_of
from ratelimit_service.clock import elapsed_us
from ratelimit_service.errors import SettingsError
from ratelimit_service.health import Health
from ratelimit_service.model import MAX_ADDEND, Calendar, Limit, Outcome, Unit
from ratelimit_service.observer import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.address import (
    Address,
    Login,
    Member,
    Ring,
    Sentinels,
    parse_store,
)
from ratelimit_service.stores.redis.script import SCRIPT, arguments
from tests.conftest import need
from tests.servers.process import PATIENCE_SECONDS, free_port
from tests.servers.redis import RedisServer
from tests.stores import algorithms
from tests.stores.cases import DAY, MINUTE, SECOND, T, charged, hearing, hit
from tests.stores.conftest import Time

GENEROUS_US = 5_000_000

COUNTERS = "{[0-9a-f]*"
"""What the keys of counters look like."""


class Fixture:
    """A store with the stats and the health it writes."""

    def __init__(self, url: str, timeout_us: int = GENEROUS_US) -> None:
        self.stats = Stats()
        self.health = Health()
        self.store = RedisStore(url, timeout_us, self.stats, self.health)

    async def hit(self, *, limit: int = 1_000, key: str = "a") -> Outcomes:
        (outcomes,) = await charged(
            self.store, [[hit(limit=limit, key=key, window_us=600 * MINUTE)]]
        )
        return outcomes

    async def until(self, condition: Callable[[Outcomes], bool]) -> Outcomes:
        """Charges until the condition holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(outcomes := await self.hit()):
                await asyncio.sleep(0.01)
            return outcomes


@pytest.fixture
async def connected(own_redis: RedisServer) -> AsyncIterator[Fixture]:
    fixture = Fixture(own_redis.url)
    await fixture.store.start()
    yield fixture
    await fixture.store.close()


async def test_redis_clock_counts(connected: Fixture) -> None:
    """Without a clock of its own the store counts by Redis' time."""
    ((outcome,),) = await charged(connected.store, [[hit(limit=5)]])

    assert outcome is not None
    assert (outcome.over, outcome.remaining, outcome.charged) == (False, 4, 1)
    assert 0 < outcome.reset_us <= MINUTE


async def test_away_at_start() -> None:
    """A store that is away at the start is a fault in health, and hits have no outcome."""
    fixture = Fixture("redis://127.0.0.1:1")
    await fixture.store.start()

    outcomes = await fixture.hit()

    assert outcomes == [None]
    assert fixture.stats.store_errors == {"disconnected": 1}
    assert "127.0.0.1:1" in fixture.health.faults["store"]
    await fixture.store.close()


async def test_recovers_by_itself(connected: Fixture, own_redis: RedisServer) -> None:
    """Killed and started again, Redis is used again without anybody's doing."""
    await connected.hit()
    own_redis.kill()
    await connected.until(lambda outcomes: outcomes == [None])
    assert "store" in connected.health.faults

    own_redis.start()

    outcomes = await connected.until(lambda outcomes: outcomes != [None])
    assert outcomes[0] is not None
    assert connected.health.faults == {}


async def test_hung_redis_costs_the_timeout_and_no_more(own_redis: RedisServer) -> None:
    """A Redis that does not answer leaves hits without outcome after the store's timeout."""
    fixture = Fixture(own_redis.url, timeout_us=10_000)
    await fixture.store.start()
    own_redis.stop()

    outcomes = await fixture.hit()

    assert outcomes == [None]
    assert fixture.stats.store_errors == {"timeout": 1}
    own_redis.cont()
    await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_lost_scripts_are_taught_again(connected: Fixture, own_redis: RedisServer) -> None:
    """SCRIPT FLUSH costs no decision."""
    await connected.hit(limit=5)
    redis.Redis.from_url(own_redis.url).script_flush()

    outcomes = await connected.hit(limit=5)

    assert outcomes[0] is not None
    assert outcomes[0].remaining == 3
    assert connected.stats.store_errors == {}


async def test_full_redis_is_a_fault_not_an_answer(
    connected: Fixture, own_redis: RedisServer
) -> None:
    """A refused write leaves hits without outcome, and says what Redis said."""
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("maxmemory", "1")

    outcomes = await connected.hit()

    assert outcomes == [None]
    assert connected.stats.store_errors == {"refused": 1}
    assert "OOM" in connected.health.faults["store"]
    client.config_set("maxmemory", "0")
    assert await connected.hit() != [None]


FOREIGN = [b"", b"garbage", b"-1", b"1.5", b"9" * 30, b"4503599627370496"]
FOREIGN += [
    mark + bytes(size) for mark in (b"h", b"w", b"s", b"l", b"t", b"b", b"c") for size in (0, 9)
]


@pytest.mark.parametrize("value", FOREIGN)
async def test_foreign_value_counts_as_new(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, value: bytes
) -> None:
    """What is no state of an algorithm's in its key is replaced, and denies nobody."""
    full = [
        algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
        for limit in algorithms.EVERY_ALGORITHM
    ]
    client = redis.Redis.from_url(redis_server.url)
    for one in full:
        client.set(one.key, value)

    first = await charged(redis_store, [[one] for one in full])
    second = await charged(redis_store, [[one] for one in full])

    assert [outcome.over for (outcome,) in first if outcome] == [False] * len(full)
    assert [outcome.over for (outcome,) in second if outcome] == [True] * len(full)


@pytest.mark.parametrize("limit", algorithms.EVERY_ALGORITHM, ids=lambda limit: spec_of(limit).key)
async def test_every_counter_expires(
    redis_store: RedisStore, redis_server: RedisServer, limit: Limit
) -> None:
    """No key outlives what it counts by more than a second."""
    one = algorithms.hit(limit, lease=b"lease--1")
    ((outcome,),) = await charged(redis_store, [[one]])

    left_ms = redis.Redis.from_url(redis_server.url).pttl(one.key)

    assert outcome is not None
    life_us = outcome.reset_us
    if limit is algorithms.SLIDING:
        life_us += MINUTE  # after its own window a count weighs in the next
    elif limit in {algorithms.TOKENS, algorithms.METER}:
        life_us = MINUTE  # the hit is used for as long if the rule's rate falls to one a minute
    assert life_us / 1_000 < left_ms <= life_us / 1_000 + 1_001


async def test_no_number_fails_a_script_call(redis_store: RedisStore, clock: Time) -> None:
    """The largest numbers of rules and callers fail nothing that is counted beside them."""
    windows = [(Unit.YEAR, 285), (Unit.YEAR, 1), (Unit.SECOND, 1)]
    limits = [
        limit._replace(unit=unit, multiplier=multiplier, requests_per_unit=number, burst=burst)
        for limit in algorithms.EVERY_ALGORITHM
        for unit, multiplier in windows
        for number in (1, MAX_ADDEND)
        for burst in (None, MAX_ADDEND)
        if not isinstance(limit.anchor, Calendar)
        and (burst is None or limit.burst is not None)
        and (number == 1 or limit.algorithm not in {"sliding_log", "concurrency"})
    ]
    requests = [
        [algorithms.hit(limit, addend, count_denied=True, refund=refund)]
        for limit in limits
        for refund in (False, True)
        for addend in (1, MAX_ADDEND - 1)
    ]

    answers = await charged(redis_store, [*requests, [hit()]])

    assert redis_store._stats.store_errors == {}
    assert all(outcome and 0 <= outcome.reset_us < 2**55 for (outcome,) in answers)
    assert answers[-1] == [Outcome(False, 4, MINUTE, 1)]


@pytest.mark.parametrize("limit", algorithms.EVERY_ALGORITHM, ids=lambda limit: spec_of(limit).key)
async def test_garbage_fails_no_script_call(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, limit: Limit
) -> None:
    """Whatever bytes lie in a counter's key, its hits are counted, and those of its neighbours."""
    chance = random.Random(7)
    client = redis.Redis.from_url(redis_server.url)
    full = algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
    await charged(redis_store, [[full]])
    state = client.get(full.key)
    assert isinstance(state, bytes)
    head = state[:1] if state[:1].isalpha() else b""
    for number in range(300):
        garbage = bytearray(state)
        if number % 2:
            garbage = bytearray(head + chance.randbytes(len(state) + chance.randrange(9)))
        for _ in range(chance.randrange(3)):
            garbage[chance.randrange(len(garbage))] = chance.choice([0, 127, 128, 255])
        garbage[: len(head)] = head
        client.set(full.key, bytes(garbage))
        neighbour = hit(key=f"{limit}{number}")
        one = full._replace(addend=chance.choice([0, 1, full.addend]), refund=chance.random() < 0.3)

        (first,), (second,) = await charged(redis_store, [[one], [neighbour]])

        assert second == Outcome(False, 4, MINUTE, 1), bytes(garbage)
        assert first is not None
        assert 0 <= first.remaining <= capacity_of(limit), bytes(garbage)
        assert 0 <= first.reset_us < 2**55, bytes(garbage)


@pytest.mark.parametrize("stepped", [False, True])
async def test_a_bucket_outlives_its_refill(
    redis_store: RedisStore, redis_server: RedisServer, stepped: bool
) -> None:
    """A bucket is kept until one hit a unit would have come back, or ten minutes."""
    client = redis.Redis.from_url(redis_server.url)
    for used, least_s in ((1, 0), (100, 99), (5_000, 600)):
        limit = Limit(5_000, Unit.SECOND, algorithm="token_bucket", stepped=stepped)
        one = algorithms.hit(limit, used, key=f"{used}")
        await charged(redis_store, [[one]])
        assert least_s * 1_000 - 500 < client.pttl(one.key) <= (least_s + 2) * 1_000


@pytest.mark.parametrize("wrong_us", [-DAY, 0, DAY, 400 * DAY])
async def test_redis_picks_the_calendar_s_period(redis_server: RedisServer, wrong_us: int) -> None:
    """Whichever periods a process with a wrong clock sends, Redis' time says which one counts."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    charge = client.register_script(SCRIPT)
    one = algorithms.hit(algorithms.BERLIN_DAY)
    seconds, micros = client.time()
    now_us = seconds * SECOND + micros
    for sent_us in (now_us, now_us + wrong_us):
        _, _, *words = arguments([(0, [[one]])], sent_us)
        reply = charge(keys=[str(one.key, "utf-8")], args=words)

    _, over, remaining, reset_us, _ = reply
    assert (over, remaining) == (0, 0) if abs(wrong_us) <= DAY else (over, remaining) == (0, 1)
    assert reset_us > 0
    if abs(wrong_us) <= DAY:
        _, _, end_us, _ = Calendar(Unit.DAY, "Europe/Berlin").periods(now_us).at(now_us)
        assert abs(reset_us - (end_us - now_us)) < 10 * SECOND


async def test_foreign_type_counts_as_new(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """A key that holds a list is replaced, and denies nobody."""
    one = hit(5)
    redis.Redis.from_url(redis_server.url).rpush(one.key, "x")

    answers = await charged(redis_store, [[one], [one]])

    assert [outcome.over for (outcome,) in answers if outcome] == [False, True]


@pytest.mark.parametrize("now_us", [T, (1 << 25) * MINUTE], ids=["now", "when numbers wrap"])
@pytest.mark.parametrize("addends", [[1], [1, 1], [2, 4]])
async def test_counters_expire(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, now_us: int, addends: list[int]
) -> None:
    """Every counter has an expiry, a little after its window, however it was counted."""
    clock.now_us = now_us
    await charged(redis_store, [[hit(addend)] for addend in addends])
    clock.now_us += MINUTE
    await charged(redis_store, [[hit(addend)] for addend in addends])

    left_ms = redis.Redis.from_url(redis_server.url).pttl(hit().key)

    assert MINUTE / 1_000 - 1_000 < left_ms <= MINUTE / 1_000 + 1_000


async def test_denied_requests_leave_no_trace(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """A request that one hit denies changes nothing in Redis for the others."""
    client = redis.Redis.from_url(redis_server.url)
    await charged(redis_store, [[hit(2, key="a"), hit(3, key="b")]])
    before = {key: (client.get(key), client.pttl(key)) for key in client.scan_iter(COUNTERS)}

    denied = [hit(1, key="a"), hit(1, key="new"), hit(1, key="a"), hit(3, key="b")]
    await charged(redis_store, [denied, denied])

    after = {key: (client.get(key), client.pttl(key)) for key in client.scan_iter(COUNTERS)}
    assert {key: value for key, (value, _) in after.items()} == {
        key: value for key, (value, _) in before.items()
    }
    assert all(0 < left_ms <= before[key][1] for key, (_, left_ms) in after.items())


async def test_peeks_and_refunds_make_no_keys(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """Only what is counted is stored."""
    await charged(redis_store, [[hit(0)], [hit(6)], [hit(3, refund=True)]])

    assert list(redis.Redis.from_url(redis_server.url).scan_iter(COUNTERS)) == []


async def test_batches_are_cut_by_what_they_take(
    connected: Fixture, own_redis: RedisServer
) -> None:
    """Light requests share script calls, heavy ones go with few others or alone, none is split."""
    client = redis.Redis.from_url(own_redis.url)
    leases = algorithms.LEASES._replace(requests_per_unit=10_000)
    light = [[hit(key=str(number)), hit(key=f"{number}b")] for number in range(192)]
    heavy = [[algorithms.hit(leases, key=str(number))] for number in range(5)]
    large = [[hit(key=str(number)) for number in range(256)]]
    calls = []
    for requests in (light, heavy, large):
        client.config_resetstat()
        await charged(connected.store, requests)
        calls.append(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    assert calls == [3, 5, 1]


async def test_password_and_database(own_redis: RedisServer) -> None:
    """The URL's password and database number are used."""
    redis.Redis.from_url(own_redis.url).config_set("requirepass", "s:e/c@t")
    place = own_redis.url.removeprefix("redis://").partition("/")[0]
    fixture = Fixture(f"redis://:s%3Ae%2Fc%40t@{place}/3")
    await fixture.store.start()

    assert await fixture.hit() != [None]

    client = redis.Redis.from_url(f"redis://:s%3Ae%2Fc%40t@{place}/3")
    assert len(list(client.scan_iter(COUNTERS))) == 1
    await fixture.store.close()


async def test_refused_password_is_told_without_it(own_redis: RedisServer) -> None:
    """A wrong password is a fault that names the server and not the password."""
    place = own_redis.url.removeprefix("redis://").partition("/")[0]
    fixture = Fixture(f"redis://user:hunter2@{place}/0")
    await fixture.store.start()

    assert await fixture.hit() == [None]

    assert "refused AUTH" in fixture.health.faults["store"]
    assert "hunter2" not in fixture.health.faults["store"]
    await fixture.store.close()


@pytest.mark.parametrize("password", ["hunter2", "a long one of which only a part is shown" * 4])
async def test_password_that_redis_says_again(
    password: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in which a server says the password again, or its beginning, is told without it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        text = f"ERR unknown command 'AUTH', with args beginning with: '{password[:100]}'"
        writer.write(f"-{text}\r\n".encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fixture = Fixture(f"redis://:{quote(password)}@127.0.0.1:{port}/0")
    await fixture.store.start()

    assert await fixture.hit() == [None]

    for text in (fixture.health.faults["store"], caplog.text):
        assert "with args beginning with: '***'" in text
        assert password[:8] not in text
    await fixture.store.close()
    server.close()


async def test_unix_socket(tmp_path: Path) -> None:
    """A Redis on a Unix socket is used by its path."""
    need("redis-server", "sudo apt install redis-server")
    server = RedisServer(tmp_path, "--unixsocket", str(tmp_path / "s"))
    server.start()
    fixture = Fixture(f"redis+unix://{tmp_path}/s?db=2")
    await fixture.store.start()

    outcomes = await fixture.hit()

    await fixture.store.close()
    server.kill()
    assert outcomes != [None]


async def test_tls(tmp_path: Path) -> None:
    """Over TLS the server must have a certificate of a trusted authority; passwords work too."""
    need("redis-server", "sudo apt install redis-server")
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    port = free_port()
    flags = ["--tls-port", str(port), "--tls-auth-clients", "no", "--requirepass", "secret"]
    for name in ("key", "cert"):
        flags += [f"--tls-{name}-file", str(tmp_path / f"{name}.pem")]
    server = RedisServer(tmp_path, *flags, "--tls-ca-cert-file", str(tmp_path / "ca.pem"))
    server.start()
    url = f"rediss://:secret@localhost:{port}/0?ssl_ca_certs={tmp_path}"
    trusting, distrusting = Fixture(f"{url}/ca.pem"), Fixture(f"{url}/other.pem")
    await trusting.store.start()
    await distrusting.store.start()

    outcomes = [await trusting.hit(), await distrusting.hit()]

    await trusting.store.close()
    await distrusting.store.close()
    server.kill()
    assert outcomes[0] != [None]
    assert outcomes[1] == [None]
    assert "certificate verify failed" in distrusting.health.faults["store"]


@pytest.mark.parametrize(
    "url", ["redis://no-such-host.invalid:6379/0", f"redis://{'x' * 70}.invalid/0"]
)
async def test_host_that_is_none(url: str) -> None:
    """A host name that leads nowhere is a fault like any other."""
    fixture = Fixture(url)
    await fixture.store.start()

    assert await fixture.hit() == [None]
    assert "cannot connect" in fixture.health.faults["store"]
    await fixture.store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("reddis://x", "store scheme 'reddis' is unknown: allowed are memory, redis://"),
        ("redis://h:port/0", "the store URL cannot be read: allowed are redis://host:port/db"),
        ("redis://h:1/0/x", "port and database are numbers"),
        ("redis://:12#34@h:6379", "a mark in a password is written as %XX"),
        (
            "localhost:6379",
            "the store has no scheme, as redis:// is one: allowed are memory, redis",
        ),
        ("memroy", "store scheme 'memroy' is unknown: allowed are memory, redis://"),
        ("flie://x", "and file:SHARDS.yaml"),
        ("redis+sentinel://h:26379", "the store URL cannot be read: allowed are redis://host"),
        ("redis+sentinel://h:26379/main?tb=3", "'tb' is unknown: allowed are db, username, pa"),
        ("redis://h/0?tiemout=3", "store URL option 'tiemout' is unknown: allowed are db, user"),
        ("redis://h/0?ssl_ca_certs=/x", "store URL option 'ssl_ca_certs' needs rediss://"),
        ("rediss://h/0?ssl_ca_certs=/x", "TLS files cannot be used (ssl_ca_certs=/x)"),
    ],
)
def test_url_that_cannot_be_used(url: str, message: str) -> None:
    """A store URL that cannot be used is refused with what is allowed."""
    with pytest.raises(SettingsError) as refused:
        parse_store(url)

    assert message in str(refused.value)


def place(url: str) -> Address | Sentinels:
    ring = parse_store(url)
    assert isinstance(ring, Ring)
    (member,) = ring.members
    return member.endpoint


def test_url_forms() -> None:
    """Host, port, database, user and password, or a socket's path, come from the URL."""
    tcp = place("redis://me:pa%40ss@example:7000/2")
    unix = place("redis+unix:///run/redis.sock?db=4&password_file=/run/secret")
    watched = place("redis+sentinel://me:pa%40ss@one,[::1]:7001/main?db=5&sentinel_password=s3cret")

    assert tcp == Address("example", 7000, db=2, login=Login("me", "pa@ss"))
    assert unix == Address(
        port=6379, path="/run/redis.sock", db=4, login=Login(password_file="/run/secret")
    )
    assert watched == Sentinels(
        (("one", 26379), ("::1", 7001)),
        "main",
        Address(db=5, login=Login("me", "pa@ss")),
        Login(password="s3cret"),
    )
    assert "pa@ss" not in f"{watched} {watched!r} {tcp} {tcp!r}"
    assert "s3cret" not in f"{watched} {watched!r}"


def test_ring_url() -> None:
    """A ring's shards are named by host and port, and have database and login in common."""
    ring = parse_store("redis+ring://me:secret@one,[::1]:7001/3")

    login = Login("me", "secret")
    assert ring == Ring(
        (
            Member("one:6379", Address("one", 6379, db=3, login=login)),
            Member("::1:7001", Address("::1", 7001, db=3, login=login)),
        )
    )


async def test_password_file_may_be_replaced(own_redis: RedisServer, tmp_path: Path) -> None:
    """After a change of password and of its file the next connection has the new one."""
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("requirepass", "old")
    file = tmp_path / "password"
    file.write_text("old\n")
    fixture = Fixture(f"{own_redis.url}?password_file={file}")
    await fixture.store.start()
    assert await fixture.hit() != [None]

    client = redis.Redis.from_url(own_redis.url, password="old")
    client.config_set("requirepass", "new")
    file.write_text("new")
    client.client_kill_filter(_type="normal", skipme=True)

    await fixture.until(lambda outcomes: outcomes != [None])
    assert fixture.health.faults == {}
    await fixture.store.close()


async def test_a_sick_server_is_left_alone(own_redis: RedisServer) -> None:
    """After five charges without an answer the others are decided at once, until pings are."""
    fixture = Fixture(own_redis.url, timeout_us=10_000)
    await fixture.store.start()
    own_redis.stop()

    for _ in range(6):
        assert await fixture.hit() == [None]

    assert fixture.stats.store_errors == {"timeout": 5, "circuit_open": 1}
    own_redis.cont()
    outcomes = await fixture.until(lambda outcomes: outcomes != [None])
    assert outcomes[0] is not None
    assert outcomes[0].remaining == 999
    await fixture.store.close()


async def test_unread_replies_are_read_before_a_timer_is_believed(own_redis: RedisServer) -> None:
    """A process that was held up for longer than the timeout still finds the answers."""
    fixture = Fixture(own_redis.url, timeout_us=10_000)
    await fixture.store.start()
    asked = asyncio.create_task(fixture.hit())
    for _ in range(3):
        await asyncio.sleep(0)  # the call is sent

    time.sleep(0.05)  # noqa: ASYNC251 -- which is to hold everything up

    assert await asked != [None]
    assert fixture.stats.store_errors == {}
    await fixture.store.close()


async def test_a_slow_process_is_not_the_servers_fault(own_redis: RedisServer) -> None:
    """Turns of the loop longer than the timeout make no server sick, however much waits."""
    fixture = Fixture(own_redis.url, timeout_us=100_000)
    await fixture.store.start()
    answers: list[list[Outcomes]] = []

    for _ in range(8):
        for _ in range(20):  # more than may be under way, so that the last ones are never sent
            fixture.store.charge(
                [[hit(limit=100_000)] for _ in range(100)], hearing(answers.append)
            )
        time.sleep(0.12)  # noqa: ASYNC251 -- which is to hold everything up
        for _ in range(4):
            await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(answers) < 8 * 20:
            await asyncio.sleep(0.001)

    assert fixture.stats.store_errors["circuit_open"] == 0
    assert fixture.stats.store_errors["timeout"] == 0
    assert fixture.stats.store_errors["overloaded"] > 0
    assert fixture.health.faults == {}
    assert await fixture.hit() != [None]
    await fixture.store.close()


async def test_a_hung_server_is_found_by_a_slow_process(own_redis: RedisServer) -> None:
    """A process with long turns of its own still leaves a server alone that does not answer."""
    fixture = Fixture(own_redis.url, timeout_us=100_000)
    await fixture.store.start()
    own_redis.stop()

    for _ in range(14):
        fixture.store.charge([[hit()]], lambda _: None)
        time.sleep(0.06)  # noqa: ASYNC251
        for _ in range(4):
            await asyncio.sleep(0)

    assert fixture.stats.store_errors["circuit_open"] > 0
    own_redis.cont()
    assert await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_callers_deadline(own_redis: RedisServer) -> None:
    """A hung server costs a caller that waits for less no more than that; nothing is charged."""
    fixture = Fixture(own_redis.url, timeout_us=3_600_000_000)
    await fixture.store.start()
    own_redis.stop()
    answers: list[list[Outcomes]] = []

    fixture.store.charge([[hit()]], hearing(answers.append), deadline_us=elapsed_us() + 20_000)
    fixture.store.charge([[hit()]], hearing(answers.append), deadline_us=elapsed_us() - 1)

    assert answers == [[[None]]]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(answers) < 2:
            await asyncio.sleep(0.001)
    own_redis.cont()
    ((outcome,),) = await charged(fixture.store, [[hit()]])
    assert outcome is not None
    assert outcome.remaining == 4
    await fixture.store.close()
