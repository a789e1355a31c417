"""Where the gRPC port can be: TLS and Unix sockets, over both transports."""

from __future__ import annotations

import shlex
import socket
import subprocess
from pathlib import Path

import grpc
import pytest
import trustme

from ratelimit_service.errors import SettingsError, TransportError
from ratelimit_service.grpc.tls import TLSFiles, _is_for
from ratelimit_service.model import Code, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.runtime.certificates import check_certificates
from ratelimit_service.settings import Settings
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request
from tests.grpc.test_transports import RULES, transport
from tests.grpc.transports import TRANSPORTS
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess
from tests.service.asking import Asking, descriptor

__all__ = ["transport"]


class Files:
    """An authority, and what it has signed for a server and a client."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        server = self.authority.issue_cert("localhost", "127.0.0.1")
        self.client = self.authority.issue_cert("client@example.org")
        self.ca, self.cert, self.key = (directory / name for name in ("ca", "cert", "key"))
        self.authority.cert_pem.write_to_path(self.ca)
        server.private_key_pem.write_to_path(self.key)
        for part in server.cert_chain_pems:
            part.write_to_path(self.cert, append=True)


async def decided(channel: grpc.aio.Channel) -> Code:
    """The code of one decision over the channel."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        f"/{SERVICE}/{METHOD}"
    )
    async with channel:
        body = encode_request(Request("edge", (descriptor("a=x"),)))
        return decode_decision(await call(body, timeout=60)).code


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    rules = tmp_path / "rules"
    rules.mkdir()
    return Asking(rules, RULES)


async def test_tls(files: Files, asking: Asking, transport: str) -> None:
    """With a certificate the port speaks TLS, and clients can tell whom they reach."""
    tls = TLSFiles(files.cert, files.key).read()
    server = TRANSPORTS[transport]("127.0.0.1:0", asking.service, Health(), 0, tls)
    port = await server.start()
    trusting = grpc.ssl_channel_credentials(files.ca.read_bytes())

    code = await decided(grpc.aio.secure_channel(f"localhost:{port}", trusting))

    assert code is Code.OK
    with pytest.raises(grpc.aio.AioRpcError):
        await decided(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    await server.stop(0)


async def test_client_certificates(files: Files, asking: Asking, transport: str) -> None:
    """With authorities for clients only those call that have a certificate of theirs."""
    tls = TLSFiles(files.cert, files.key, files.ca).read()
    server = TRANSPORTS[transport]("127.0.0.1:0", asking.service, Health(), 0, tls)
    port = await server.start()
    known = grpc.ssl_channel_credentials(
        files.ca.read_bytes(),
        files.client.private_key_pem.bytes(),
        files.client.cert_chain_pems[0].bytes(),
    )
    unknown = grpc.ssl_channel_credentials(files.ca.read_bytes())

    code = await decided(grpc.aio.secure_channel(f"localhost:{port}", known))

    assert code is Code.OK
    with pytest.raises(grpc.aio.AioRpcError):
        await decided(grpc.aio.secure_channel(f"localhost:{port}", unknown))
    await server.stop(0)


@pytest.mark.parametrize(
    ("issued", "asked", "taken"),
    [
        (["envoy.mesh.example"], "envoy.mesh.example", True),
        (["other.example", "envoy.mesh.example"], "Envoy.Mesh.Example", True),
        (["*.mesh.example"], "envoy.mesh.example", True),
        (["*.mesh.example"], "a.envoy.mesh.example", False),
        (["*.mesh.example"], "mesh.example", False),
        (["other.example"], "envoy.mesh.example", False),
        (["mesh.example"], "envoy.mesh.example", False),
        (["10.1.2.3"], "10.1.2.3", True),
        (["10.1.2.3"], "10.1.2.4", False),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["client@example.org"], "client@example.org", False),
        (["client@example.org"], "example.org", False),
    ],
)
async def test_client_certificates_for_a_name(
    files: Files, asking: Asking, issued: list[str], asked: str, taken: bool
) -> None:
    """Of those whom the authorities vouch for only those call whose certificate has the name."""
    tls = TLSFiles(files.cert, files.key, files.ca, asked).read()
    server = TRANSPORTS["h2"]("127.0.0.1:0", asking.service, Health(), 0, tls)
    port = await server.start()
    client = files.authority.issue_cert(*issued, common_name=asked)
    known = grpc.ssl_channel_credentials(
        files.ca.read_bytes(),
        client.private_key_pem.bytes(),
        client.cert_chain_pems[0].bytes(),
    )
    channel = grpc.aio.secure_channel(f"localhost:{port}", known)

    if taken:
        assert await decided(channel) is Code.OK
    else:
        with pytest.raises(grpc.aio.AioRpcError):
            await decided(channel)
    await server.stop(0)


