"""What goes over real sockets: gRPC and HTTP, sync and async, against the service."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from ratelimit_client import (
    TLS,
    BadRequestError,
    Decision,
    DeniedError,
    Descriptor,
    Limit,
    Limiter,
    LimiterError,
    Reason,
    SyncLimiter,
    UnavailableError,
    Unit,
)
from ratelimit_client.steps import OnFailure
from ratelimit_service.grpc import tls
from ratelimit_service.settings import Settings
from tests.ratelimit_client.conftest import RULES
from tests.ratelimit_client.live import Live
from tests.servers.process import free_port
from tests.servers.proxy import Proxy

PATIENCE = 30.0
numbers = itertools.count()


@pytest.fixture(params=["grpc", "http"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name() -> str:
    """A value that no other test asks about."""
    return f"caller {next(numbers)}"


def connect(live: Live, way: str) -> Limiter:
    return Limiter(live.addresses[way], domain="api", deadline=PATIENCE, on_failure="raise")


@pytest.fixture
def blocking(live: Live, way: str) -> Iterator[SyncLimiter]:
    address = live.addresses[way]
    with SyncLimiter(address, domain="api", deadline=PATIENCE, on_failure="raise") as limiter:
        yield limiter


async def test_check(live: Live, way: str, name: str) -> None:
    """A decision has the limit, what is left of it, and of a denial when to come back."""
    async with connect(live, way) as limiter:
        first = await limiter.check(user=name, cost=2)
        over = await limiter.check(user=name, cost=2)
        last = await limiter.check(user=name)

    assert (first.allowed, first.remaining, first.retry_after) == (True, 1, None)
    assert first.limit == Limit(3, Unit.MINUTE, 1, "per-user")
    assert (over.allowed, over.reason, over.remaining) == (False, Reason.OVER_LIMIT, 0)
    assert over.retry_after is not None
    assert 0 < over.retry_after <= 60
    assert (last.allowed, last.remaining) == (True, 0)
    assert [bool(each) for each in (first, over, last)] == [True, False, True]


async def test_several_descriptors(live: Live, way: str, name: str) -> None:
    """Descriptors of one check pass together or not at all, each with a cost of its own."""
    async with connect(live, way) as limiter:
        both = [
            await limiter.check({"team": name}, Descriptor.of({"user": name}, cost=2))
            for _ in range(2)
        ]
        team = await limiter.check(team=name, cost=0)

    assert [each.allowed for each in both] == [True, False]
    assert [each.allowed for each in both[1].statuses] == [True, False]
    assert team.remaining == 4


async def test_look_charge_and_refund(live: Live, way: str, name: str) -> None:
    """A cost of 0 counts nothing, a charge counts, and a refund gives back."""
    async with connect(live, way) as limiter:
        looks = [await limiter.check(user=name, cost=0) for _ in range(5)]
        await limiter.charge(user=name, cost=3)
        over = await limiter.check(user=name)
        await limiter.refund(user=name, cost=2)
        left = await limiter.check(user=name, cost=0)

    assert {each.remaining for each in looks} == {3}
    assert not over.allowed
    assert left.remaining == 2


async def test_no_rule_and_own_limit(live: Live, way: str, name: str) -> None:
    """Where no rule is, nothing is limited, unless the descriptor brings a limit."""
    own = Descriptor.of({"nothing": name}, limit=Limit(1, Unit.WEEK, 2))
    async with connect(live, way) as limiter:
        free = await limiter.check(nothing=name)
        limited = [await limiter.check(own) for _ in range(2)]

    assert (free.allowed, free.reason, free.limit) == (True, Reason.NO_LIMIT, None)
    assert [each.allowed for each in limited] == [True, False]
    assert limited[0].limit == Limit(1, Unit.WEEK, 2)


async def test_leases(live: Live, way: str, name: str) -> None:
    """A place is held within its block only."""
    async with connect(live, way) as limiter:
        async with limiter.lease(slot=name), limiter.lease(slot=name):
            full = await limiter.check(slot=name, cost=0)
            denied = await limiter.check(slot=name)
        after = await limiter.check(slot=name, cost=0)

    assert (full.remaining, denied.allowed, after.remaining) == (0, False, 2)


async def left(limiter: Limiter, **entries: str) -> int | None:
    return (await limiter.check({**entries}, cost=0)).remaining


@pytest.fixture(scope="module", params=[False, True])
def taking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    """A service that takes reservations, and one that answers UNIMPLEMENTED."""
    settings = Settings(json_refunds=True, no_reservations=request.param)
    live = Live(tmp_path_factory.mktemp("taking"), RULES, settings)
    yield live
    live.close()


@pytest.mark.parametrize("key", ["stream", "tokens"])
async def test_reserve(taking: Live, way: str, key: str, name: str) -> None:
    """An estimate has no room for others until it is settled with what was spent.

    It is held, or charged where the service or the limit takes no reservations.
    """
    entries = {key: name}
    async with connect(taking, way) as limiter:
        async with limiter.reserve(entries, cost=800) as budget:
            assert await left(limiter, **entries) == 200
            with pytest.raises(DeniedError) as denied:
                await limiter.reserve(entries, cost=201)
            budget.spend(400)
            budget.spend(250)
        assert await left(limiter, **entries) == 350
        async with limiter.reserve(entries, cost=300) as budget:
            await budget.settle(0)
        assert await left(limiter, **entries) == 350
        async with limiter.reserve(entries, cost=300):
            pass  # nobody says what it was

        assert await left(limiter, **entries) == 50

    decision = denied.value.decision
    assert (decision.reason, decision.remaining) == (Reason.OVER_LIMIT, 0)
    assert decision.retry_after is not None


def test_reserve_without_asyncio(taking: Live, way: str, name: str) -> None:
    """It is as with asyncio; a second settle corrects the first."""
    with SyncLimiter(taking.addresses[way], domain="api", deadline=PATIENCE) as limiter:
        with limiter.reserve(stream=name, cost=800) as budget:
            assert limiter.check(stream=name, cost=0).remaining == 200
            budget.spend(650)
        assert limiter.check(stream=name, cost=0).remaining == 350
        with limiter.reserve(stream=name, cost=300) as budget:
            budget.settle(100)
            budget.settle(150)

        assert limiter.check(stream=name, cost=0).remaining == 200


async def test_a_reservation_is_extended(live: Live, way: str, name: str) -> None:
    """It is held for as long as is asked for, and longer if it is asked for again."""
    async with connect(live, way) as limiter:
        async with limiter.reserve(stream=name, cost=800, ttl=10.5) as budget:
            live.asking.now_us += 10_499_999
            assert await left(limiter, stream=name) == 200
            live.asking.now_us += 1
            assert await left(limiter, stream=name) == 1_000
            others = await limiter.reserve(stream=name, cost=700)
            assert not await budget.extend(60)
            await others.settle(0)
            extended = await budget.extend(60)
            assert await budget.extend()
            live.asking.now_us += 599_000_000
            assert await left(limiter, stream=name) == 200
            budget.spend(50)
        assert await left(limiter, stream=name) == 950
        assert await budget.extend(60)
        assert await left(limiter, stream=name) == 950
        charged = await limiter.reserve(tokens=name, cost=800, ttl=1)
        assert await charged.extend(1) is charged.decision
        assert await left(limiter, tokens=name) == 200

    assert extended.reservation == budget.decision.reservation


async def test_a_reservation_that_is_too_large(live: Live, way: str, name: str) -> None:
    """Who waits for more than the limit lets any reservation hold is told that it does not help."""
    async with connect(live, way) as limiter:
        with pytest.raises(DeniedError, match="one reservation may not hold so much") as denied:
            await limiter.reserve(stream=name, cost=1_001)

    assert denied.value.decision.retry_after is None


async def test_a_reservation_is_held_and_not_charged(live: Live, way: str, name: str) -> None:
    """More than was held counts whole, beyond the limit too."""
    async with connect(live, way) as limiter:
        budget = await limiter.reserve(stream=name, cost=100)
        held = budget.decision.reservation
        await budget.settle(1_200)
        await limiter.refund(stream=name, cost=199)
        assert not await limiter.check(stream=name)
        await limiter.refund(stream=name, cost=1)

        assert held
        assert await left(limiter, stream=name) == 0
        await limiter.refund(stream=name, cost=5)
        assert await left(limiter, stream=name) == 5


async def test_headers_and_body(live: Live, way: str, name: str) -> None:
    """A decision brings what the rule has callers told."""
    async with connect(live, way) as limiter:
        passed, denied = [await limiter.check(login=name) for _ in range(2)]

    assert dict(passed.headers)["RateLimit-Policy"] == '"sign-in";q=1;w=60'
    assert b"Too many attempts." in denied.body
    assert denied.metadata["decided"] == {
        "by": "count",
        "denied": True,
        "descriptor": 0,
        "limit": "sign-in",
        "rule": "login",
        "shadow": False,
    }


def test_sync(blocking: SyncLimiter, name: str) -> None:
    """Without asyncio everything is the same: checks, refunds, leases and budgets."""
    assert blocking.check(user=name, cost=3).remaining == 0
    assert not blocking.check(user=name)
    blocking.refund(user=name, cost=3)
    with blocking.reserve(tokens=name, cost=600) as budget:
        budget.spend(150)
    with blocking.lease(slot=name):
        held = blocking.check(slot=name, cost=0)

    left = [blocking.check({key: name}, cost=0).remaining for key in ("user", "tokens", "slot")]
    assert (held.remaining, left) == (1, [3, 850, 2])


def test_many_threads(blocking: SyncLimiter, name: str) -> None:
    """Threads that share a limiter get no more than the limit together."""

    async def all_at_once() -> list[Decision]:
        calls = [asyncio.to_thread(blocking.check, team=name) for _ in range(16)]
        return await asyncio.gather(*calls)

    assert sum(each.allowed for each in asyncio.run(all_at_once())) == 5


def test_one_limiter_on_two_loops(live: Live, way: str, name: str) -> None:
    """A limiter goes on when another event loop asks."""
    limiter = connect(live, way)

    async def ask() -> int | None:
        try:
            return (await limiter.check(team=name)).remaining
        finally:
            await limiter.close()

    assert [asyncio.run(ask()) for _ in range(2)] == [4, 3]


async def test_refused(live: Live, way: str, name: str) -> None:
    """What the service refuses is raised whatever `on_failure` says, since it would never pass."""
    async with Limiter(live.addresses[way], domain="api", deadline=PATIENCE) as limiter:
        with pytest.raises(BadRequestError, match="at most 256 are allowed"):
            await limiter.check(*[{"user": name}] * 257)


@pytest.mark.parametrize(("on_failure", "allowed"), [("open", True), ("closed", False)])
async def test_nobody_answers(
    way: str, on_failure: OnFailure, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`on_failure` decides where no service is, and the log says so once."""
    address = {"grpc": "127.0.0.1:{}", "http": "http://127.0.0.1:{}"}[way].format(free_port())
    caplog.set_level(logging.WARNING, "ratelimit_client")

    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure=on_failure) as limiter:
        decisions = [await limiter.check(user="a") for _ in range(3)]
    with SyncLimiter(address, domain="api", deadline=PATIENCE, on_failure=on_failure) as blocking:
        decisions.append(blocking.check(user="a"))

    assert [each.allowed for each in decisions] == [allowed] * 4
    assert {each.reason for each in decisions} == {Reason.UNAVAILABLE}
    assert len(caplog.messages) == 2
    assert "no service answers at" in caplog.messages[0]
    done = f"; requests are {'allowed' if allowed else 'denied'} (on_failure={on_failure})"
    assert all(message.endswith(done) for message in caplog.messages)


