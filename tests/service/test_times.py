"""Rules that depend on the time: `when` of limits, and `valid_until` of descriptors."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from weakref import ref
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service import wire
from ratelimit_service.model import Code, Request, Schedule
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.texts import schedule_text
from ratelimit_service.rules.times import Times
from ratelimit_service.rules.tree import Domain, Level, Node, Snapshot, walk
from ratelimit_service.service import Service
from ratelimit_service.stores.memory import MemoryStore
from tests.rules.test_match import domain
from tests.service.asking import Asking, descriptor

BERLIN = ZoneInfo("Europe/Berlin")
RULES = """
domain: edge
descriptors:
  - key: office
    rate_limits:
      - {unit: day, requests_per_unit: 2,
         when: {days: [mon-fri], from: "08:00", to: "18:00", time_zone: Europe/Berlin}}
      - {unit: day, requests_per_unit: 1,
         when: {days: [mon-fri], from: "18:00", to: "08:00", time_zone: Europe/Berlin}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: user, value: alice, valid_until: 2026-03-02T10:00+01:00,
     rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: user, value: "al*", rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: user, one_of: [bob, eve], valid_until: 2026-03-02T09:00Z}
  - {key: other, valid_until: 2026-03-02T09:00Z, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: ip, cidr: 10.0.0.0/8, rate_limit: {unlimited: true}}
  - {key: ip, cidr: 10.1.0.0/16, valid_until: 2026-03-02T09:00Z,
     rate_limit: {unit: year, requests_per_unit: 0}}
"""


def us(text: str, zone: datetime.tzinfo = BERLIN) -> int:
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=zone)
    return round(moment.timestamp() * 1_000_000)


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path, RULES)


async def asked(asking: Asking, moment: str, *texts: str, short_us: int = 0) -> list[Code]:
    asking.now_us = us(moment) - short_us
    return [(await asking.ask(one)).code for one in texts]


OK, OVER = Code.OK, Code.OVER_LIMIT


async def test_to_the_minute(asking: Asking) -> None:
    """Each limit holds in its times alone, from the first microsecond of a minute on."""
    office = ["office=x"] * 3

    assert await asked(asking, "2026-03-03T08:00", *office, short_us=1) == [OK, OVER, OVER]
    assert await asked(asking, "2026-03-03T08:00", *office) == [OK, OK, OVER]
    assert await asked(asking, "2026-03-03T18:00", *office, short_us=1) == [OVER] * 3
    assert await asked(asking, "2026-03-03T18:00", "office=x", "office=y") == [OVER, OK]
    assert await asked(asking, "2026-03-03T17:59:59", "office=x", "office=y") == [OVER, OK]


async def test_outside_its_times(asking: Asking) -> None:
    """Where none of a rule's limits holds, its descriptors pass and are tallied."""
    assert await asked(asking, "2026-03-07T12:00", *["office=x"] * 4) == [OK] * 4
    assert asking.tally("office").within == 4
    # Saturday morning is still Friday's night.
    assert await asked(asking, "2026-03-07T07:59", *["office=x"] * 2) == [OK, OVER]
    assert await asked(asking, "2026-03-09T07:59", *["office=x"] * 2) == [OK, OK]


async def test_replaces_in_its_times_alone(tmp_path: Path) -> None:
    """Outside its times a limit does not take another's place, or nothing would hold."""
    asking = Asking(
        tmp_path,
        """
domain: edge
descriptors:
  - {key: ip, rate_limit: {name: per-ip, unit: year, requests_per_unit: 0}}
  - key: partner
    rate_limit: {unit: year, requests_per_unit: 9, when: {days: mon}, replaces: [{name: per-ip}]}
""",
    )

    for moment, code in (("2026-03-02T12:00", OK), ("2026-03-03T12:00", OVER)):
        asking.now_us = us(moment)
        assert (await asking.ask("ip=x", "partner=a")).code is code


async def test_rules_that_end(asking: Asking) -> None:
    """From its minute on a descriptor is as if it were not there: the next one takes its values."""
    users = ["user=alice"] * 3 + ["user=bob"] * 3 + ["other=x", "ip=10.1.2.3", "ip=10.2.2.3"]

    before = await asked(asking, "2026-03-02T10:00", *users, short_us=1)
    assert before == [OK] * 6 + [OVER, OVER, OK]
    after = await asked(asking, "2026-03-02T10:00", *users, "user=alan")
    # The counter of alice is the same under the pattern; bob meets the key alone.
    assert after == [OVER] * 3 + [OK, OK, OVER] + [OK, OK, OK] + [OK]


