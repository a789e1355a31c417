"""How a Redis is reached: URLs, passwords, sockets and TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import trustme

from ratelimit_service.errors import SettingsError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings.translation import from_reference
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.address import (
    Address,
    Login,
    Member,
    Ring,
    Sentinels,
    parse_store,
)
from tests.conftest import need
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.stores.redis_store import COUNTERS, Fixture, started, tried


async def test_password_and_database(own_redis: RedisServer) -> None:
    """The URL's password and database number are used."""
    redis.Redis.from_url(own_redis.url).config_set("requirepass", "s:e/c@t")
    place = own_redis.url.removeprefix("redis://").partition("/")[0]
    fixture = Fixture(f"redis://:s%3Ae%2Fc%40t@{place}/3")
    await started(fixture.store)

    assert await fixture.hit() != [None]

    client = redis.Redis.from_url(f"redis://:s%3Ae%2Fc%40t@{place}/3")
    assert len(list(client.scan_iter(COUNTERS))) == 1
    await fixture.store.close()


async def test_refused_password_is_told_without_it(own_redis: RedisServer) -> None:
    """A wrong password is a fault that names the server and not the password."""
    place = own_redis.url.removeprefix("redis://").partition("/")[0]
    fixture = Fixture(f"redis://user:hunter2@{place}/0")
    await tried(fixture.store, fixture.health)

    assert await fixture.hit() == [None]

    assert "refused AUTH" in fixture.health.faults["store"]
    assert "hunter2" not in fixture.health.faults["store"]
    await fixture.store.close()


@pytest.mark.parametrize("database", [0, 3])
async def test_password_that_is_missing(own_redis: RedisServer, database: int) -> None:
    """A Redis that wants a password which the URL does not have is told with how to write it."""
    redis.Redis.from_url(own_redis.url).config_set("requirepass", "secret")
    fixture = Fixture(f"{own_redis.url.removesuffix('/0')}/{database}")
    await tried(fixture.store, fixture.health)

    assert await fixture.hit() == [None]

    told = "wants a password: redis://:PASSWORD@HOST:PORT/0"
    assert told in fixture.health.faults["store"]
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
    await tried(fixture.store, fixture.health)

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
    await started(fixture.store)

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
    await started(trusting.store)
    await tried(distrusting.store, distrusting.health)

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
    await tried(fixture.store, fixture.health)

    assert await fixture.hit() == [None]
    assert "cannot connect" in fixture.health.faults["store"]
    await fixture.store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("reddis://x", "store scheme 'reddis' is unknown: allowed are memory, redis://"),
        (
            "redis://h:port/0",
            "cannot be read: a port is no number up to 65535: allowed are redis://host:port/db",
        ),
        ("redis://h:99999/0", "a port is no number up to 65535"),
        ("redis://h:1/0/x", "the database is no number"),
        ("redis://:12#34@h:6379", "it has a #: allowed"),
        ("redis://:12?34@h:6379", "it has a ? before an @: allowed"),
        ("redis://:12/34@h:6379", "a mark in a password is written as %XX"),
        ("redis://h,i/0", "it names several servers, as a ring or a cluster has: allowed"),
        ("redis+unix://", "it names no path: allowed"),
        ("redis://h/0?db", "an option is not NAME=VALUE: allowed"),
        ("redis://[h/0", "a host is none: allowed"),
        (
            "localhost:6379",
            "the store has no scheme, as redis:// is one: allowed are memory, redis",
        ),
        ("memroy", "store scheme 'memroy' is unknown: allowed are memory, redis://"),
        ("flie://x", "and file:SHARDS.yaml"),
        ("redis+sentinel://h:26379", "its last part, the name of the master, is missing: allowed"),
        ("redis+sentinel://h:26379/main?tb=3", "'tb' is unknown: allowed are db, username, pa"),
        ("redis://h/0?tiemout=3", "store URL option 'tiemout' is unknown: allowed are db, user"),
        ("redis://h/0?timeout=3", "store URL option 'timeout': '3' is no duration: write a number"),
        ("redis+cluster://h?timeout=0ms", "store URL option 'timeout' is 0: write a time, as in 3"),
        ("redis://h/0?ssl_ca_certs=/x", "store URL option 'ssl_ca_certs' needs rediss://"),
        ("rediss://h/0?ssl_ca_certs=/x", "TLS files cannot be used (ssl_ca_certs=/x)"),
        ("rediss://h/0?ssl_keyfile=/x", "(ssl_keyfile=/x): a key needs its certificate"),
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


async def test_short_lived_passwords(own_redis: RedisServer, tmp_path: Path) -> None:
    """REDIS_AUTH_FILE is read at each connection: its user and password may both be others then."""
    client = redis.Redis.from_url(own_redis.url)
    rights = ["+@read", "+@write", "+@scripting", "+@connection", "+time"]
    for user, password in (("one", "token:1"), ("two", "token:2")):
        client.acl_setuser(user, True, passwords=[f"+{password}"], commands=rights, keys=["{*"])
    client.acl_setuser("default", False)
    file = tmp_path / "token"
    file.write_text("one:token:1\n")
    environment = {"REDIS_URL": own_redis.url, "REDIS_AUTH_FILE": str(file)}
    fixture = Fixture(from_reference(environment)["store"])
    await started(fixture.store)
    assert await fixture.hit() != [None]

    file.write_text("two:token:2")
    client.acl_deluser("one")  # which ends its connections

    await fixture.until(lambda outcomes: outcomes != [None])
    assert fixture.health.faults == {}
    await fixture.store.close()


async def test_password_file_may_be_replaced(own_redis: RedisServer, tmp_path: Path) -> None:
    """After a change of password and of its file the next connection has the new one."""
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("requirepass", "old")
    file = tmp_path / "password"
    file.write_text("old\n")
    fixture = Fixture(f"{own_redis.url}?password_file={file}")
    await started(fixture.store)
    assert await fixture.hit() != [None]

    client = redis.Redis.from_url(own_redis.url, password="old")
    client.config_set("requirepass", "new")
    file.write_text("new")
    client.client_kill_filter(_type="normal", skipme=True)

    await fixture.until(lambda outcomes: outcomes != [None])
    assert fixture.health.faults == {}
    await fixture.store.close()


@pytest.mark.parametrize(
    ("url", "timeout_us"),
    [
        ("redis://h/0?timeout=300ms", 300_000),
        ("redis+unix:///path?db=2&timeout=1.5s", 1_500_000),
        ("redis+ring://one,two/0?timeout=20ms", 20_000),
        ("redis+cluster://one,two?timeout=20ms", 20_000),
        ("redis+sentinel://one/main?timeout=20ms", 20_000),
        ("redis://h/0", 10_000),
    ],
)
async def test_time_of_a_store(url: str, timeout_us: int) -> None:
    """Any store's URL can say how long its servers may take, instead of --store-timeout."""
    store = RedisStore(url, 10_000, Stats(), Health())

    assert {shard.server.timeout_us for shard in store.shards} == {timeout_us}
    await store.close()


async def test_times_of_shards(tmp_path: Path) -> None:
    """Each shard of a file can have a time of its own."""
    shards = tmp_path / "shards.yaml"
    shards.write_text("shards:\n- store: redis://near/0\n- store: redis://far/0?timeout=300ms\n")
    store = RedisStore(f"file:{shards}", 10_000, Stats(), Health())

    assert [shard.server.timeout_us for shard in store.shards] == [10_000, 300_000]
    await store.close()
