"""What is said at the start of the service."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratelimit_service.model import CountDenied
from ratelimit_service.runtime.announcement import announce
from ratelimit_service.settings import Settings
from tests.service.asking import Asking

RULES = """
domain: {domain}
descriptors:
  - {{key: user, {says}rate_limit: {{unit: day, requests_per_unit: 1}}}}
"""


@pytest.mark.parametrize(
    ("store", "says", "warned"),
    [
        ("memory", "on_limit: enqueue, ", True),
        ("memory", "", False),
        ("redis://localhost", "on_limit: enqueue, ", False),
    ],
)
def test_queues_need_redis(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str, says: str, warned: bool
) -> None:
    """A start with counters in memory says which rules have a queue, and what to do."""
    rules = [RULES.format(domain=domain, says=says) for domain in ("edge", "mail")]
    asking = Asking(tmp_path, *rules)

    announce(Settings(store=store), asking.rules.snapshot, 8081, 8080, 0)

    result = [record.getMessage() for record in caplog.records]
    assert len(result) == warned
    if warned:
        assert "user of edge, user of mail" in result[0]
        assert "give a Redis as --store, or remove on_limit" in result[0]


@pytest.mark.parametrize(
    ("settings", "counted"),
    [
        (Settings(), "none"),
        (Settings(rules="xds://localhost:18000"), "reported"),
        (Settings(count_denied=CountDenied.ALL), "all"),
    ],
)
def test_what_counts_though_denied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: Settings, counted: str
) -> None:
    """A start says which hits of denied requests count."""
    asking = Asking(tmp_path, RULES.format(domain="edge", says=""))

    announce(settings, asking.rules.snapshot, 8081, 8080, 0)

    result = f"hits of denied requests that count: {counted} (--count-denied)"
    assert result in capsys.readouterr().out.splitlines()


def test_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that makes a decision starts as this process did, with values that fit."""
    rules = RULES.format(domain="edge", says="").replace("user", "remote_address")
    asking = Asking(tmp_path, rules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/ratelimit", "serve"])

    announce(Settings(), asking.rules.snapshot, 8081, 8080, 0)

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ".venv/bin/ratelimit hit edge remote_address=192.0.2.1"
