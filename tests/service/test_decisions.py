"""The log of decisions at level debug."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ratelimit_service.model import SECOND_US, Request
from ratelimit_service.service.decisions import LINES_A_SECOND, DecisionLog
from tests.service.asking import Asking, Away, descriptor

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: free, rate_limit: {unlimited: true}}
"""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = "ratelimit_service.service.decisions"
    return [record.getMessage() for record in caplog.records if record.name == name]


async def test_decisions_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At level debug each decision is a line: what was asked, and how it ended."""
    caplog.set_level(logging.DEBUG)
    asking = Asking(tmp_path, RULES)

    await asking.ask("user=bob", "free=a", "none")
    await asking.ask("user=bob", hits=9)
    await asking.answer(Request("edge", ()))
    await asking.service.decide([b"\xff"])

    first, second, third, fourth = lines(caplog)
    assert first.startswith("decided OK: edge: user=bob OK, 1 of 2 left, resets in ")
    uncounted = "not counted: no rule matches, or another one replaces it"
    assert first.endswith(f" s; free=a OK, unlimited; none= OK, {uncounted}")
    assert second.startswith("decided OVER_LIMIT: edge: user=bob OVER_LIMIT, 0 of 2 left")
    assert third.startswith("refused, INVALID_ARGUMENT: a request of 6 bytes that cannot be read: ")
    assert fourth.startswith("refused, INVALID_ARGUMENT: a request of 1 bytes that cannot be read")


async def test_decisions_by_policy_are_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A decision that no count has made says so."""
    caplog.set_level(logging.DEBUG)
    asking = Asking(tmp_path, RULES, store=Away())

    await asking.ask("user=bob")

    (line,) = lines(caplog)
    told = "user=bob OK, not counted: failure policy open"
    assert line == f"decided OK, by failure policy: edge: {told}"


async def test_unknown_domains_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A decision of a domain without rules says why nothing is counted, also as fields."""
    caplog.set_level(logging.DEBUG)
    asking = Asking(tmp_path, RULES)

    await asking.ask("user=bob", domain="other")

    told = "user=bob OK, not counted: no rules for this domain"
    assert lines(caplog) == [f"decided OK: other: {told}"]
    written = [each for each in caplog.records if each.levelno == logging.DEBUG]
    assert [vars(each)["fields"] for each in written if "fields" in vars(each)] == [
        {"domain": "other", "code": "OK", "descriptors": [told]}
    ]


async def test_callers_cannot_write_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a caller's text holds, its decision is one short line of plain characters."""
    caplog.set_level(logging.DEBUG)
    asking = Asking(tmp_path, RULES)
    nasty = "a\nERROR all is lost\x1b[2J\x9b2J\u2028\u202e\ud7ff"

    await asking.ask(f"user={nasty}", domain=nasty)
    await asking.ask(*[f"user={'x' * 1_000}"] * 50)

    assert len(lines(caplog)) == 2
    for line in lines(caplog):
        assert line.isprintable()
        assert line.isascii()
        assert len(line) < 5_000


async def test_lines_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only so many lines are written a second; how many were left out is told afterwards."""
    caplog.set_level(logging.DEBUG)
    asking = Asking(tmp_path, RULES)
    now = [SECOND_US]
    # Only its clock is another.
    asking.service._decisions = DecisionLog(lambda _: True, lambda: now[0])

    for _ in range(LINES_A_SECOND + 7):
        await asking.ask(descriptor("user=bob"))
    now[0] += SECOND_US
    await asking.ask(descriptor("user=bob"))

    *first, told, last = lines(caplog)
    assert len(first) == LINES_A_SECOND
    assert told == "7 more decisions were not written"
    assert last.startswith("decided OVER_LIMIT")


async def test_decisions_cost_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Above level debug nothing is written."""
    caplog.set_level(logging.INFO)
    asking = Asking(tmp_path, RULES)

    await asking.ask("user=bob")

    assert lines(caplog) == []