async def test_clocks_that_step(asking: Asking) -> None:
    """What is remembered never outlives its minute, whichever way the clock goes."""
    for _ in range(3):
        assert (await asked(asking, "2026-03-02T09:59", "other=x"))[0] is OVER
        assert (await asked(asking, "2026-03-02T10:00", "other=x"))[0] is OK


class Word(str):
    """A text that tells whether it is still held."""


async def test_rules_that_are_let_go(asking: Asking) -> None:
    """Of rules that hold no more nothing is kept for their times, also if no request comes."""
    node = Node(Word("k"), "", None, None, None, valid_until=1)
    times = Times()
    times.add(node.valid_until, node.rule.limits if node.rule else ())
    held = [Snapshot(1, {"edge": Domain("edge", Level.of([node]), times=times)})]
    living = ref(node.key)
    stats = asking.stats
    store = MemoryStore(10, stats, asking.health)
    service = Service(lambda: held[0], store, asking.settings, stats)
    await service.decide([wire.encode_request(Request("edge", (descriptor("k=x"),)))])
    del node, times

    held[0] = Snapshot(2, {})

    assert living() is None


def test_told() -> None:
    """Explain says what holds now, /rlconfig what holds when; also in a worker."""
    carried, their_times = Assembly(Tallies), Times()
    bare = domain(RULES)
    for node in walk(bare.root.nodes):
        their_times.add(node.valid_until, node.rule.limits if node.rule else ())
    for part in packed([replace(bare, times=their_times)]):
        carried.add(part)
    snapshot = at_moment(Snapshot(1, carried.domains), us("2026-03-02T12:00"))
    told = str(explain(snapshot, "edge", descriptor("user=bob")))
    assert "user=bob: the key alone matches: user at" in told
    assert "at f:14:5: it ended at 2026-03-02T09:00Z" in told
    told = str(explain(snapshot, "edge", descriptor("office=x")))
    times = "{days: [mon, tue, wed, thu, fri], from: 08:00, to: 18:00, time_zone: Europe/Berlin}"
    assert f"2 per day, only when {times} (as now); 1 per day" in told
    assert "to: 08:00, time_zone: Europe/Berlin} (not now)" in told
    lines = list(dump(snapshot))
    assert f"when: {times}, and unit=DAY requests_per_unit=1" in lines[0]
    assert "valid_until: user=alice 2026-03-02T09:00Z" in lines[2]


@pytest.mark.parametrize(
    ("moment", "holds"),
    [
        ("2026-03-29T00:30+00:00", True),  # 01:30
        ("2026-03-29T01:00+00:00", False),  # 03:00: half past two is skipped
        ("2026-10-25T00:30+00:00", True),  # 02:30 in summer time
        ("2026-10-25T01:30+00:00", True),  # 02:30 again
        ("2026-10-25T02:00+00:00", False),
    ],
)
def test_clocks_that_change(moment: str, holds: bool) -> None:
    """A zone's own clocks count: an hour that comes twice counts twice."""
    minute = round(datetime.datetime.fromisoformat(moment).timestamp()) // 60

    assert Schedule(begin=60, end=180, time_zone="Europe/Berlin").holds(minute) == holds


SCHEDULES = st.builds(
    Schedule,
    st.integers(1, 127),
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]),
)


@given(SCHEDULES, st.integers(29_500_000, 30_500_000))
def test_schedules(schedule: Schedule, minute: int) -> None:
    """Walked back minute by minute of its clock, a time in a schedule comes to its beginning."""
    local = datetime.datetime.fromtimestamp(minute * 60, ZoneInfo(schedule.time_zone))
    span = (schedule.end - schedule.begin) % 1_440 or 1_440
    at = local.hour * 60 + local.minute
    since = (at - schedule.begin) % 1_440
    day = (local.weekday() - (at < schedule.begin)) % 7

    assert schedule.holds(minute) == (since < span and bool(schedule.days >> day & 1))
    assert "time_zone" in schedule_text(schedule)