async def test_slow_way_to_the_service(live: Live, name: str) -> None:
    """A connection that takes long to be made is waited for, as long as the call may take."""
    proxy = Proxy(live.grpc_port)
    proxy.delay_seconds = 0.3
    address = f"127.0.0.1:{await proxy.start()}"

    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure="raise") as limiter:
        decision = await limiter.check(user=name)

    await proxy.close()
    assert (decision.remaining, proxy.accepted) == (2, 1)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of what takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


async def test_deadline(silent: int, way: str) -> None:
    """A call ends with its deadline, and is not sent again: it may have been counted."""
    address = {"grpc": f"127.0.0.1:{silent}", "http": f"http://127.0.0.1:{silent}"}[way]

    async with Limiter(address, domain="api", deadline=0.05, on_failure="raise") as limiter:
        with pytest.raises(UnavailableError) as raised:
            await limiter.check(user="a")
    with (
        SyncLimiter(address, domain="api", deadline=0.05, on_failure="raise") as blocking,
        pytest.raises(UnavailableError),
    ):
        blocking.check(user="a")

    assert not raised.value.retriable


async def test_unix_socket(tmp_path: Path, name: str) -> None:
    """An address may be a Unix socket."""
    address = f"unix:{tmp_path}/socket"
    live = Live(tmp_path, RULES, grpc=address)
    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure="raise") as limiter:
        decision = await limiter.check(user=name)
    live.close()

    assert decision.remaining == 2


