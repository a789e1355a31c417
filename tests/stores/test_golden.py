"""What lies in Redis, and what is sent to it, byte by byte.

Other versions read it while they run beside this one, and counters outlive a release. So a change
of these bytes is a decision: whoever takes it writes `golden.json` anew and says so to users.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import (
    MAX_ADDEND,
    Anchor,
    Calendar,
    Hit,
    Limit,
    Mode,
    Receipt,
    Unit,
)
from ratelimit_service.stores.keys import CounterNames
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.script import ScriptCall, weight
from tests.stores.cases import MINUTE, T

GOLDEN = Path(__file__).with_name("golden.json")
ENTRIES = [("user", "ann"), ("path", "/login")]

WAYS = {
    "fixed_window": Limit(5, Unit.MINUTE),
    "fixed_window of 90 s": Limit(5, Unit.SECOND, 90),
    "fixed_window with soft": Limit(10, Unit.HOUR, soft_ppm=100_000),
    "fixed_window that counts what is denied": Limit(5, Unit.HOUR, count_denied=True),
    "fixed_window from the first hit": Limit(5, Unit.MINUTE, anchor=Anchor.FIRST_HIT),
    "a day of Berlin": Limit(5, Unit.DAY, anchor=Calendar(Unit.DAY, "Europe/Berlin")),
    "a week from Sunday": Limit(5, Unit.WEEK, anchor=Calendar(Unit.WEEK, week_start=6)),
    "a month": Limit(5, Unit.MONTH, anchor=Calendar(Unit.MONTH)),
    "sliding_window": Limit(7, Unit.MINUTE, algorithm="sliding_window"),
    "sliding_window of a year": Limit(MAX_ADDEND, Unit.YEAR, algorithm="sliding_window"),
    "sliding_window with 6 buckets": Limit(7, Unit.MINUTE, algorithm="sliding_window", buckets=6),
    "sliding_window with 360 buckets": Limit(7, Unit.HOUR, algorithm="sliding_window", buckets=360),
    "sliding_log": Limit(3, Unit.MINUTE, algorithm="sliding_log"),
    "sliding_log of many": Limit(10_000, Unit.HOUR, algorithm="sliding_log"),
    "token_bucket": Limit(6, Unit.MINUTE, algorithm="token_bucket"),
    "token_bucket with burst and soft": Limit(
        60, Unit.SECOND, algorithm="token_bucket", burst=500, soft_ppm=100_000
    ),
    "token_bucket, stepped": Limit(2, Unit.MINUTE, algorithm="token_bucket", stepped=True),
    "leaky_bucket": Limit(6, Unit.MINUTE, algorithm="leaky_bucket", burst=3),
    "leaky_bucket, a queue": Limit(
        6, Unit.MINUTE, algorithm="leaky_bucket", max_wait_us=30_000_000
    ),
    "concurrency": Limit(3, Unit.MINUTE, algorithm="concurrency"),
    "concurrency of many": Limit(10_000, Unit.HOUR, algorithm="concurrency"),
}
FORMS: dict[str, dict[str, object]] = {
    "one hit": {},
    "three hits": {"addend": 3},
    "a peek": {"addend": 0},
    "shadow": {"mode": Mode.SHADOW},
    "quota, counted if denied": {"mode": Mode.QUOTA, "count_denied": True},
    "a refund": {"refund": True, "addend": 2},
    "a lease": {"lease": b"lease--1"},
    "a lease back": {"lease": b"lease--1", "refund": True},
    "undone": {"refund": True, "receipt": Receipt(T, T + MINUTE)},
    "joined": {"joined": True},
}


class Golden(NamedTuple):
    """Of one way to count; what is packed by the kind of hit, bytes in hexadecimal."""

    key: str
    state: int | str
    """After two hits on a new counter."""
    weight: int
    packed: dict[str, str]


def found(limit: Limit) -> Golden:
    spec = spec_of(limit)
    key = CounterNames("edge", spec).key(ENTRIES)
    step = ALGORITHMS[limit.algorithm].charge(None, T, 2, spec, False, b"lease--1")
    assert step.state is not None
    packed = {}
    for name, fields in FORMS.items():
        hit = Hit(key, spec)._replace(**fields)  # type: ignore[arg-type]
        call = ScriptCall(0, T)
        call.add(Background([[hit]]), [0])
        *_, last = call.arguments()
        assert isinstance(last, bytes)
        packed[name] = last.hex()
    state = step.state if isinstance(step.state, int) else step.state.hex()
    return Golden(key.decode(), state, weight([Hit(key, spec)]), packed)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_in_redis(way: str) -> None:
    """Keys, states, weights and packed arguments are those of every version before."""
    assert found(WAYS[way]) == Golden(*json.loads(GOLDEN.read_text())[way])


def test_every_key_is_another() -> None:
    """No two ways to count share a key, save those that differ in numbers of hits only."""
    keys = [found(limit).key for limit in WAYS.values()]

    assert len(set(keys)) == len(keys) - 2


@pytest.mark.parametrize("algorithm", ["sliding_log", "concurrency"])
def test_pools_weigh_what_may_lie_on_them(algorithm: str) -> None:
    """A limit that leaves a reserve weighs as the whole: its hits read what others have counted."""
    whole = Limit(10_000, Unit.HOUR, algorithm=algorithm, pool="p")
    low = whole._replace(requests_per_unit=100, reserved=9_900)

    one, other = (weight([Hit(b"k", spec_of(limit))]) for limit in (low, whole))

    assert one == other
