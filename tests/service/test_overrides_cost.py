"""What a change of overrides makes the service work out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service import compiled
from ratelimit_service.limiter import DomainOverrides, Planner
from ratelimit_service.model import Code
from ratelimit_service.rules.matchers.pattern import Pattern
from tests.service.asking import Asking
from tests.service.overriding import BAN, override

pytestmark = pytest.mark.skipif(compiled(), reason="what it calls cannot be counted then")
RULES = "{domain: %s, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 99}}]}"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often overrides were looked through, and requests planned by the rules."""
    done: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done[name] += 1
            return method(*arguments)

        return call

    looked = counted("looked", DomainOverrides.taking)
    monkeypatch.setattr(DomainOverrides, "taking", looked)
    for name in ("plan", "plan_alone", "template"):
        monkeypatch.setattr(Planner, name, counted("planned", getattr(Planner, name)))
    return done


async def test_overrides_of_others_cost_nothing(tmp_path: Path, work: Counter[str]) -> None:
    """Who has no override is not compared with those of others, known or new, in any domain."""
    asking = Asking(tmp_path, RULES % "edge", RULES % "other")
    await asking.ask("user=alice", "user=bob")  # so all but the value of a user is known
    asking.service.overrides.add([override(BAN, f"user=eve{number}") for number in range(100)])
    for _ in range(3):
        await asking.ask("user=alice", "user=carol")
    work.clear()

    await asking.ask("user=alice", "user=carol")
    await asking.ask("user=dave", "user=frank")
    await asking.ask("user=alice", "user=grace", domain="other")
    assert work["looked"] == 0
    await asking.ask("user=dave", "user=eve7")
    assert work["looked"] == 2


async def test_a_change_has_each_request_looked_at_once(tmp_path: Path, work: Counter[str]) -> None:
    """A change leaves the plans of the rules. Who it does not touch is compared once more."""
    asking = Asking(tmp_path, RULES % "edge", RULES % "other")
    asking.service.overrides.add([override(BAN, domain=name) for name in ("edge", "other")])
    for _ in range(3):
        for name in ("edge", "other"):
            await asking.ask("user=alice", domain=name)
    work.clear()
    for name in ("edge", "other"):
        await asking.ask("user=alice", domain=name)
    assert work == Counter()

    asking.service.overrides.add([override(BAN, "user=eve", domain="other")])
    for _ in range(3):
        await asking.ask("user=alice")
    assert work == Counter(looked=1)
    for _ in range(3):
        await asking.ask("user=alice", domain="other")
    assert work == Counter(looked=2)


async def test_patterns_of_others_are_hardly_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand patterns only those are compared with a value that begin or end as it does."""
    asking = Asking(tmp_path, RULES % "edge")
    overrides = asking.service.overrides
    made = [
        override(BAN, f"user={text}")
        for number in range(500)
        for text in (f"eve{number}-*", f"*@{number}.example", f"x*-mallory{number}")
    ]
    overrides.add(made)
    compared: Counter[str] = Counter()
    matches = Pattern.matches

    def counted(self: Pattern, value: str) -> bool:
        compared[value] += 1
        return matches(self, value)

    monkeypatch.setattr(Pattern, "matches", counted)
    codes = [
        (await asking.ask(f"user={name}")).code
        for name in ("alice", "eve7-", "eve77-x", "a@7.example", "@7.exampl", "x9-mallory9", "")
    ]
    assert [code is Code.OVER_LIMIT for code in codes] == [
        False,
        True,
        True,
        True,
        False,
        True,
        False,
    ]
    assert max(compared.values()) <= 4

    overrides.remove(made)
    assert (await asking.ask("user=eve7-")).code is Code.OK
