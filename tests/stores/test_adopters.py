"""Redis as users of envoyproxy/ratelimit have it: TLS everywhere, logins, and a prefix of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import redis
import trustme

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings.translation import from_reference
from ratelimit_service.stores.redis import Layout, RedisStore
from tests.conftest import need
from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.redis import RedisServer
from tests.stores.cases import charged, hit
from tests.stores.redis_store import started, tried
from tests.waiting import until


class Certificates:
    """Files of an authority, a server that is called otherwise, and a client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        for name in ("redis.elsewhere", "client"):
            issued = authority.issue_cert(name)
            issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
            issued.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))

    def of_server(self, port: int) -> list[str]:
        files = f"{self.directory}/redis.elsewhere"
        return [
            *("--tls-port", str(port), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", f"{files}.pem", "--tls-key-file", f"{files}.key"),
            *("--tls-ca-cert-file", f"{self.directory}/ca.pem"),
        ]

    def environment(self, **others: str) -> dict[str, str]:
        """The reference's variables for TLS, and others."""
        return {
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_TLS": "true",
            "REDIS_TLS_CACERT": f"{self.directory}/ca.pem",
            "REDIS_TLS_CLIENT_CERT": f"{self.directory}/client.pem",
            "REDIS_TLS_CLIENT_KEY": f"{self.directory}/client.key",
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true",
            **others,
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("redis-server", "sudo apt install redis-server")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_port(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that wants certificates and a password."""
    port = free_port()
    flags = [*certificates.of_server(port), "--requirepass", "secret"]
    server = RedisServer(tmp_path_factory.mktemp("tls"), *flags)
    server.start()
    yield port
    server.kill()


async def counted(environment: Mapping[str, str]) -> tuple[object, dict[str, str]]:
    """What a request with two descriptors gets by this environment, and the faults of health."""
    found, health = from_reference(environment), Health()
    store = RedisStore(
        found["store"],
        5_000_000,
        Stats(),
        health,
        layout=Layout(found.get("second_store", ""), found.get("key_prefix", "")),
    )
    await tried(store, health)
    (outcomes,) = await charged(store, [[hit(limit=1_000)]])
    await store.close()
    return outcomes[0], dict(health.faults)


async def test_certificates_of_both_sides(certificates: Certificates, tls_port: int) -> None:
    """REDIS_TLS with its files reaches a server that wants a certificate of ours."""
    url = f"127.0.0.1:{tls_port}"

    outcome, faults = await counted(
        certificates.environment(REDIS_URL=url, REDIS_AUTH="secret", CACHE_KEY_PREFIX="tls:")
    )

    assert outcome is not None
    assert faults == {}


async def test_host_name_is_verified(certificates: Certificates, tls_port: int) -> None:
    """Unless it is told otherwise, the server's certificate must be for the host that was asked."""
    environment = certificates.environment(
        REDIS_URL=f"127.0.0.1:{tls_port}",
        REDIS_AUTH="secret",
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION="false",
    )

    outcome, faults = await counted(environment)

    assert outcome is None
    assert "certificate verify failed" in faults["store"]


async def test_authority_is_verified_in_any_case(
    certificates: Certificates, tls_port: int, tmp_path: Path
) -> None:
    """To skip the host's name is not to skip the authority."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    environment = certificates.environment(
        REDIS_URL=f"127.0.0.1:{tls_port}",
        REDIS_AUTH="secret",
        REDIS_TLS_CACERT=str(tmp_path / "other.pem"),
    )

    outcome, faults = await counted(environment)

    assert outcome is None
    assert "certificate verify failed" in faults["store"]


async def test_sentinel_with_tls_and_a_login_of_its_own(
    certificates: Certificates, tls_port: int, tmp_path: Path
) -> None:
    """Sentinel and master have TLS, with the same files, and each has its own password."""
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port 0\ndir {tmp_path}\ntls-replication yes\nrequirepass watcher\n"
        f"sentinel monitor main 127.0.0.1 {tls_port} 1\nsentinel auth-pass main secret\n"
    )
    command = ["redis-server", str(config), "--sentinel", *certificates.of_server(port)]
    sentinel = Process(command, tmp_path / "sentinel.log")
    sentinel.spawn()
    sentinel.wait_ready(lambda: listens(port))
    environment = certificates.environment(
        REDIS_TYPE="sentinel",
        REDIS_URL=f"main,127.0.0.1:{port}",
        REDIS_AUTH="secret",
        REDIS_SENTINEL_AUTH="watcher",
    )

    outcome, faults = await counted(environment)
    refused, why = await counted({**environment, "REDIS_SENTINEL_AUTH": "wrong"})

    sentinel.kill()
    assert outcome is not None
    assert faults == {}
    assert refused is None
    assert why["store"].endswith("No master found for 'main' : auth:AuthenticationError")


async def test_cluster_with_tls(certificates: Certificates, tmp_path: Path) -> None:
    """The nodes of a cluster are reached over TLS, those that the first one names too."""
    port = free_port()
    flags = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", str(free_port())]
    server = RedisServer(tmp_path, *certificates.of_server(port), *flags)
    server.start()
    with redis.Redis(port=server.port) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        wait_until(
            lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster"
        )
        environment = certificates.environment(
            REDIS_TYPE="cluster", REDIS_URL=f"127.0.0.1:{port}", CACHE_KEY_PREFIX="edge:"
        )

        outcome, faults = await counted(environment)

        keys = client.keys("*")
    server.kill()
    assert faults == {}
    assert outcome is not None
    assert keys
    assert all(key.startswith(b"edge:{") for key in keys)


async def test_prefixes_keep_services_apart(redis_server: RedisServer) -> None:
    """Services with different prefixes share no counter in one Redis, and no list of processes."""
    redis_server.flush()
    stores = [
        RedisStore(redis_server.url, 5_000_000, Stats(), Health(), layout=Layout(key_prefix=prefix))
        for prefix in ("", "a:", "b:", "a:")
    ]
    for store in stores:
        await started(store)

    remaining = []
    for store in stores:
        ((outcome,),) = await charged(store, [[hit(limit=10)]])
        assert outcome is not None
        remaining.append(outcome.remaining)

    with redis.Redis(port=redis_server.port) as client:
        wait_until(lambda: len(client.keys("*processes")) == 3, "all processes to be known")
        keys = sorted(key.split(b"{")[0] for key in client.keys("*"))
    for store in stores:
        await store.close()
    assert remaining == [9, 9, 9, 8]
    assert keys == [b"", b"", b"a:", b"a:", b"b:", b"b:"]


async def test_who_goes_is_forgotten_at_once(redis_server: RedisServer) -> None:
    """A process that ends takes itself off the list of processes, also under a prefix."""
    redis_server.flush()
    stores = [
        RedisStore(redis_server.url, 5_000_000, Stats(), Health(), layout=Layout(key_prefix="a:"))
        for _ in range(2)
    ]
    for store in stores:
        await started(store)
    with redis.Redis(port=redis_server.port) as client:
        key = "a:{ratelimit}processes"
        await until(lambda: client.zcard(key) >= len(stores))

        await stores[0].close()

        # The other one, which would put out whoever is silent for long, does not run meanwhile.
        wait_until(lambda: client.zcard(key) == 1, "one process to be forgotten")
    await stores[1].close()


async def test_a_user_who_may_see_one_prefix_only(redis_server: RedisServer) -> None:
    """All that the service does in Redis is within its prefix."""
    rights = ["+@read", "+@write", "+@scripting", "+@connection", "+time", "~edge:{*", "on"]
    with redis.Redis(port=redis_server.port) as client:
        client.execute_command("ACL", "SETUSER", "edge", ">secret", *rights)
    environment = {
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis_server.port}",
        "REDIS_AUTH": "edge:secret",
    }

    within = await counted({**environment, "CACHE_KEY_PREFIX": "edge:"})
    without = await counted(environment)

    assert within[0] is not None
    assert without[0] is None