async def test_tls(tmp_path: Path, way: str, name: str) -> None:
    """With TLS both sides show certificates; a service that nobody vouches for is not asked."""
    authority = trustme.CA()
    served, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("caller@example.org")
    files = TLS(*(tmp_path / each for each in ("ca", "cert", "key")))
    authority.cert_pem.write_to_path(tmp_path / "ca")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    own.private_key_pem.write_to_path(tmp_path / "key")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other")
    parts = served.cert_chain_pems[0].bytes(), served.private_key_pem.bytes()
    live = Live(tmp_path, RULES, tls=tls.TLS(*parts, authority.cert_pem.bytes()))
    address = {
        "grpc": f"127.0.0.1:{live.grpc_port}",
        "http": f"https://127.0.0.1:{live.http_port}",
    }[way]
    options = {"domain": "api", "deadline": PATIENCE, "on_failure": "raise"}

    async with Limiter(address, **options, tls=files) as limiter:  # type: ignore[arg-type]
        assert (await limiter.check(user=name)).remaining == 2
    with SyncLimiter(address, **options, tls=files) as blocking:  # type: ignore[arg-type]
        assert blocking.check(user=name).remaining == 1
    stranger = replace(files, ca=tmp_path / "other")
    async with Limiter(address, **options, tls=stranger) as limiter:  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            await limiter.check(user=name)
    live.close()


