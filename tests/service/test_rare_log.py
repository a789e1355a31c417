"""What the log says of requests that were decided without a count."""

from __future__ import annotations

import pytest

from ratelimit_service.observability.stats import Stats
from ratelimit_service.service.rare_log import RareLog

MINUTE_US = 60_000_000


def test_decided_by_policy(caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute says how many were decided by which policy, and why, by hits.

    It says so as well where another process has taken the numbers meanwhile.
    """
    stats, now_us = Stats(), 0
    log = RareLog(stats, lambda: now_us)

    def decided(*policies: str) -> None:
        log.uncounted.update(policies)
        log.say_uncounted()

    decided("open")
    stats.store_errors["timeout"] += 20
    decided("closed")
    decided(*["open"] * 9)
    stats.take()
    stats.store_errors["timeout"] += 1
    stats.store_errors["disconnected"] += 2
    now_us += MINUTE_US - 1
    decided("closed")
    now_us += 1
    decided("closed")
    now_us += MINUTE_US
    decided("error")

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "1 request decided by failure policy, not by count (1 open): /healthcheck says why",
        "12 requests decided by failure policy, not by count "
        "(3 closed, 9 open): why, by hits: "
        "21 timeout, 2 disconnected",
        "1 request decided by failure policy, not by count (1 error): /healthcheck says why",
    ]
