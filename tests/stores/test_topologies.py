"""The whole table of cases, and all or none, on every way to reach Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis import RedisStore
from tests.conftest import need
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.servers.sentinel import Watched
from tests.stores.algorithms import ALGORITHM_CASES
from tests.stores.cases import CASES, charged
from tests.stores.conftest import Time
from tests.stores.redis_store import started


class Reached:
    """One Redis with every kind of door: a socket, TLS with client certificates, an ACL user."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        for name in ("server", "client"):
            issued = authority.issue_cert("localhost")
            issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
            issued.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))
        self._directory, self.tls_port = directory, free_port()
        flags = ["--tls-port", str(self.tls_port), "--tls-auth-clients", "yes"]
        flags += ["--tls-cert-file", str(directory / "server.pem")]
        flags += ["--tls-key-file", str(directory / "server.key")]
        flags += ["--tls-ca-cert-file", str(directory / "ca.pem")]
        self.server = RedisServer(directory, *flags, "--unixsocket", str(directory / "s"))
        (directory / "secret").write_text("hunter2\n")

    def start(self) -> None:
        self.server.start()
        rights = ["+@read", "+@write", "+@scripting", "+@connection", "+time", "~{*", "on"]
        with redis.Redis(port=self.server.port) as client:
            client.execute_command("ACL", "SETUSER", "counter", ">hunter2", *rights)

    def url(self, way: str) -> str:
        directory = self._directory
        files = f"ssl_ca_certs={directory}/ca.pem"
        return {
            "tcp": self.server.url,
            "unix": f"redis+unix://{directory}/s?db=1",
            "tls": f"rediss://localhost:{self.tls_port}/2?{files}"
            f"&ssl_certfile={directory}/client.pem&ssl_keyfile={directory}/client.key",
            "user": f"redis://counter@127.0.0.1:{self.server.port}/3?password_file={directory}/secret",
        }[way]


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    need("redis-server", "sudo apt install redis-server")
    reached = Reached(tmp_path_factory.mktemp("doors"))
    reached.start()
    yield reached
    reached.server.kill()


async def all_cases(url: str, server: RedisServer) -> None:
    """Every row of the table, with an empty store for each."""
    clock, stats, health = Time(), Stats(), Health()
    store = RedisStore(url, 10_000_000, stats, health, clock)
    await started(store)
    for case in [*CASES, *ALGORITHM_CASES]:
        server.flush()
        answers = []
        for charge in case.charges:
            clock.now_us = charge.now_us
            answers += await charged(store, [charge.hits])

        assert answers == [charge.outcomes for charge in case.charges], case.rule

    await store.close()
    assert stats.store_errors == {}
    assert health.faults == {}


@pytest.mark.parametrize("way", ["unix", "tls", "user"])
async def test_every_door(reached: Reached, way: str) -> None:
    """A Unix socket, TLS on both sides, and a user of few rights: all answer the table alike."""
    await all_cases(reached.url(way), reached.server)


async def test_sentinel(tmp_path: Path) -> None:
    """So does a master that Sentinel names."""
    need("redis-server", "sudo apt install redis-server")
    watched = Watched(tmp_path)
    watched.start()
    try:
        await all_cases(watched.url, watched.servers[0])
    finally:
        watched.kill()
