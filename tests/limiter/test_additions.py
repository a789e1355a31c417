"""What answers say beside their statuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.limiter.additions import ADDITIONS
from ratelimit_service.model import Code, Header
from ratelimit_service.settings import Settings
from tests.limiter.policy_header import PolicyHeader
from tests.service.asking import Asking

RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 2}}]"


@pytest.fixture
def registered() -> Iterator[None]:
    if any(isinstance(each, PolicyHeader) for each in ADDITIONS):  # where the example is built
        yield
        return
    ADDITIONS.append(PolicyHeader())  # the one line
    yield
    ADDITIONS.pop()


async def test_allowed_and_denied_say_the_same(registered: None, tmp_path: Path) -> None:
    """One file and one line make a header, in allowed and denied answers alike."""
    asking = Asking(tmp_path, RULES, settings=Settings(limit_response_headers=True))

    answers = [await asking.ask("a=x", hits=hits) for hits in (1, 1, 1, 3)]

    assert [answer.code for answer in answers] == [Code.OK] * 2 + [Code.OVER_LIMIT] * 2
    for answer in answers:
        assert Header("ratelimit-policy", "2;w=60") in answer.response_headers


async def test_unwanted_says_nothing(registered: None, tmp_path: Path) -> None:
    """What the settings do not ask for is in no answer."""
    answer = await Asking(tmp_path, RULES).ask("a=x")

    assert answer.response_headers == ()
