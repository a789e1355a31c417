"""Rules over xDS: the dialogue with a management server that comes, goes and changes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from ratelimit_service.errors import RulesError, SettingsError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules import from_xds
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.rules.sources import source_of
from ratelimit_service.rules.watch import watched
from ratelimit_service.settings import Settings
from tests.rules.following import Client, following
from tests.servers.management import ManagementServer, config
from tests.servers.process import free_port, running
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def server() -> Iterator[ManagementServer]:
    server = ManagementServer().start()
    yield server
    server.stop()


async def test_dialogue(server: ManagementServer) -> None:
    """It names its node and asks for all; what it accepts is in force when it says so."""
    settings = {"xds_node_id": "n", "xds_node_metadata": "a=b", "xds_headers": "X-Token=secret"}
    async with following(server, **settings) as client:
        conversation = await asyncio.to_thread(server.conversation)
        answer = await client.send(server, "7", config("edge", "user"))

        assert client.domains == {"edge": ["user"]}
        assert client.health.faults == {}
        (first, ack) = conversation.asked
        assert (first.node.id, dict(first.node.metadata)) == ("n", {"a": "b"})
        assert (first.version_info, first.response_nonce, list(first.resource_names)) == (
            "",
            "",
            [],
        )
        assert first.type_url == "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
        assert conversation.headers["x-token"] == "secret"
        assert answer == ack
        assert (ack.version_info, ack.response_nonce) == ("7", "n1")
        assert not ack.HasField("error_detail")


async def test_dead_server_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Where no server is the log says so after the first try, and health what holds until then."""
    settings = Settings(rules=f"xds://127.0.0.1:{free_port()}")
    health = Health()
    rules = Rules(source_of(settings), stats=Stats(), health=health, policy=LoadPolicy(waits=True))
    rules.load()
    assert health.faults["rules"].endswith("yet: until then nothing is served")
    async with watched(rules), asyncio.timeout(PATIENCE_SECONDS):
        while "Connection refused; it goes on asking" not in caplog.text:
            await asyncio.sleep(0.005)

    assert "watch" not in health.faults  # as it is when a server is away for long


async def test_server_that_is_away(
    server: ManagementServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules stay, health says that it is away and why, and no more once it is back."""
    monkeypatch.setattr(from_xds, "_AWAY_SECONDS", 0.1)
    async with following(server) as client:
        await client.send(server, "7", config("one", "a"))
        assert client.health.faults == {}
        await asyncio.to_thread(server.stop)
        await until(lambda: "UNAVAILABLE" in client.health.faults.get("watch", ""))

        assert f"nothing has come from {server.url}" in client.health.faults["watch"]
        assert "what it has sent before stays in force" in client.health.faults["watch"]
        assert client.domains == {"one": ["a"]}
        server.greet = lambda conversation: conversation.send("1", config("one", "b"))
        server.start()
        await client.until_domains({"one": ["b"]})
        await until(lambda: client.health.faults == {})


async def test_server_that_does_not_know_us(
    server: ManagementServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes the stream and stays silent is as one that is away."""
    monkeypatch.setattr(from_xds, "_AWAY_SECONDS", 0.1)
    async with following(server) as client:
        await until(lambda: "connected, but silent" in client.health.faults.get("watch", ""))

        assert not client.rules.begun
        assert "sent before" not in client.health.faults["watch"]


def test_server_that_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks a server that is away once is told why nothing came, and what to look at."""
    monkeypatch.setattr(from_xds, "_FETCH_SECONDS", 2.0)
    nobody = Settings(rules=f"xds://127.0.0.1:{free_port()}")

    with pytest.raises(RulesError, match=r"within 2 s: UNAVAILABLE: .*; check its address, and"):
        from_xds.FromXds(nobody).fetch()


async def test_client_that_dies(server: ManagementServer) -> None:
    """Another is started, which begins anew; the rules stay."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"))
        (process,) = running("ratelimit_service.xds.client")
        os.kill(process, signal.SIGKILL)
        await until(lambda: "the client of xds://" in client.health.faults.get("watch", ""))
        assert client.domains == {"one": ["a"]}
        await asyncio.to_thread(server.conversation, 1)
        await client.send(server, "2", config("one", "b"))

        assert client.domains == {"one": ["b"]}
        assert client.health.faults == {}