def test_uris_of_certificates() -> None:
    """A URI must be the same to the letter, as a SPIFFE identity is."""
    uri = "spiffe://cluster.local/ns/edge/sa/envoy"
    certificate = {"subjectAltName": (("DNS", "envoy"), ("URI", uri))}

    assert _is_for(certificate, uri)
    assert not _is_for(certificate, uri.upper())
    assert not _is_for(certificate, uri + "2")
    assert not _is_for({}, uri)


@pytest.mark.parametrize("workers", [False, True], ids=["alone", "workers"])
def test_service_for_a_name(
    files: Files, tmp_path: Path, own_redis: RedisServer, workers: bool
) -> None:
    """The reference's GRPC_CLIENT_TLS_SAN names whose certificates may call."""
    (tmp_path / "edge.yaml").write_text(RULES)
    environment = {
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": str(files.cert),
        "GRPC_SERVER_TLS_KEY": str(files.key),
        "GRPC_CLIENT_TLS_CACERT": str(files.ca),
        "GRPC_CLIENT_TLS_SAN": "envoy.example",
    }
    flags = ["--rules", str(tmp_path / "edge.yaml")]
    flags += ["--store", own_redis.url, "--workers", "1"] if workers else []
    service = ServiceProcess(tmp_path, *flags, environment=environment)
    service.start()

    codes = []
    for name in ("envoy.example", "other.example"):
        client = files.authority.issue_cert(name)
        client.private_key_pem.write_to_path(tmp_path / "client.key")
        client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
        words = ["hit", "edge", "a=x", "--address", f"localhost:{service.grpc_port}"]
        words += ["--tls-ca", str(files.ca), "--tls-cert", str(tmp_path / "client.pem")]
        words += ["--tls-key", str(tmp_path / "client.key"), "--timeout", "60s"]
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
        codes.append(done.returncode)

    assert codes == [0, 2]
    assert service.get("/healthcheck").status == 200
    service.kill()
    assert "Traceback" not in service.log


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls_cert": "cert"}, "TLS needs both --tls-cert FILE and --tls-key FILE"),
        ({"tls_client_ca": "ca"}, "TLS needs both --tls-cert FILE and --tls-key FILE"),
        ({"tls_cert": "none", "tls_key": "key"}, "No such file"),
        ({"tls_cert": "ca", "tls_key": "key"}, "cannot be used"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "key"}, "--tls-client-ca"),
    ],
)
def test_files_that_cannot_be_used(
    files: Files, tmp_path: Path, given: dict[str, str], message: str
) -> None:
    """TLS files that are missing, no PEM or do not belong together are named at the start."""
    named = {name: str(tmp_path / file) for name, file in given.items()}

    with pytest.raises(SettingsError, match=message):
        check_certificates(Settings(**named))  # type: ignore[arg-type]  # all of them are paths


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(tls_client_san="a"), "TLS needs both --tls-cert FILE and --tls-key FILE"),
        (
            Settings(tls_cert="c", tls_key="k", tls_client_san="a"),
            "--tls-client-san needs --tls-client-ca FILE",
        ),
        (
            Settings(
                tls_cert="c", tls_key="k", tls_client_ca="a", tls_client_san="a", transport="grpcio"
            ),
            "--tls-client-san needs --transport h2",
        ),
    ],
)
def test_names_that_cannot_be_asked_for(settings: Settings, message: str) -> None:
    """Where certificates cannot be narrowed to a name the service does not start."""
    with pytest.raises(SettingsError, match=message):
        check_certificates(settings)


async def test_unix_socket(tmp_path: Path, asking: Asking, transport: str) -> None:
    """The port may be a Unix socket, also in place of one whose process is dead."""
    address = f"unix:{tmp_path / 'grpc.sock'}"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "grpc.sock"))
    server = TRANSPORTS[transport](address, asking.service, Health())
    await server.start()

    code = await decided(grpc.aio.insecure_channel(address))

    assert code is Code.OK
    await server.stop(0)
    assert not (tmp_path / "grpc.sock").exists()


async def test_place_that_is_taken(tmp_path: Path, asking: Asking) -> None:
    """A socket that somebody listens on stays theirs, and so does a file that is none."""
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "taken"))
        taken.listen()
        for name, message in (("taken", "somebody else listens there"), ("file", "no socket")):
            server = TRANSPORTS["h2"](f"unix:{tmp_path / name}", asking.service, Health())
            with pytest.raises(TransportError, match=message):
                await server.start()


def test_printed_command_works(tmp_path: Path) -> None:
    """What a service on a Unix socket prints at its start makes a decision."""
    (tmp_path / "rules.yaml").write_text(RULES)
    flags = ["--rules", str(tmp_path / "rules.yaml"), "--grpc", f"unix:{tmp_path / 'sock'}"]
    service = ServiceProcess(tmp_path, *flags)
    service.start()
    command = shlex.split(service.log.strip().splitlines()[-1])

    words = [COMMAND, *command[1:], "--timeout", "60s"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    service.kill()
    assert done.stdout.startswith("OK")
