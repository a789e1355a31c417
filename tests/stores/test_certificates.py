"""TLS to Redis: files are read anew when they change, and a bad pair costs no connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import trustme

from tests.conftest import need
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.stores.redis_store import Fixture, started
from tests.waiting import until


class Certified:
    """A Redis over TLS that takes only clients of one authority, and such a client's files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.issue()
        flags = ["--tls-port", str(self._port), "--tls-auth-clients", "yes"]
        for name, file in (("key", "server.key"), ("cert", "server.pem"), ("ca-cert", "ca.pem")):
            flags += [f"--tls-{name}-file", f"{directory}/{file}"]
        self.server = RedisServer(directory, *flags)

    @property
    def url(self) -> str:
        files = f"ssl_ca_certs={self._directory}/ca.pem&ssl_certfile={self._directory}/client.pem"
        files += f"&ssl_keyfile={self._directory}/client.key"
        return f"rediss://localhost:{self._port}/0?{files}"

    def issue(self) -> None:
        """Puts the certificates of another authority in place, for both sides."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self._directory / "ca.pem"))
        for name in ("server", "client"):
            issued = authority.issue_cert("localhost")
            issued.private_key_pem.write_to_path(str(self._directory / f"{name}.key"))
            issued.cert_chain_pems[0].write_to_path(str(self._directory / f"{name}.pem"))

    def spoil(self) -> None:
        """Gives the client a key that is another certificate's."""
        other = trustme.CA().issue_cert("localhost")
        other.private_key_pem.write_to_path(str(self._directory / "client.key"))

    def connections(self) -> set[str]:
        """The service's, by the numbers that the server gives them."""
        with redis.Redis(port=self.server.port) as client:
            ours = str(client.client_id())
            return {each["id"] for each in client.client_list()} - {ours}

    def hang_up(self) -> None:
        with redis.Redis(port=self.server.port) as client:
            client.client_kill_filter(_type="normal", skipme=True)


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    need("redis-server", "sudo apt install redis-server")
    return Certified(tmp_path)


@pytest.fixture
async def fixture(certified: Certified) -> AsyncIterator[Fixture]:
    certified.server.start()
    fixture = Fixture(certified.url)
    await started(fixture.store)
    yield fixture
    await fixture.store.close()
    certified.server.kill()


async def test_bad_pair(certified: Certified, fixture: Fixture) -> None:
    """A bad pair ends no connection; also one that is made anew shows what was good before."""
    assert await fixture.hit() != [None]
    before = certified.connections()

    certified.spoil()

    await until(lambda: "store tls" in fixture.health.faults)
    assert "ssl_keyfile" in fixture.health.faults["store tls"]
    assert fixture.stats.tls_reloads == {"error": 1}
    assert certified.connections() == before
    assert await fixture.hit() != [None]
    certified.hang_up()
    await until(lambda: bool(certified.connections() - before))
    await fixture.until(lambda outcomes: outcomes != [None])


async def test_new_authority(certified: Certified, fixture: Fixture) -> None:
    """Where both sides get certificates of another authority, the store connects with those."""
    assert await fixture.hit() != [None]

    certified.issue()

    await until(lambda: fixture.stats.tls_reloads == {"success": 1})
    certified.server.kill()
    certified.server.start()
    await fixture.until(lambda outcomes: outcomes != [None])
    await until(lambda: fixture.health.faults == {})
