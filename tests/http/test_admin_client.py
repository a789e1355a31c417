"""The client of the admin listener, by which commands ask it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import pytest
import trustme
from click.testing import CliRunner

from ratelimit_service.cli.admin import asks_admin
from ratelimit_service.cli.admin_client import AdminAddress, AdminClient
from ratelimit_service.errors import RateLimitError
from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.net import listening
from ratelimit_service.settings import Settings
from tests.http.conftest import AdminSite, StartSite
from tests.nearby import Listener

TOKEN = "r" * 16


async def failed(address: AdminAddress, path: str = "/health") -> str:
    """Why the listener cannot be asked."""
    with pytest.raises(RateLimitError) as raised:
        await asyncio.to_thread(AdminClient(address).get, path)
    return str(raised.value)


async def test_asks(admin: AdminSite) -> None:
    """What a route tells is there; so is why it does not."""
    address = AdminAddress(f"127.0.0.1:{admin.port}")

    health = await asyncio.to_thread(AdminClient(address).get, "/health")

    assert health == {"serving": True, "phase": "serving", "faults": {}}
    assert "is of another version" in await failed(address, "/nowhere")


async def test_asks_over_a_unix_socket(start_site: StartSite, tmp_path: Path) -> None:
    """A Unix socket is asked as a port is."""
    address = f"unix:{tmp_path / 'admin.sock'}"
    assert "start a service there with" in await failed(AdminAddress(address))
    await start_site(sockets=listening.listen(address, "admin"))

    health = await asyncio.to_thread(AdminClient(AdminAddress(address)).get, "/health")

    assert health == {"serving": True, "phase": "serving", "faults": {}}


async def test_an_answer_that_is_too_large(
    admin: AdminSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is cut off is not taken for that of another program."""
    monkeypatch.setattr("ratelimit_service.cli.admin_client._MOST_BYTES", 5)

    assert "answers more than 5 bytes" in await failed(AdminAddress(f"127.0.0.1:{admin.port}"))


async def test_a_host_that_can_be_none() -> None:
    """A host that no name service could know is told as one that does not answer."""
    assert "no admin listener answers at" in await failed(AdminAddress("\udcff:1"))


async def test_says_what_to_do(start_site: StartSite, tmp_path: Path) -> None:
    """Whatever keeps it from an answer is one line that says what to do."""
    path = tmp_path / "tokens"
    path.write_text(f"read {TOKEN}\n")
    site = await start_site(Settings(admin_token_file=str(path)))
    address = f"127.0.0.1:{site.port}"
    nobody = Listener()
    nobody.close()

    answer = [
        await failed(AdminAddress(address)),
        await failed(AdminAddress(address, "x" * 16)),
        await failed(AdminAddress(f"127.0.0.1:{nobody.port}")),
    ]

    give = "asks for a token: give {} in RATELIMIT_ADMIN_TOKEN"
    other = "start a service there with `ratelimit serve`, or name another with --admin"
    assert give.format("one") in answer[0]
    assert give.format("another") in answer[1]
    assert other in answer[2]


async def test_certificates(start_site: StartSite, tmp_path: Path) -> None:
    """A listener may ask for certificates instead of tokens; without one nobody is let in."""
    authority, stranger = trustme.CA(), trustme.CA()
    names = ("ca", "cert", "key", "mine", "other")
    paths = {name: str(tmp_path / f"{name}.pem") for name in names}
    authority.cert_pem.write_to_path(paths["ca"])
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(paths["cert"])
    server.private_key_pem.write_to_path(paths["key"])
    authority.issue_cert("alice@localhost").private_key_and_cert_chain_pem.write_to_path(
        paths["mine"]
    )
    stranger.issue_cert("eve@localhost").private_key_and_cert_chain_pem.write_to_path(
        paths["other"]
    )
    settings = Settings(
        admin_tls_cert=paths["cert"],
        admin_tls_key=paths["key"],
        admin_tls_client_ca=paths["ca"],
    )
    files = TLSFiles.of_admin(settings)
    assert files is not None
    site = await start_site(settings, sockets=listening.listen("127.0.0.1:0", "admin"))
    await site.listener.renew(files.read())
    address = AdminAddress(f"127.0.0.1:{site.port}", tls_ca=paths["ca"], tls_cert=paths["mine"])

    health = await asyncio.to_thread(AdminClient(address).get, "/health")

    assert health == {"serving": True, "phase": "serving", "faults": {}}
    assert "give one with --admin-tls-cert" in await failed(address._replace(tls_cert=""))
    assert "give another" in await failed(address._replace(tls_cert=paths["other"]))
    assert "--admin-tls-ca" in await failed(address._replace(tls_ca="", tls_cert=""))


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ([], {}, "127.0.0.1:8082"),
        ([], {"RATELIMIT_ADMIN": "default"}, "127.0.0.1:8082"),
        ([], {"RATELIMIT_ADMIN": "unix:/run/a"}, "unix:/run/a"),
        (["--admin", "h:1"], {"RATELIMIT_ADMIN": "unix:/run/a"}, "h:1"),
    ],
)
def test_commands_find_it(words: list[str], environment: dict[str, str], expected: str) -> None:
    """A command asks where its flag says, else the environment, else where it is by default."""

    @click.command()
    @asks_admin
    def show(admin: AdminClient) -> int:
        click.echo(f"{admin.address.endpoint} {admin.address.token}")
        return 0

    ran = CliRunner().invoke(show, words, env={**environment, "RATELIMIT_ADMIN_TOKEN": TOKEN})

    assert ran.output == f"{expected} {TOKEN}\n"
