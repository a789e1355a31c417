"""What people are told of errors of the system, and of times."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.stores.redis.address import parse_store
from ratelimit_service.text.display import in_seconds, is_utf8, lasting, reason
from tests.servers.process import free_port


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (52.2, "53 s"),
        (119, "119 s"),
        (120, "2 min"),
        (150, "2 min 30 s"),
        (7_199, "119 min 59 s"),
        (7_201, "2 h 1 min"),
        (52_845, "14 h 41 min"),
        (172_800, "2 d"),
        (172_799, "48 h"),
        (31_536_000.0, "365 d"),
        (200_000, "2 d 8 h"),
    ],
)
def test_times_to_come(seconds: float, text: str) -> None:
    """A time to come has its two largest units, and is never told too short."""
    assert lasting(seconds) == text


def test_moments_have_whole_seconds() -> None:
    """A fraction of a second is left out, and nothing else."""
    assert in_seconds("2026-07-01T16:03:00.123456Z") == "2026-07-01T16:03:00Z"
    assert in_seconds("2026-07-01T16:03:00+02:00") == "2026-07-01T16:03:00+02:00"
    assert in_seconds("until 1.5") == "until 1.5"


def test_what_is_no_utf8() -> None:
    """Lone surrogates, as shells and JSON hand them over, are no UTF-8."""
    assert is_utf8("ü\u202e")
    assert not is_utf8("a\udcff")


def test_reasons_have_no_numbers(tmp_path: Path) -> None:
    """A reason is words; numbers of the system and places in its source are left out."""
    reasons = []
    for fails in (
        (tmp_path / "none").read_text,
        lambda: socket.create_connection(("127.0.0.1", free_port())),
        lambda: ssl.create_default_context(cafile=__file__),
        lambda: ssl.create_default_context().load_cert_chain(__file__),
    ):
        try:
            fails()
        except OSError as error:
            reasons.append(reason(error))

    assert len(reasons) == 4
    assert reasons[:2] == ["No such file or directory", "Connection refused"]
    assert not any("[" in each or "_ssl" in each for each in reasons)
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