async def test_overlay_that_changes(
    server: ManagementServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts at once, without the server; a bad one changes nothing, and no NACK names it."""
    monkeypatch.setattr(from_xds, "_LOOK_SECONDS", 0.02)
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("overlay: [{key: a, rate_limit: {algorithm: sliding_window}}]")

    def algorithm(client: Client) -> str:
        (rule,) = client.rules.snapshot.domains["one"].rules
        return rule.limits[0].algorithm

    async with following(server, xds_overlay=str(overlay)) as client:
        await client.send(server, "1", config("one", "a"))
        assert algorithm(client) == "sliding_window"
        overlay.write_text("overlay: [{key: a, rate_limit: {algorithm: sliding_log}}]")
        await until(lambda: algorithm(client) == "sliding_log")
        overlay.write_text("overlay: [{kye: a}]")
        await until(lambda: "overlay.yaml:1:11" in client.health.faults.get("rules", ""))
        answer = await client.send(server, "2", config("one", "a"))

        assert answer.version_info == "2"
        assert not answer.error_detail.message
        assert algorithm(client) == "sliding_log"
        overlay.write_text("overlay: [{key: a, rate_limit: {algorithm: token_bucket}}]")
        await until(lambda: algorithm(client) == "token_bucket")
        await until(lambda: client.health.faults == {})


@pytest.mark.parametrize(
    ("text", "why"),
    [("overlay: [{kye: a}]", "overlay.yaml:1:12"), (None, "no such file or directory")],
)
def test_overlay_that_is_bad_at_the_start(
    server: ManagementServer, tmp_path: Path, text: str | None, why: str
) -> None:
    """Rules are not served without the overlay that they need."""
    overlay = tmp_path / "overlay.yaml"
    if text is not None:
        overlay.write_text(text)

    with pytest.raises(RulesError, match=why):
        Client(server, xds_overlay=str(overlay)).rules.load()


async def test_certificates_that_change(server: ManagementServer, tmp_path: Path) -> None:
    """TLS files are read anew for each connection: a server with a new authority is found again."""
    await asyncio.to_thread(server.stop)
    ca = tmp_path / "ca.crt"

    def serve(version: str) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(ca)
        made = authority.issue_cert("envoy-gateway")
        pair = (made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes())
        server.greet = lambda conversation: conversation.send(version, config("one", f"k{version}"))
        server.start(grpc.ssl_server_credentials([pair]))

    serve("1")
    async with following(server, xds_tls_ca=str(ca), xds_tls_name="envoy-gateway") as client:
        await client.until_domains({"one": ["k1"]})
        await asyncio.to_thread(server.stop)
        serve("2")
        await client.until_domains({"one": ["k2"]})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"rules": "xds://nowhere"}, "write HOST:PORT"),
        ({"xds_tls_ca": "/nowhere"}, "--xds-tls-ca /nowhere cannot be read"),
        ({"xds_tls_cert": __file__}, "--xds-tls-cert FILE and --xds-tls-key FILE"),
        ({"xds_tls_name": "spiffe://a/b"}, "write a DNS name or an IP address"),
    ],
)
def test_settings_of_no_use(settings: dict[str, Any], why: str) -> None:
    """What cannot be used is said before anything is asked."""
    with pytest.raises(SettingsError, match=why):
        source_of(Settings(**{"rules": "xds://localhost:1", **settings}))


def test_a_supervisor_has_no_grpc() -> None:
    """The process that starts the client, and workers, imports nothing of grpc."""
    program = "import ratelimit_service.runtime.app, sys; sys.exit('grpc' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
