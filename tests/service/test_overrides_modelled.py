"""Overrides that come, go and end at random, held against a model of docs/overrides.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

import pytest

from ratelimit_service import wire
from ratelimit_service.model import (
    SECOND_US,
    Code,
    Decision,
    Entry,
    Hit,
    Outcome,
    Override,
    Request,
)
from ratelimit_service.stores import Outcomes
from tests.service.asking import Asking, Away, descriptor
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, RULES, override


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path, RULES)


class Model:
    """What docs/overrides.md says, in a few lines; limits are fixed windows of the clock."""

    LIMITS: ClassVar = {
        "user": {"": (60, 2)},
        "plan": {"short": (60, 2), "long": (3_600, 5)},
        "free": {},
    }
    KINDS: ClassVar = [BAN, EXEMPT, LIMIT, GRANT]

    def __init__(self) -> None:
        self.overrides: list[Override] = []
        self.counts: dict[tuple[object, ...], int] = {}

    def meant(self, entry: Entry, limit: str, now_us: int) -> list[Override]:
        found = [
            each
            for each in self.overrides
            if each.entries[0].key == entry.key
            and fnmatchcase(entry.value, each.entries[0].value)
            and each.limit in {"", limit}
            and (each.until_us is None or now_us < each.until_us)
        ]
        return sorted(
            found,
            key=lambda each: (
                "*" in each.entries[0].value,
                self.KINDS.index(each.kind),
                not each.limit,
                -each.made_us,
                each.id,
            ),
        )

    def passes(self, entries: list[Entry], now_us: int) -> bool:
        counts = self.counts.copy()
        for entry in entries:
            limits = self.LIMITS[entry.key]
            for name, (seconds, number) in (limits or {"": (1, 1 << 40)}).items():
                found = self.meant(entry, name, now_us)
                first = found[0].kind if found else None
                if first is BAN:
                    return False
                if first is EXEMPT or not limits:
                    continue
                window = now_us // (seconds * SECOND_US)
                numbers = [each.number for each in found if each.kind is LIMIT]
                charged: list[tuple[tuple[object, ...], int]] = [
                    ((each.id, entry, name), each.number)
                    for each in found
                    if each.kind is GRANT and each.made_us // (seconds * SECOND_US) == window
                ]
                charged.append(((entry, name, window), (numbers or [number])[0]))
                room = [key for key, most in charged if counts.get(key, 0) < most]
                if not room:
                    return False
                counts[room[0]] = counts.get(room[0], 0) + 1
        self.counts = counts
        return True


@pytest.mark.parametrize("seed", range(5))
async def test_decisions_are_as_the_stated_order_says(tmp_path: Path, seed: int) -> None:
    """Whatever overrides come, go and end, remembered plans decide as the order says."""
    chance = random.Random(seed)
    asking, model = Asking(tmp_path, RULES), Model()
    values = {"user": ["bob", "al"], "plan": ["a", "ab"], "free": ["x"]}
    for _ in range(200):
        asking.now_us += chance.choice([0, 1, 1, 7_000_000, 61_000_000])
        dice = chance.random()
        if dice < 0.12:
            key = chance.choice(list(values))
            value = chance.choice([*values[key], "*", "a*"])
            one = override(
                chance.choice(Model.KINDS),
                f"{key}={value}",
                chance.randint(1, 4),
                limit=chance.choice(["", "", "short", "long"]),
                until_us=chance.choice([None, asking.now_us + chance.choice([2, 30_000_000])]),
                made_us=asking.now_us,
            )
            model.overrides.append(one)
            asking.service.overrides.add([one])
        elif dice < 0.2 and model.overrides:
            gone = model.overrides.pop(chance.randrange(len(model.overrides)))
            asking.service.overrides.remove([gone])
        else:
            keys = chance.choices(list(values), k=chance.choice([1, 1, 2]))
            entries = [Entry(key, chance.choice(values[key])) for key in keys]
            decision: Decision = await asking.ask(*(f"{key}={value}" for key, value in entries))
            told = f"{entries} {model.overrides} at {asking.now_us}"
            assert (decision.code is Code.OK) == model.passes(entries, asking.now_us), told


class Roomy(Away):
    """A store in which every hit finds all of its limit left."""

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        return [Outcome(False, hit.spec.limit, 1, 1) for hit in hits]


async def test_what_is_remembered_is_as_what_is_planned_anew(tmp_path: Path) -> None:
    """While overrides come and go, who remembers plans answers as who has just started."""
    chance = random.Random(7)
    asking, known = Asking(tmp_path, RULES), list[Override]()
    remembers = asking.served_by(Roomy(), asking.settings)
    for _ in range(60):
        asking.now_us += chance.choice([0, 0, 0, 1_000_000])
        if chance.random() < 0.15:
            kind, until_us = chance.choice(Model.KINDS), asking.now_us + 5_000_000
            text = chance.choice(["user=*", "user=bob", "plan=*"])
            known.append(override(kind, text, 1, until_us=until_us))
            remembers.overrides.add(known[-1:])
        elif known and chance.random() < 0.1:
            remembers.overrides.remove([known.pop(0)])
        fresh = asking.served_by(Roomy(), asking.settings)
        fresh.overrides.add(known)
        texts = chance.choices(["user=bob", "user=al", "plan=a", "nobody=x"], k=2)
        body = wire.encode_request(Request("edge", tuple(map(descriptor, texts))))
        for _ in range(3):
            assert await remembers.decide([body]) == await fresh.decide([body])