def test_files_that_are_not_there(way: str, tmp_path: Path) -> None:
    """A file of TLS that cannot be read is named when the limiter is made."""
    address = {"grpc": "localhost:1", "http": "https://localhost:1"}[way]
    for kind in (Limiter, SyncLimiter):
        with pytest.raises(LimiterError, match="no-such-file"):
            kind(address, domain="api", tls=TLS(ca=tmp_path / "no-such-file"))


def test_files_for_nothing(tmp_path: Path) -> None:
    """Files of TLS are not ignored because the URL asks for none."""
    for kind in (Limiter, SyncLimiter):
        with pytest.raises(LimiterError, match="a URL that begins with https://"):
            kind("http://localhost:1", domain="api", tls=TLS(ca=tmp_path))


async def test_another_server(live: Live) -> None:
    """A server that is something else is told to be no rate limit service."""
    address = f"http://127.0.0.1:{live.http_port}/metrics/json"

    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure="raise") as limiter:
        with pytest.raises(UnavailableError, match="answers 404"):
            await limiter.check(user="a")


DECIDED = b'{"overallCode": "OK"}'


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        (b"503 Busy\r\nRetry-After: 0\r\nContent-Length: 0", 2),
        (b"429 Slow\r\nRetry-After: 0\r\nContent-Length: 0", 2),
        (b"503 Busy\r\nContent-Length: 0", 1),
        (b"200 OK\r\nContent-Length: 2\r\n\r\n[]", 1),
        (b"200 OK\r\nContent-Length: 2000000\r\n\r\n" + b" " * 2_000_000, 1),
    ],
    ids=["busy", "slow", "error", "no decision", "endless"],
)
async def test_what_stands_before_the_service(first: bytes, calls: int) -> None:
    """A proxy that says Retry-After is asked again; what else is no decision is not."""
    answers = [first, b"200 OK\r\nContent-Length: %d\r\n\r\n" % len(DECIDED) + DECIDED]
    seen = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().splitlines() if b"content-length" in line)
        await reader.readexactly(int(size.split(b":")[1]))
        writer.write(b"HTTP/1.1 " + answers[seen] + b"\r\n\r\n")
        seen += 1
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure="closed") as limiter:
        decision = await limiter.check(user="a")
    server.close()

    assert (decision.allowed, seen) == (calls == 2, calls)


@pytest.mark.parametrize("kind", [Limiter, SyncLimiter])
@pytest.mark.parametrize("address", ["localhost", "8081", ":8081", "localhost:", "localhost:grpc"])
def test_address_without_port(kind: type[Limiter | SyncLimiter], address: str) -> None:
    """It is refused at once: nobody would answer there, and every request would pass."""
    with pytest.raises(ValueError, match="has no port: write HOST:PORT, as in localhost:8081"):
        kind(address, domain="api")


async def test_http_port_is_no_grpc_port(live: Live) -> None:
    """A limiter that speaks gRPC to the HTTP port says what to write instead."""
    address = f"127.0.0.1:{live.http_port}"

    async with Limiter(address, domain="api", deadline=PATIENCE, on_failure="closed") as limiter:
        decision = await limiter.check(user="a")

    assert decision.reason is Reason.UNAVAILABLE
    assert decision.detail == (
        f"no service answers at {address}: it speaks HTTP/1, not gRPC: write http://{address} for "
        "HTTP, or name the gRPC port, 8081 if nothing else was said"
    )
