"""What probes get: whether it lives, whether it is ready, and both in time under full load."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from tests.http.test_http import Site

PROBES = ["/healthcheck", "/livez", "/readyz"]
BODY_IN_CHUNKS = (
    b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5_000
)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, Settings(), None)
    await site.start()
    yield site
    await site.admin.close()


@pytest.mark.parametrize(
    ("phase", "statuses"),
    [
        (Phase.STARTING, [500, 200, 503]),
        (Phase.SERVING, [200, 200, 200]),
        (Phase.LEAVING, [200, 200, 200]),
        (Phase.DRAINING, [500, 200, 503]),
    ],
)
async def test_phases(site: Site, phase: Phase, statuses: list[int]) -> None:
    """It lives in every phase, and is ready while it takes new requests."""
    site.asking.health.enter(phase)

    assert [(await site.ask(path)).status for path in PROBES] == statuses


@pytest.mark.parametrize("path", PROBES)
async def test_degraded(site: Site, path: str) -> None:
    """What is degraded neither ends the service nor takes it out of its load balancer."""
    site.asking.health.enter(Phase.SERVING)
    site.asking.health.degrade("store", "Redis is away")

    assert (await site.ask(path)).status == 200


async def test_held(site: Site) -> None:
    """What no request can do without takes it out of its load balancer; the probe says what."""
    site.asking.health.enter(Phase.SERVING)
    site.asking.health.hold("workers", "no worker serves")
    site.asking.health.degrade("store", "Redis is away")

    answers = [await site.ask(path) for path in PROBES]
    assert [answer.status for answer in answers] == [500, 200, 503]
    assert answers[2].text == "no worker serves\nstore: Redis is away\n"
    site.asking.health.let_go("workers")
    assert [(await site.ask(path)).status for path in PROBES] == [200, 200, 200]


@pytest.mark.parametrize("path", PROBES)
async def test_any_name(site: Site, path: str) -> None:
    """Probes may come by a name that is not known: they are told nothing that is secret."""
    site.asking.health.enter(Phase.SERVING)

    assert (await site.ask(path, Host="limits.example.com")).status == 200


@pytest.mark.parametrize("path", PROBES)
async def test_full_load(site: Site, path: str) -> None:
    """A probe on a new connection is answered before others that have sent more than it."""
    site.asking.health.enter(Phase.SERVING)
    request = f"GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode()
    many = [await site.listener.connected() for _ in range(100)]
    for _, writer in many:
        writer.write(BODY_IN_CHUNKS)
    reader, writer = await site.listener.connected()
    writer.write(request)

    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    for each, its_writer in many:
        its_writer.transport.abort()
        assert await each.read() == b""
    writer.close()
