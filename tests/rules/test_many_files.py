"""Thousands of files that change at once are taken over in small steps, too."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable
from typing import Self

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.comparison.reloads import difference
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.resource import resource_bytes
from ratelimit_service.rules.source import LastGoodFiles, RuleSource, SourceContent
from ratelimit_service.settings import Settings

MANY = 1_000

MOST_CALLS = 2_500
"""Calls of functions that may be made in one turn: about a millisecond's worth."""


class Sent(RuleSource):
    """What a management server has sent, a resource for each domain."""

    location = "xds://here"
    leaves = True
    changes_often = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    @classmethod
    def of(cls, settings: Settings) -> Self:
        raise AssertionError(settings)

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        return None

    def read(self) -> SourceContent:
        return SourceContent(self.files, {}, dict.fromkeys(self.files, "resource"))

    async def changes(self) -> AsyncGenerator[str, None]:
        yield ""

    def send(self, limit: int | str) -> None:
        self.files = {}
        for number in range(MANY):
            policy = {"unit": "HOUR", "requests_per_unit": limit}
            descriptors = [{"key": "k", "rate_limit": policy}]
            resource = {"name": f"r{number}", "domain": f"d{number}", "descriptors": descriptors}
            self.files[f"{self.location}/r{number}"] = resource_bytes(
                str(limit), json.dumps(resource).encode()
            )


async def most_at_once(work: Awaitable[object]) -> int:
    """The most calls of functions that are made between two turns of others."""
    most = calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    async def others() -> None:
        nonlocal most, calls
        while True:
            most, calls = max(most, calls), 0
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    sys.setprofile(count)
    try:
        await work
    finally:
        sys.setprofile(None)
    beside.cancel()
    return max(most, calls)


async def test_many_files_in_steps() -> None:
    """No turn works through all of them when they come, change, are wrong, or go."""
    source, health = Sent(), Health()
    rules = Rules(source, stats=Stats(), health=health, difference=difference)
    rules.load()
    figures: dict[str, tuple[int, int]] = {}

    for name, limit in (("come", 5), ("changed", 6), ("wrong", "many"), ("right", 7)):
        source.send(limit)
        figures[name] = await most_at_once(rules.reload()), len(rules.problems())
    figures["same"] = await most_at_once(rules.reload()), len(rules.problems())
    assert len(rules.snapshot.domains) == len(rules.leave() or ()) == MANY
    source.files = {}
    figures["gone"] = await most_at_once(rules.reload()), len(rules.problems())
    rules.end()

    assert {name: problems for name, (_, problems) in figures.items()} == {
        **dict.fromkeys(figures, 0),
        "wrong": MANY,
    }
    assert {name: most for name, (most, _) in figures.items() if most > MOST_CALLS} == {}
    assert rules.snapshot.domains == {}
