"""`ratelimit hit`: a decision, asked for and told."""

from __future__ import annotations

import json
import re
import signal
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.cli.words import format_descriptor, parse_descriptor
from ratelimit_service.model import Descriptor, Entry
from tests.cli.ran import Ran
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess

PATIENCE = ("--timeout", "60s")
"""More than people have."""


def at(service: ServiceProcess) -> tuple[str, ...]:
    """Flags of `hit`."""
    return "--address", service.address, *PATIENCE


def test_hit(service: ServiceProcess) -> None:
    """Hit makes a decision a line, sums up, and exits with 1 once something is over."""
    ran = Ran("hit", "demo", "user=hit", *at(service), "--repeat", "3")

    assert ran.code == 1
    lines = ran.out.splitlines()
    assert [line.partition(", resets in ")[0] for line in lines[:3]] == [
        "OK          demo user=hit  1 of 2 left",
        "OK          demo user=hit  0 of 2 left",
        "OVER_LIMIT  demo user=hit  0 of 2 left",
    ]
    assert lines[3] == "2 allowed, 1 over limit"


def test_hit_with_several_descriptors(service: ServiceProcess) -> None:
    """Several descriptors are one request, told one a line below it."""
    ran = Ran("hit", "demo", "free=a", "none=b", *at(service))

    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "OK          demo",
            "  OK          free=a  unlimited",
            "  OK          none=b  not counted: no rule matches",
        ],
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["demo", "none=b"], "no rule matches"),
        (["demo", "none=b", "none=c"], "no rule matches"),
        (["demo", "user=why,none=b"], "no rule matches"),
        (["dmo", "user=why"], "the service has no domain 'dmo'"),
        (["dmo", "user=why", "--limit", "5/hour"], "the service has no domain 'dmo'"),
        (["demo", "user=why", "vip=a"], "another rule of the request replaces its own"),
    ],
)
def test_hit_says_why_nothing_was_counted(
    service: ServiceProcess, words: list[str], why: str
) -> None:
    """What no count decides on is told with the reason, in JSON too, and asking counts nothing."""
    ran = Ran("hit", *words, *at(service))
    in_json = Ran("hit", *words, *at(service), "--json")

    assert f"not counted: {why}\n" in ran.out
    assert why in [each.get("not_counted") for each in json.loads(in_json.out)["statuses"]]
    user = Ran("hit", "demo", "user=why", "--hits", "0", *at(service))
    assert "2 of 2 left" in user.out


def test_hit_says_which_override_decided(tmp_path: Path, rules: Path) -> None:
    """An override that took part is named, also as what keeps others from being counted.

    Asking for reasons leaves no further decision.
    """
    log = tmp_path / "decisions.jsonl"
    service = ServiceProcess(tmp_path, "--rules", str(rules), "--decision-log", str(log))
    service.start()
    admin = ("--admin", f"127.0.0.1:{service.admin_port}")
    try:
        ids = [
            json.loads(Ran(*typed, *admin, "--json").out)["override"]["id"]
            for typed in (
                ("ban", "demo", "user=bob"),
                ("exempt", "demo", "user=vip"),
                ("limit", "demo", "user=dan", "--requests", "7"),
            )
        ]
        banned = Ran("hit", "demo", "user=bob", *at(service))
        beside = ("hit", "demo", "user=bob", "user=zz", "none=b", *at(service))
        beside_ban, in_json = Ran(*beside), Ran(*beside, "--json")
        exempt = Ran("hit", "demo", "user=vip", *at(service))
        limited = Ran("hit", "demo", "user=dan", "user=eve", *at(service))
        service.signal(signal.SIGTERM)
        service.wait()
    finally:
        service.kill()

    ban, exemption, limit = ids
    assert banned.out == f"OVER_LIMIT  demo user=bob  not counted: override (ban {ban})\n"
    assert exempt.out == f"OK          demo user=vip  unlimited, by override (exempt {exemption})\n"
    why = "another descriptor of the request is banned"
    assert beside_ban.out.splitlines()[2:] == [
        f"  OK          user=zz  not counted: {why}",
        f"  OK          none=b  not counted: {why}",
    ]
    answer = [each["not_counted"] for each in json.loads(in_json.out)["statuses"]]
    assert answer == [f"override (ban {ban})", why, why]
    first, dan, eve = limited.out.splitlines()
    assert first == "OK          demo"
    assert dan.startswith("  OK          user=dan  6 of 7 left, resets in ")
    assert dan.endswith(f" s, by override (limit {limit})")
    assert eve.endswith(" s")
    assert len(log.read_text().splitlines()) == 5


