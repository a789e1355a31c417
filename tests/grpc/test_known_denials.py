"""Who is known to be over is denied also without any time: a refusal would let them through."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.model import Code, Request
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import DecidedBy
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.wire import decode_decision
from tests.grpc.served_ends import RULES, Ends
from tests.grpc.test_overload import Over
from tests.service.asking import Asking, Heard, descriptor

LATE_US = 80_000_000
"""Of the hundred seconds for which callers wait: too late for a count, and for a policy."""
OVER = "user=z"


def frames_of(ends: Ends, number: int, descriptors: str = OVER, timeout: str = "100S") -> bytes:
    asked = Request("edge", tuple(descriptor(each) for each in descriptors.split()))
    body = wire.encode_request(asked)
    calls = (
        ends.client.headers([("grpc-timeout", timeout)]) + ends.client.data(body)
        for _ in range(number)
    )
    return b"".join(calls)


def overloaded(tmp_path: Path, rules: str = RULES) -> Ends:
    """A service that counts in memory, and had no time for some calls just now."""
    ends = Ends(Asking(tmp_path, rules))
    ends.settle()
    ends.receive(frames_of(ends, 2, "user=other"), waited_us=LATE_US)
    return ends


def late(ends: Ends, number: int, descriptors: str = OVER) -> tuple[int, int]:
    """How many of so many late calls are answered, and how many refused."""
    said = ends.receive(frames_of(ends, number, descriptors), waited_us=LATE_US)
    return said.count(FrameType.DATA), said.count(FrameType.RST_STREAM)


async def test_all_late_calls_of_who_is_over_are_denied(tmp_path: Path) -> None:
    """Once a store has denied a request, late ones that say the same are denied as well."""
    ends = overloaded(tmp_path)
    assert late(ends, 100) == (0, 100)

    ends.receive(frames_of(ends, 3), waited_us=0)

    assert late(ends, 500) == (500, 0)
    ends.calls.look()
    assert ends.stats.decisions == {"ok": 2, "over_limit": 501}
    assert ends.stats.overloaded == {"refused": 102, "hurried": 500}
    assert ends.tally("user").take()[:2] == [503, 501]


async def test_others_are_refused_as_before(tmp_path: Path) -> None:
    """Among late calls only those are answered that are known to be over."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 3), waited_us=0)

    data = b"".join(frames_of(ends, 1) + frames_of(ends, 2, "user=b") for _ in range(20))
    said = ends.receive(data, waited_us=LATE_US)

    assert (said.count(FrameType.DATA), said.count(FrameType.RST_STREAM)) == (20, 40)
    assert ends.protocol.connection.open_streams == 0


async def test_it_is_the_stores_answer(tmp_path: Path) -> None:
    """It says OVER_LIMIT, with limit and reset, as the answer that was counted."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 3), waited_us=0)
    (ready,) = ends.service.at_hand._answers.values()

    decision = decode_decision(ready.message)

    assert decision.code is Code.OVER_LIMIT
    assert decision.statuses[0].remaining == 0


NOT_KNOWN = {
    "soon over": "{unit: second, requests_per_unit: 60, algorithm: token_bucket, burst: 2}",
    "given back at any time": "{unit: minute, requests_per_unit: 2, algorithm: concurrency}",
    "counted": "{unit: minute, requests_per_unit: 2, count_denied: true}",
}


@pytest.mark.parametrize("limit", NOT_KNOWN.values(), ids=NOT_KNOWN.keys())
async def test_denials_that_may_not_hold_are_not_at_hand(tmp_path: Path, limit: str) -> None:
    """Nor are those that a counter must hear of."""
    rules = f"domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"
    ends = overloaded(tmp_path, rules)
    ends.receive(frames_of(ends, 4), waited_us=0)

    assert late(ends, 20) == (0, 20)


async def test_a_denial_is_at_hand_for_a_moment_only(tmp_path: Path) -> None:
    """Then the store is asked again: hits may have been given back, or rules have changed."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 3), waited_us=0)
    ends.service.at_hand._since_us -= 50_000

    assert late(ends, 20) == (0, 20)


async def test_looking_has_a_bound(tmp_path: Path) -> None:
    """For each call that is counted two are looked at, so that an overload leaves time to count."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 3), waited_us=0)
    ends.overload.glances = 100

    assert late(ends, 300) == (100, 200)
    ends.overload.counted(30)
    assert late(ends, 300) == (60, 240)


async def test_without_a_window_they_are_refused(tmp_path: Path) -> None:
    """An answer that the client's windows hold back is none: the call is refused in its place."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 3), waited_us=0)
    ends.protocol.connection._send_window = 100

    answered, refused = late(ends, 40)

    assert 0 < answered < 10
    assert answered + refused == 40
    assert ends.protocol.connection.open_streams == 0


async def test_with_redis_the_local_cache_is_asked(tmp_path: Path) -> None:
    """What a store that waits has denied is known in the same way."""
    ends = Ends(Asking(tmp_path, RULES, store=LocalCache(Over(), 1 << 20, Stats())))
    ends.settle()
    ends.receive(frames_of(ends, 2, "user=other"), waited_us=LATE_US)
    ends.receive(frames_of(ends, 1), waited_us=0)

    assert late(ends, 500) == (500, 0)


async def test_listeners_hear_of_them(tmp_path: Path) -> None:
    """Who listens hears of denials by the local cache, and of those who were refused."""
    ends = overloaded(tmp_path)
    ends.calls.look()
    heard = Heard(ends.service)
    ends.receive(frames_of(ends, 1, "user=other"), waited_us=LATE_US)
    ends.receive(frames_of(ends, 3), waited_us=0)
    del heard[:]

    assert late(ends, 10) == (10, 0)
    assert late(ends, 1, "user=b") == (0, 1)
    ends.calls.look()

    told = {(record.by, record.body[-1:]): record.times for record in heard}
    assert told[DecidedBy.LOCAL_CACHE, b"z"] == 10
    assert told[DecidedBy.NOTHING, b"b"] == 1
