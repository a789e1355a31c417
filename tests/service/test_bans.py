"""What banned callers are told of when they may come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratelimit_client.wire import decode
from ratelimit_service import wire
from ratelimit_service.model import SECOND_US, Code, Decision, Request
from ratelimit_service.settings import Settings
from tests.service.asking import Asking, descriptor
from tests.service.overriding import BAN, override
from tests.stores.cases import T

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: own, rate_limit: {unit: minute, requests_per_unit: 2}, answer: {headers: none}}
"""
BODIES = {
    90: {"error": "rate_limited", "message": "Requests are denied. Try again in 90 s."},
    None: {"error": "rate_limited", "message": "Requests are denied."},
}


def told(decision: Decision) -> str | None:
    """What `Retry-After` says."""
    values = [value for key, value in decision.response_headers if key == "Retry-After"]
    assert len(values) <= 1
    return values[0] if values else None


@pytest.mark.parametrize("headers", ["ietf", "x-ratelimit"])
@pytest.mark.parametrize("text", ["user=bob", "norule=bob"])
async def test_the_rest_of_a_ban_is_told(tmp_path: Path, headers: str, text: str) -> None:
    """Each denial says how long the ban still lasts; one without an end says nothing of it."""
    asking = Asking(tmp_path, RULES, settings=Settings(headers=headers))
    ban = override(BAN, text, until_us=T + 90 * SECOND_US)
    asking.service.overrides.add([ban])
    waits = []
    for _ in range(3):
        decision = await asking.ask(text)
        assert decision.code is Code.OVER_LIMIT
        waits.append((told(decision), decision.statuses[0].reset_us))
        asking.now_us += 30 * SECOND_US - 1
    assert waits[0] == ("90", 90 * SECOND_US)
    assert [wait for wait, _ in waits] == ["90", "61", "31"]

    asking.service.overrides.remove([ban])
    asking.service.overrides.add([override(BAN, text)])
    decision = await asking.ask(text)
    assert (told(decision), decision.statuses[0].reset_us) == (None, None)


async def test_the_last_of_several_bans_counts(tmp_path: Path) -> None:
    """A request with several bans may come back when the last one ends, or nobody knows."""
    asking = Asking(tmp_path, RULES, settings=Settings(headers="ietf"))
    bans = [
        override(BAN, "user=short", until_us=T + 30 * SECOND_US),
        override(BAN, "user=long", until_us=T + 90 * SECOND_US),
        override(BAN, "user=ever"),
    ]
    asking.service.overrides.add(bans)

    assert told(await asking.ask("user=short", "user=long")) == "90"
    assert told(await asking.ask("user=alice", "user=short")) == "30"
    assert told(await asking.ask("user=short", "user=ever")) is None


async def test_a_rule_can_say_nothing(tmp_path: Path) -> None:
    """Where a rule wants no headers a ban has none; the status says it all the same."""
    asking = Asking(tmp_path, RULES, settings=Settings(headers="ietf"))
    asking.service.overrides.add([override(BAN, "own=bob", until_us=T + 90 * SECOND_US)])
    decision = await asking.ask("own=bob")

    assert decision.response_headers == ()
    assert decision.statuses[0].reset_us == 90 * SECOND_US


@pytest.mark.parametrize("text", ["user=bob", "norule=bob"])
@pytest.mark.parametrize("seconds", [90, None])
async def test_bodies_say_that_it_is_no_limit(
    tmp_path: Path, text: str, seconds: int | None
) -> None:
    """The body of a ban names no limit, and how long to wait only if the ban ends."""
    asking = Asking(tmp_path, RULES, settings=Settings(denial_body="json"))
    until_us = None if seconds is None else T + seconds * SECOND_US
    asking.service.overrides.add([override(BAN, text, until_us=until_us)])
    body = json.loads((await asking.ask(text)).raw_body)

    assert body.pop("retry_after", None) == seconds
    assert body == BODIES[seconds]


@pytest.mark.parametrize("seconds", [90, None])
async def test_the_client_knows_the_wait(tmp_path: Path, seconds: int | None) -> None:
    """The client library has the ban's rest as `retry_after`, without a limit."""
    asking = Asking(tmp_path, RULES)
    until_us = None if seconds is None else T + seconds * SECOND_US
    asking.service.overrides.add([override(BAN, until_us=until_us)])
    request = Request("edge", (descriptor("user=bob"),))
    (answer,) = await asking.service.decide([wire.encode_request(request)])

    assert isinstance(answer, bytes)
    decision = decode(answer)
    assert (decision.allowed, decision.limit, decision.retry_after) == (False, None, seconds)