def test_hit_says_which_policy_decided(tmp_path: Path, rules: Path, own_redis: RedisServer) -> None:
    """What the failure policy decides is told with the policy's name."""
    own_redis.kill()
    flags = ["--rules", str(rules), "--store", own_redis.url, "--failure-policy", "closed"]
    service = ServiceProcess(tmp_path, *flags, "--workers", "1")
    service.start()

    ran = Ran("hit", "demo", "user=a", *at(service))

    service.kill()
    assert (ran.code, ran.out) == (
        1,
        "OVER_LIMIT  demo user=a  "
        "not counted: failure policy closed: the service's health says why\n",
    )


def test_hit_at_another_port(service: ServiceProcess) -> None:
    """A port that speaks something else is told as what it is, with what to name instead."""
    request = ["hit", "demo", "user=a", *PATIENCE]
    at_http = Ran(*request, "--address", f"127.0.0.1:{service.http_port}")
    with_tls = ["--tls-ca", str(Path(trustme.__file__).parent / "none.pem")]
    no_file = Ran(*request, "--address", service.address, *with_tls)
    with tempfile.NamedTemporaryFile() as file:
        trustme.CA().cert_pem.write_to_path(file.name)
        no_tls = Ran(*request, "--address", service.address, "--tls-ca", file.name)

    assert at_http.err == (
        f"ratelimit: 127.0.0.1:{service.http_port} speaks HTTP/1, not gRPC: if it is the service's "
        "HTTP port, name its gRPC port with --address HOST:PORT, 8081 if nothing else was said\n"
    )
    assert "none.pem cannot be read" in no_file.err
    assert no_tls.err == (
        f"ratelimit: {service.address} speaks no TLS: leave out --tls-ca, or name another port\n"
    )
    assert (at_http.code, no_file.code, no_tls.code) == (2, 2, 2)
    assert "Traceback" not in service.log


def test_hit_with_files_that_are_no_certificates(tmp_path: Path) -> None:
    """Files that TLS cannot use are named, with the reason, before anything is connected."""
    authority = trustme.CA()
    ours = authority.issue_cert("localhost")
    ca, cert, key, other = (str(tmp_path / name) for name in ("ca", "cert", "key", "other"))
    authority.cert_pem.write_to_path(ca)
    ours.cert_chain_pems[0].write_to_path(cert)
    ours.private_key_pem.write_to_path(key)
    authority.issue_cert("other").private_key_pem.write_to_path(other)

    request = ["hit", "demo", "a=b", "--address", "127.0.0.1:1"]
    no_ca = Ran(*request, "--tls-ca", key)
    no_pair = Ran(*request, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", other)
    sound = Ran(*request, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key)

    unusable = "ratelimit: the TLS files cannot be used"
    assert no_ca.err == f"{unusable} ({key}): no certificate or crl found\n"
    assert no_pair.err == f"{unusable} ({ca}, {cert}, {other}): key values mismatch\n"
    assert "no service answers at 127.0.0.1:1" in sound.err
    assert (no_ca.code, no_pair.code, sound.code) == (2, 2, 2)


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"220 mail\r\n", "speaks no gRPC: name the service's gRPC port"),
        (b"", "closed the connection before a word of gRPC: if the service's port has TLS"),
    ],
)
def test_hit_at_another_server(greeting: bytes, message: str) -> None:
    """What answers in another protocol is no service that is away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=say, args=(listener, greeting), daemon=True).start()

        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ran = Ran("hit", "demo", "a=b", "--address", address, *PATIENCE)

    assert (ran.code, message in ran.err, ran.err.count("\n")) == (2, True, 1)


def test_hit_at_a_silent_port() -> None:
    """Where a connection is accepted and nothing is said, the port may be wrong, or slow."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ran = Ran("hit", "demo", "a=b", "--address", address, "--timeout", "200ms")

    assert (ran.code, ran.err) == (
        2,
        f"ratelimit: nothing has answered at {address} within 0.2s: look whether it is the "
        "service's gRPC port; --timeout DURATION waits longer\n",
    )


