"""What `python -m benchmarks.peers` makes servers limit, and says of one that is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import servers
from benchmarks.peers.limits import FEW, LIMITS, limitador_file, reference_file, write
from ratelimit_service.model import Code
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level
from tests.service.asking import Asking

SECONDS = {"hour": 3_600, "day": 86_400}


@pytest.mark.parametrize("domain", sorted({limit.domain for limit in LIMITS}))
def test_rules(domain: str) -> None:
    """The file that both this service and envoyproxy/ratelimit read has each limit once."""
    file = parse(f"{domain}.yaml", reference_file(domain).encode())

    assert file.problems == ()
    assert [
        (rule.path, rule.limits[0].requests_per_unit)
        for rule in Domain(domain, Level.of(file.nodes)).rules
    ] == [
        (" > ".join([*(f"{key}={value}" for key, value in limit.before), limit.key]), limit.number)
        for limit in LIMITS
        if limit.domain == domain
    ]


async def test_rules_decide(tmp_path: Path) -> None:
    """By these rules a limit of three lets three calls pass, each value by itself."""
    rules, _ = write(tmp_path)
    asking = Asking(rules)

    codes = [(await asking.ask(f"{FEW.key}={value}", domain=FEW.domain)).code for value in "aaaab"]

    assert codes == [Code.OK] * 3 + [Code.OVER_LIMIT, Code.OK]


def test_limits_of_limitador() -> None:
    """Limitador's file has the same limits; a limit's descriptor is named by its place."""
    told = json.loads(limitador_file())

    assert [(each["namespace"], each["max_value"], each["seconds"]) for each in told] == [
        (limit.domain, limit.number, SECONDS[limit.unit]) for limit in LIMITS
    ]
    assert told[1]["conditions"] == ["descriptors[1].route == 'checkout'"]
    assert told[1]["variables"] == ["descriptors[1].tenant"]


def test_peer_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not built is left out, and one sentence says what to install and to call."""
    peer = servers.RATELIMIT_GO._replace(program=tmp_path / "none", toolchain="no-such-go")
    monkeypatch.setattr(servers, "PEERS", (peer,))
    monkeypatch.setattr(servers, "TOOLS", tmp_path)

    servers.get()

    said = (
        "envoyproxy/ratelimit is not built, so it is left out: install no-such-go, then "
        "python -m benchmarks.peers get"
    )
    assert servers.missing(peer) == said
    assert capsys.readouterr().err.splitlines() == [said]


@pytest.mark.usefixtures("programs")
def test_peer_that_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build that fails is a sentence that names its log."""
    peer = servers.LIMITADOR._replace(
        program=tmp_path / "none", toolchain="sh", build=["sh", "-c", "echo no crate; exit 1"]
    )
    monkeypatch.setattr(servers, "PEERS", (peer,))
    monkeypatch.setattr(servers, "TOOLS", tmp_path)

    servers.get()

    *_, last = capsys.readouterr().err.splitlines()
    assert last == f"Limitador's crate could not be built, see {tmp_path / 'sh.log'}"
    assert (tmp_path / "sh.log").read_text() == "no crate\n"
