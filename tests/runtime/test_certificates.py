"""Certificates of a running service: renewed without a restart, and never lost to a bad file."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

from ratelimit_service.cli.service_client import Client, ClientTLS
from ratelimit_service.errors import TransportError
from ratelimit_service.model import Code, Descriptor, Entry, Request
from tests.runtime.conftest import Start
from tests.servers.process import wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess

REQUEST = Request("edge", (Descriptor((Entry("user", "a"),)),))
TIMEOUT_US = 60_000_000


class Pair:
    """A certificate and its key in files, each time of another authority."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self.cert, self.key = directory / "tls.crt", directory / "tls.key"
        self._issued = 0

    def issue(self) -> str:
        """Puts another pair in place; returns the file of the authority that vouches for it."""
        self._issued += 1
        authority = trustme.CA()
        ca = self._directory / f"ca-{self._issued}.pem"
        authority.cert_pem.write_to_path(str(ca))
        issued = authority.issue_cert("localhost", "127.0.0.1")
        self._put(self.cert, b"".join(part.bytes() for part in issued.cert_chain_pems))
        self._put(self.key, issued.private_key_pem.bytes())
        return str(ca)

    def spoil(self) -> None:
        """Puts a key in place that is another certificate's."""
        self._put(self.key, trustme.CA().issue_cert("localhost").private_key_pem.bytes())

    def _put(self, file: Path, content: bytes) -> None:
        following = file.with_suffix(".next")
        following.write_bytes(content)
        following.replace(file)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "certificates")


@pytest.fixture(params=["alone", "workers", "grpcio"])
def flags(request: pytest.FixtureRequest, own_redis: RedisServer) -> list[str]:
    """How the service runs."""
    kinds = {
        "alone": [],
        "workers": ["--store", own_redis.url, "--workers", "2"],
        "grpcio": ["--transport", "grpcio"],
    }
    return list(kinds[str(request.param)])


def code_of(service: ServiceProcess, ca: str) -> Code | None:
    """The code that a new client gets which trusts one authority; None if it trusts another."""
    with Client(f"localhost:{service.grpc_port}", ClientTLS(ca)) as client:
        try:
            return client.should_rate_limit(REQUEST, TIMEOUT_US).code
        except TransportError:
            return None


def test_renewal(start: Start, pair: Pair, flags: list[str]) -> None:
    """A new pair greets who connects from then on; who is connected stays, and nobody is failed."""
    old = pair.issue()
    service = start(*flags, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with Client(f"localhost:{service.grpc_port}", ClientTLS(old)) as client:
        first = client.should_rate_limit(REQUEST, TIMEOUT_US).code

        new = pair.issue()

        wait_until(lambda: code_of(service, new) is not None, "the new certificate")
        wait_until(lambda: code_of(service, old) is None, "it in every worker")
        assert first is Code.OK
        assert client.should_rate_limit(REQUEST, TIMEOUT_US).code is Code.OVER_LIMIT
    assert service.get("/healthcheck").text == "OK"
    assert 'ratelimit_tls_reloads_total{result="success"} 1.0' in service.get("/metrics").text


def test_bad_pair(start: Start, pair: Pair, flags: list[str]) -> None:
    """A bad pair changes nothing but log, health and metric, until there is a good one again."""
    ca = pair.issue()
    service = start(*flags, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))

    pair.spoil()

    wait_until(lambda: "degraded" in service.get("/healthcheck").text, "the fault to be seen")
    logged = service.get("/healthcheck")
    assert (logged.status, logged.text.splitlines()[1].startswith("tls: --tls-cert")) == (200, True)
    assert "degraded: tls: --tls-cert" in service.log
    assert 'ratelimit_tls_reloads_total{result="error"} 1.0' in service.get("/metrics").text
    assert code_of(service, ca) is Code.OK
    new = pair.issue()
    wait_until(lambda: code_of(service, new) is not None, "the good certificate")
    wait_until(lambda: service.get("/healthcheck").text == "OK", "the fault to be over")


def test_worker_that_starts_beside_a_bad_pair(
    start: Start, pair: Pair, own_redis: RedisServer
) -> None:
    """A worker that has to start while the files are bad serves with what was good before."""
    ca = pair.issue()
    files = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    service = start("--store", own_redis.url, "--workers", "1", *files)
    (before,) = workers(service)
    pair.cert.unlink()
    wait_until(lambda: "degraded" in service.get("/healthcheck").text, "the fault to be seen")

    subprocess.run(["kill", "-KILL", str(before)], check=True)

    wait_until(lambda: workers(service) not in ([], [before]), "another worker")
    wait_until(lambda: code_of(service, ca) is Code.OK, "it to serve")


def workers(service: ServiceProcess) -> list[int]:
    return [each["pid"] for each in json.loads(service.get("/processes").text)["workers"]]


def test_http(start: Start, pair: Pair, own_redis: RedisServer) -> None:
    """The HTTP port speaks TLS with a pair of its own, renewed in the same way."""
    old = pair.issue()
    files = ["--http-tls-cert", str(pair.cert), "--http-tls-key", str(pair.key)]
    service = start("--store", own_redis.url, "--workers", "1", *files)

    def health(ca: str) -> str:
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusting)
        try:
            with opener.open(f"https://localhost:{service.http_port}/readyz") as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    assert health(old) == "OK"
    with pytest.raises((ConnectionError, urllib.error.URLError)):
        service.get("/readyz")
    new = pair.issue()
    wait_until(lambda: health(new) == "OK", "the new certificate")
    assert health(old) == ""
    words = ["health", "--http", f"localhost:{service.http_port}", "--http-tls-cert", "any"]

    def healthy() -> bool:
        return subprocess.run([COMMAND, *words], check=False).returncode == 0

    wait_until(healthy, "it to answer within the second that it has")
    command = [COMMAND, "restart", "--http", f"localhost:{service.http_port}", "--tls"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["restarted: version 0.1.0"], done.stderr