def test_hit_without_time() -> None:
    """A timeout in which nothing can be answered is refused."""
    ran = Ran("hit", "demo", "a=b", "--timeout", "0s")

    assert (ran.code, "--timeout is 0: write a duration above 0" in ran.err) == (2, True)


def say(listener: socket.socket, greeting: bytes) -> None:
    with suppress(OSError):  # the test is over
        while True:
            connection, _ = listener.accept()
            connection.recv(1_000)
            connection.sendall(greeting)
            connection.close()


def test_hit_shows_what_is_marked(service: ServiceProcess) -> None:
    """Headers for the upstream stand behind the answer; a burst is not shown as part of a rate."""
    first = Ran("hit", "demo", "at_once=a", *at(service))
    burst = Ran("hit", "demo", "burst=a", *at(service))

    assert re.search(r"0 of 1 left, resets in 60 s, x-ratelimit-lease: [0-9a-f]{16}\n", first.out)
    assert "8 left, resets in" in burst.out


def test_hit_in_json(service: ServiceProcess) -> None:
    """--json gives the decision for programs."""
    ran = Ran("hit", "demo", "user=json", *at(service), "--json", "--hits", "2")

    decision = json.loads(ran.out)
    reset = decision["statuses"][0].pop("reset_seconds")
    assert 1 <= reset <= 31_536_000
    assert decision == {
        "code": "OK",
        "statuses": [
            {
                "code": "OK",
                "remaining": 0,
                "limit": {
                    "requests_per_unit": 2,
                    "unit": "year",
                    "unit_multiplier": 1,
                    "name": "per-user",
                },
            }
        ],
        "response_headers": {},
        "request_headers": {},
        "metadata": None,
    }


def test_hit_looks_gives_back_and_overrides(service: ServiceProcess) -> None:
    """--hits 0 only looks, --refund gives back, --limit brings a limit along."""
    common = ["hit", "demo", "user=more", *at(service)]

    answer = [
        Ran(*common, *flags).out.partition("user=more  ")[2].partition(" left")[0]
        for flags in (["--hits", "2"], ["--refund"], ["--hits", "0"], ["--limit", "9/year"])
    ]

    assert answer == ["0 of 2", "1 of 2", "1 of 2", "7 of 9"]


def test_hit_is_refused(service: ServiceProcess) -> None:
    """A request that the service refuses is an error with the service's sentence."""
    ran = Ran("hit", "", "a=b", *at(service))

    assert ran.code == 2
    assert "INVALID_ARGUMENT: domain is empty" in ran.err


TEXT = st.text('ab,=\\ é"', max_size=5)


@given(st.lists(st.builds(Entry, TEXT.filter(bool), TEXT), min_size=1, max_size=3))
def test_descriptors_are_written_as_they_are_read(entries: list[Entry]) -> None:
    """Any descriptor can be typed, with a backslash before what has a meaning."""
    descriptor = Descriptor(tuple(entries))

    assert parse_descriptor(format_descriptor(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", [("a", "b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("a=b=c", [("a", "b=c")]),
        ("a=b,c=d", [("a", "b"), ("c", "d")]),
        (r"a\,b=c\\", [("a,b", "c\\")]),
    ],
)
def test_descriptors(text: str, entries: list[tuple[str, str]]) -> None:
    """A descriptor is typed key=value,key=value."""
    assert parse_descriptor(text).entries == tuple(entries)
