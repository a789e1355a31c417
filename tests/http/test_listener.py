"""The admin listener: what it is beside its routes."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ratelimit_service.errors import StoreError, TransportError
from ratelimit_service.net import listening
from ratelimit_service.runtime.admin_port import AdminPort, check_admin_free
from ratelimit_service.service.questions import About, Deciding, Question, QuestionError
from ratelimit_service.service.questions.registry import QUESTIONS
from ratelimit_service.settings import ADMIN_ADDRESS_BY_DEFAULT, Settings
from ratelimit_service.settings.environment import from_environment
from ratelimit_service.settings.translation import from_reference
from tests.http.conftest import AdminSite


async def test_tells_of_processes_health_and_rules(admin: AdminSite) -> None:
    """It answers what was asked of the process, of what decides there, and of the rules."""
    admin.asking.health.degrade("store", "Redis is away")

    processes = await admin.json_of("/processes")
    health = await admin.json_of("/health")
    rules = await admin.ask("/rlconfig")

    assert isinstance(processes, dict)
    assert processes["supervisor"] == {"pid": 7, "version": "1", "workers": []}
    assert [each["counters"] for each in processes["deciding"]] == [0]
    assert health == {"serving": True, "phase": "serving", "faults": {"store": "Redis is away"}}
    assert rules.text.startswith("edge.user: ")


async def test_says_what_is_here(admin: AdminSite) -> None:
    """A path that is not there is 404, with those that are."""
    answer = await admin.ask("/nowhere")

    assert answer.status == 404
    result = json.loads(answer.text)
    assert result["error"] == "/nowhere is not here"
    assert any(line.startswith("GET /health: ") for line in result["here"])


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (QuestionError("write DOMAIN"), 400, "write DOMAIN"),
        (StoreError("Redis is away"), 503, "Redis is away"),
        (ZeroDivisionError("secret"), 500, "a fault of the service: see its log"),
    ],
)
async def test_questions_that_fail(
    admin: AdminSite, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, expected: str
) -> None:
    """A question without an answer is an error that says why; faults of ours go to the log."""

    async def fails(_: Deciding, __: About) -> object:
        raise error

    monkeypatch.setitem(QUESTIONS, "process", Question("process", fails))

    answer = await admin.ask("/processes")

    assert (answer.status, json.loads(answer.text)) == (status, {"error": expected})


@pytest.mark.parametrize("name", ["evil.example", "evil.local", "evil", "evil.svc", "a.internal"])
async def test_names_of_others(admin: AdminSite, name: str) -> None:
    """A page that turned a name of its own to this address (DNS, mDNS) is told nothing.

    Nor does it get a session or change anything.
    """
    answer = await admin.ask("/health", Host=f"{name}:8082")
    origin = {"Host": name, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"}

    assert (await admin.ask("/session", **origin)).status == 421
    assert (await admin.ask("/change", {}, Host=name)).status == 421

    assert (answer.status, "--admin-hosts" in answer.text) == (421, True)


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "X-Forwarded",
        "X-Forwarded-For",
        "x-forwarded-proto",
        "X-Envoy-Internal",
        "X-Real-IP",
        "Via",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "Client-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "Fastly-Client-IP",
        "X-Azure-ClientIP",
        "X-Original-Forwarded-For",
    ],
)
async def test_callers_behind_a_proxy_are_not_local(admin: AdminSite, header: str) -> None:
    """Who comes through a proxy on this machine could be anybody, and is let in by a token only."""
    answer = await admin.ask("/health", **{header: "192.0.2.1"})

    assert (answer.status, "--admin-token-file" in answer.text) == (403, True)


async def test_default_that_is_taken(
    admin: AdminSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the default is taken the log says so, and nothing is open; what was asked for must be."""
    (listens,) = listening.listen("127.0.0.1:0", "admin")
    taken = f"127.0.0.1:{listening.port_of([listens])}"
    monkeypatch.setattr("ratelimit_service.runtime.admin_port.ADMIN_ADDRESS_BY_DEFAULT", taken)
    port = AdminPort(admin.operating)
    check_admin_free(admin.operating.settings)

    with caplog.at_level(logging.WARNING):
        async with port.running():
            assert port.announced == ""

    assert "the service runs without an admin listener: cannot open the admin port" in caplog.text
    with pytest.raises(TransportError, match="choose another with --admin HOST:PORT"):
        check_admin_free(Settings(admin=taken))
    listens.close()


async def test_unix_socket(admin: AdminSite, tmp_path: Path) -> None:
    """A Unix socket is for its user only, whatever the umask, and no file is left of it."""
    path = tmp_path / "admin.sock"
    port = AdminPort(replace(admin.operating, settings=Settings(admin=f"unix:{path}")))

    before = os.umask(0)
    try:
        async with port.running():
            assert port.announced == f"unix:{path}, for callers on this machine"
            assert path.stat().st_mode & 0o077 == 0
    finally:
        os.umask(before)

    assert not path.exists()


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "default"),
        ({"DEBUG_HOST": "0.0.0.0", "DEBUG_PORT": "6070"}, "default"),
        ({"RATELIMIT_ADMIN": "none"}, ""),
        ({"RATELIMIT_ADMIN": "unix:/run/a"}, "unix:/run/a"),
    ],
)
def test_where_it_is(environment: dict[str, str], address: str) -> None:
    """It is on the loopback interface unless its own setting says otherwise."""
    assert "admin" not in from_reference(environment)
    assert from_environment(environment, "admin").admin == address
    assert ADMIN_ADDRESS_BY_DEFAULT == "127.0.0.1:8082"
