"""What people are told of errors of the system."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.stores.redis.address import parse_store
from ratelimit_service.text import reason
from tests.servers.process import free_port


def test_reasons_have_no_numbers(tmp_path: Path) -> None:
    """A reason is words; numbers of the system and places in its source are left out."""
    said = []
    for fails in (
        (tmp_path / "none").read_text,
        lambda: socket.create_connection(("127.0.0.1", free_port())),
        lambda: ssl.create_default_context(cafile=__file__),
        lambda: ssl.create_default_context().load_cert_chain(__file__),
    ):
        try:
            fails()
        except OSError as error:
            said.append(reason(error))

    assert len(said) == 4
    assert said[:2] == ["No such file or directory", "Connection refused"]
    assert not any("[" in each or "_ssl" in each for each in said)
    several = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 1] no")
    assert reason(several) == "Multiple exceptions: Connect call failed, no"


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:p?w@h/0?ssl_ca_certs=x",
        "redis://user:p?w@h:6379",
        "redis://:p?w=1@h:6379",
        "rediss://:p?w@h:6379/0?db=1",
    ],
)
def test_mark_in_a_password(url: str) -> None:
    """A password with a ? in it is not shown; what is to be written instead is."""
    with pytest.raises(SettingsError, match=r"\? as %3F") as failed:
        parse_store(url)

    assert "w@h" not in str(failed.value)
    assert "w=1" not in str(failed.value)
