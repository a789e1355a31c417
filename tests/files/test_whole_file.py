"""Whatever file the service is told to read, nothing there can hold it up or take its memory."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import ratelimit_service
from ratelimit_service.cli.admin_client import AdminAddress, AdminClient
from ratelimit_service.cli.service_client import ClientTLS
from ratelimit_service.decision_log.key import read_key
from ratelimit_service.errors import OverrideError, RateLimitError
from ratelimit_service.files import whole_file
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.http.routes.overrides import _append
from ratelimit_service.http.tokens import read_tokens
from ratelimit_service.net.pem import client_context
from ratelimit_service.rules.from_xds import FromXds
from ratelimit_service.settings import Settings
from ratelimit_service.stores.overrides import OverridesInMemory
from ratelimit_service.stores.redis.address import Login, RedisTLSFiles, parse_store
from ratelimit_service.stores.redis.shards_file import read_shards
from tests.rules.test_files import device, huge, pipe
from tests.service.overriding import BAN, override

ODD = {
    pipe: "it is no regular file but a pipe: put a regular file there, or name another",
    device: "it is no regular file but a device: put a regular file there, or name another",
    huge: "it has more than 16 MiB: shorten or split it",
    Path.mkdir: "it is no regular file but a directory: put a regular file there, or name another",
}

READERS: dict[str, Callable[[Path], object]] = {
    "shards": lambda path: read_shards(path, parse_store),
    "password": lambda path: Login(password_file=str(path)).read(),
    "store's authorities": lambda path: RedisTLSFiles(ca=str(path)).context(),
    "store's certificate": lambda path: RedisTLSFiles(cert=str(path)).context(),
    "overrides": lambda path: OverridesInMemory(str(path)),
    "tokens": lambda path: read_tokens(str(path)),
    "key of the decision log": lambda path: read_key(str(path)),
    "a port's certificate": lambda path: TLSFiles(path, path).read(),
    "a management server's authorities": lambda path: FromXds(
        Settings(rules="xds://localhost:1", xds_tls_ca=str(path))
    ),
    "a client's authorities": lambda path: ClientTLS(str(path)).credentials(),
    "authorities of the admin listener": lambda path: AdminClient(
        AdminAddress("localhost:1", tls_ca=str(path))
    ).get("/health"),
}


@pytest.mark.parametrize("make", ODD, ids=lambda each: each.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_to_read(tmp_path: Path, reader: str, make: Callable[[Path], None]) -> None:
    """It is an error that names the file, and says what it is and what to do. Nobody waits."""
    make(tmp_path / "odd")

    with pytest.raises(RateLimitError) as raised:
        READERS[reader](tmp_path / "odd")

    assert ODD[make] in str(raised.value)
    assert reader == "password" or "odd" in str(raised.value)  # a URL's parts are not shown


def test_what_does_not_tell_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose size the system does not know is read as far as a file may reach."""
    assert b"Name:" in read_whole("/proc/self/status")
    monkeypatch.setattr(whole_file, "MOST_BYTES", 16)

    with pytest.raises(OSError, match="it has more than 0 MiB: shorten"):
        read_whole("/proc/self/status")


def test_links_are_followed(tmp_path: Path) -> None:
    """A mounted Kubernetes Secret is links."""
    (tmp_path / "really").write_bytes(b"x")
    (tmp_path / "link").symlink_to("really")

    assert read_whole(tmp_path / "link") == b"x"


def test_key_with_a_password(tmp_path: Path) -> None:
    """An encrypted key is an error; nobody is asked for its password at a terminal."""
    issued = trustme.CA().issue_cert("localhost")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    kind, form = Encoding.PEM, PrivateFormat.PKCS8
    locked = key.private_bytes(kind, form, BestAvailableEncryption(b"secret"))
    (tmp_path / "key").write_bytes(issued.cert_chain_pems[0].bytes() + locked)

    with pytest.raises(ValueError, match="the key is encrypted"):
        client_context("", str(tmp_path / "key"), "")


async def test_overrides_are_written_only_as_they_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file too large to be read again is not written, and nothing has changed."""
    path = tmp_path / "overrides.json"
    stored = OverridesInMemory(str(path))
    monkeypatch.setattr("ratelimit_service.stores.overrides.MOST_BYTES", 100)

    with pytest.raises(OverrideError, match="could not be read again"):
        await stored.change([override(BAN)], [])

    assert not path.exists()
    assert await stored.changed() == {}


def test_audit_log_that_nobody_reads(tmp_path: Path) -> None:
    """A line for a pipe that nobody reads, or that is full, is an error and waits for nobody."""
    path = str(tmp_path / "audit")
    os.mkfifo(path)

    with pytest.raises(OSError, match="No such device"):
        _append(path, "x")
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    filling = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(filling, bytes(1 << 20))
    with pytest.raises(BlockingIOError):
        _append(path, "x")
    os.close(reading)
    os.close(filling)


OURS = {
    "http/console.py",
    "cli/demo.py",
    "processes/installed.py",
    "runtime/cpus.py",
    "runtime/peer.py",
    "runtime/worker.py",
    "stores/redis/script.py",
    "wire/messages.py",
}
"""What reads files that come with the program, or are the system's own."""


def test_there_is_no_other_way() -> None:
    """Files that somebody names are read in one way."""
    top = Path(ratelimit_service.__file__).parent
    result = {
        path.relative_to(top).as_posix()
        for path in top.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute) and node.attr in {"read_text", "read_bytes"}
    }

    assert result == OURS
