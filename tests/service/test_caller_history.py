"""Callers over a minute and an hour, of one process and of several."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.limiter.callers import MOST_CALLERS
from ratelimit_service.model import SECOND_US
from ratelimit_service.service.caller_history import (
    HOUR,
    MINUTE,
    CallerHistory,
    CallerOrder,
    RuleStretch,
    Standing,
    Stretch,
)
from ratelimit_service.service.caller_rows import rows_of
from tests.service.asking import Asking

RULES = """\
domain: edge
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 10, unit: hour}
  - key: addr
    rate_limit: {requests_per_unit: 1, unit: hour, group: {ipv4: 24}}
"""
RULE = ("edge", "user")


class RecordsInMemory:
    """Records of several processes, without the servers in between."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, bytes]] = {}

    async def leave(self, name: str, process: str, record: bytes, life_us: int) -> None:
        assert life_us >= 80 * SECOND_US
        self.records.setdefault(name, {})[process] = record

    async def read(self, name: str) -> Mapping[str, bytes]:
        return self.records.get(name, {})


def history_of(asking: Asking, shared: RecordsInMemory | None = None) -> CallerHistory:
    assert asking.service.callers is not None
    return CallerHistory(asking.service.callers, shared, asking.clock)


def shown(stretch: Stretch, order: CallerOrder = CallerOrder.OVER) -> list[tuple[str, int]]:
    """The last entry's value of each caller, and its number."""
    found = []
    for row in rows_of(stretch, order, 100):
        caller: Any = row["caller"]
        number: Any = row[order]
        found.append((caller[-1][1], number))
    return found


async def test_a_minute_and_an_hour(tmp_path: Path) -> None:
    """What was over a minute ago is of the last hour only, and after that of nothing."""
    asking = Asking(tmp_path, RULES)
    history = history_of(asking)
    await asking.ask("user=ann", hits=11)
    await history.fold()
    asking.now_us += 30 * SECOND_US
    await asking.ask("user=bob", hits=12)

    assert shown(await history.window(MINUTE)) == [("bob", 12), ("ann", 11)]
    asking.now_us += 51 * SECOND_US
    assert shown(await history.window(MINUTE)) == [("bob", 12)]
    assert shown(await history.window(HOUR)) == [("bob", 12), ("ann", 11)]
    asking.now_us += 3_500 * SECOND_US
    assert shown(await history.window(MINUTE)) == []
    assert shown(await history.window(HOUR)) == [("bob", 12), ("ann", 11)]
    asking.now_us += 900 * SECOND_US
    assert shown(await history.window(HOUR)) == []


async def test_nearest_come_first(tmp_path: Path) -> None:
    """By `near` the smallest share that was ever left comes first, by `hits` the busiest caller."""
    asking = Asking(tmp_path, RULES)
    history = history_of(asking)
    for name, times in (("ann", 9), ("bob", 10), ("cy", 8)):
        for _ in range(times):
            await asking.ask(f"user={name}")

    found = await history.window(MINUTE)

    assert shown(found, CallerOrder.NEAR) == [("bob", 2), ("ann", 1)]
    assert shown(found, CallerOrder.HITS) == [("bob", 10), ("ann", 9), ("cy", 8)]
    (row,) = rows_of(found, CallerOrder.NEAR, 1)
    assert row == {
        "domain": "edge",
        "rule": "user",
        "caller": [["user", "bob"]],
        "limit": "10 per hour",
        "capacity": 10,
        "remaining": 0,
        "over": 0,
        "over_error": 0,
        "near": 2,
        "near_error": 0,
        "hits": 10,
        "hits_error": 0,
    }


async def test_who_is_counted_together_is_one_caller(tmp_path: Path) -> None:
    """Addresses of one network are one caller; long values are known by what was asked."""
    asking = Asking(tmp_path, RULES)
    history = history_of(asking)
    for last in range(4):
        await asking.ask(f"addr=192.0.2.{last}")
    for _ in range(11):
        await asking.ask("user=" + "n" * 300)

    found = await history.window(MINUTE)

    (network, _), (long, _) = shown(found)
    assert network == "192.0.2.0/24"
    assert long == "n" * 199 + "…"


async def test_several_processes_are_one(tmp_path: Path) -> None:
    """Each tells of the others what they have left, also of those that have ended."""
    shared = RecordsInMemory()
    one = Asking(tmp_path, RULES)
    other = Asking(tmp_path, RULES)
    first, second = history_of(one, shared), history_of(other, shared)
    await one.ask("user=ann", hits=11)
    await other.ask("user=ann", hits=20)
    await other.ask("user=bob", hits=12)
    await second.leave()

    found = await first.window(MINUTE)
    elsewhere, processes = await first.elsewhere(MINUTE, {first.id})
    found.merge(elsewhere)

    assert processes == {second.id}
    assert shown(found) == [("ann", 31), ("bob", 12)]
    again, processes = await first.elsewhere(MINUTE, {first.id, second.id})
    assert (again.rules, processes) == ({}, set())
    one.now_us += 80 * SECOND_US
    assert not (await first.elsewhere(MINUTE, ()))[1]
    assert shown((await first.elsewhere(HOUR, ()))[0]) == [("ann", 20), ("bob", 12)]


async def test_records_are_bounded_and_foreign_ones_left_out(tmp_path: Path) -> None:
    """A record has 16 kB at most, however many callers there are; what is none is not heard."""
    shared = RecordsInMemory()
    asking = Asking(tmp_path, RULES)
    history = history_of(asking, shared)
    for number in range(3 * MOST_CALLERS):
        await asking.ask(f"user={number:040}", hits=11)
    await history.leave()
    (records,) = [each for name, each in shared.records.items() if "minute" in name]
    assert 0 < len(records[history.id]) <= 1 << 14
    for number, record in enumerate((b"", b"7", b"[7]", b"[[1,2,3]]", b'[["a","b",{},{}]]')):
        records[f"stranger-{number}"] = record

    _, processes = await history.elsewhere(MINUTE, ())

    assert processes == {history.id}


additions = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 50)), max_size=40)


def stretch_of(added: list[tuple[str, int]], most: int) -> Stretch:
    stretch, rule = Stretch(), RuleStretch(most)
    for key, times in added:
        rule.sketches[CallerOrder.OVER].add(key, times)
        rule.standing[key] = Standing("1 per day", 1, 0, [("user", key)])
    stretch.rules[RULE] = rule
    return stretch


@given(additions, additions, st.integers(1, 6), st.integers(1, 6))
def test_no_number_is_off_by_more_than_is_said(
    one: list[tuple[str, int]], other: list[tuple[str, int]], most: int, told: int
) -> None:
    """Two workers, each told in part, put together: every number is right to its error."""
    truth: Counter[str] = Counter()
    for key, times in one + other:
        truth[key] += times
    found = Stretch()
    for added in (one, other):
        for part in stretch_of(added, most).told(most=told):
            found.hear(json.loads(json.dumps(part)))

    sketch = found.rules[RULE].sketches[CallerOrder.OVER]
    assert sketch.total == truth.total()
    for key, times in truth.items():
        assert sketch.counts.get(key, 0) <= times <= sketch.counts.get(key, 0) + sketch.error
