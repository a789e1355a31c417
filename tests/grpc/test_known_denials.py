"""Who is known to be over is denied also without any time: a refusal would let them through."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.model import Request
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import DecidedBy
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.stores.local_cache import LocalCache
from tests.grpc.served_ends import RULES, Ends
from tests.grpc.test_overload import Over
from tests.service.asking import Asking, Heard, descriptor

LATE_US = 80_000_000
"""Of the hundred seconds for which callers wait: too late for a count, and for a policy."""
OVER = "user=z"


def frames_of(ends: Ends, number: int, descriptors: str = OVER) -> bytes:
    asked = Request("edge", tuple(descriptor(each) for each in descriptors.split()))
    body = wire.encode_request(asked)
    calls = (
        ends.client.headers([("grpc-timeout", "100S")]) + ends.client.data(body)
        for _ in range(number)
    )
    return b"".join(calls)


def overloaded(tmp_path: Path, rules: str = RULES) -> Ends:
    """A service that counts in memory, and had no time for some calls just now."""
    ends = Ends(Asking(tmp_path, rules))
    ends.settle()
    ends.overload.looks()
    ends.overload._looks = 1_000  # as after as many denials
    ends.receive(frames_of(ends, 2, "user=other"), waited_us=LATE_US, evenly=False)
    return ends


def late(ends: Ends, number: int, descriptors: str = OVER) -> tuple[int, int]:
    """How many of so many late calls are answered, and how many refused."""
    said = ends.receive(frames_of(ends, number, descriptors), waited_us=LATE_US, evenly=False)
    return said.count(FrameType.DATA), said.count(FrameType.RST_STREAM)


async def test_all_late_calls_of_who_is_over_are_denied(tmp_path: Path) -> None:
    """A caller who is over is denied whether or not there is time to count."""
    ends = overloaded(tmp_path)
    assert late(ends, 100) == (0, 100)

    ends.receive(frames_of(ends, 6))

    assert late(ends, 500) == (500, 0)
    assert ends.stats.decisions == {"ok": 2, "over_limit": 504}
    assert ends.stats.overloaded == {"refused": 102, "denied": 500}
    assert ends.tally("user").take()[:2] == [506, 504]


async def test_others_are_refused(tmp_path: Path) -> None:
    """Among late calls only those are answered whose callers are known to be over."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 6) + frames_of(ends, 2, "user=b"))

    data = b"".join(frames_of(ends, 1) + frames_of(ends, 2, "user=c") for _ in range(20))
    said = ends.receive(data, waited_us=LATE_US, evenly=False)

    assert (said.count(FrameType.DATA), said.count(FrameType.RST_STREAM)) == (20, 40)
    assert len(ends.served.connection.streams) == 0


async def test_it_is_the_answer_that_counting_would_give(tmp_path: Path) -> None:
    """It says the same byte by byte, and nothing is counted by either."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 6))
    body = wire.encode_request(Request("edge", (descriptor(OVER),)))

    (counted,) = await ends.service.decide([body])

    assert ends.service.deny_known([body]) == [counted]


NOT_KNOWN = {
    "counted": "{unit: minute, requests_per_unit: 2, count_denied: true}",
}


@pytest.mark.parametrize("limit", NOT_KNOWN.values(), ids=NOT_KNOWN.keys())
async def test_who_must_be_counted_is_refused(tmp_path: Path, limit: str) -> None:
    """A denied call that a counter must hear of is not denied without counting."""
    rules = f"domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"
    ends = overloaded(tmp_path, rules)
    ends.receive(frames_of(ends, 6))

    assert late(ends, 20) == (0, 20)


async def test_who_got_hits_back_is_not_denied(tmp_path: Path) -> None:
    """A refund holds at once, also where there is no time."""
    ends = overloaded(tmp_path)
    ends.receive(frames_of(ends, 6))
    refund = Request("edge", (descriptor(OVER, addend=1, refund=True),))
    await ends.service.decide([wire.encode_request(refund)])

    assert late(ends, 20) == (0, 20)


async def test_looking_has_a_bound(tmp_path: Path) -> None:
    """For each denial four late calls are looked at: where nobody is over, nobody is."""
    ends = Ends(Asking(tmp_path, RULES))
    for _ in range(30):  # enough for two hundred looks, and a little for each that is found
        ends.receive(frames_of(ends, 1))
    assert ends.overload.looks() == 4 * 28
    ends.overload.looked(4 * 28)

    assert ends.overload.looks() == 0
    ends.receive(frames_of(ends, 1))
    assert ends.overload.looks() == 4


async def test_with_redis_the_local_cache_is_asked(tmp_path: Path) -> None:
    """What a store that waits has denied is known for as long as the local cache knows it."""
    ends = Ends(Asking(tmp_path, RULES, store=LocalCache(Over(), 1 << 20, Stats())))
    ends.settle()
    ends.overload.looks()
    ends.receive(frames_of(ends, 2, "user=other"), waited_us=LATE_US, evenly=False)
    ends.receive(frames_of(ends, 2))
    ends.receive(frames_of(ends, 2))

    assert late(ends, 8) == (8, 0)


async def test_listeners_hear_of_them(tmp_path: Path) -> None:
    """Who listens hears of each denial as of any other, and of those who were refused."""
    ends = overloaded(tmp_path)
    heard = Heard(ends.service)
    ends.receive(frames_of(ends, 6))
    del heard[:]

    assert late(ends, 10) == (10, 0)
    assert late(ends, 1, "user=b") == (0, 1)

    assert [(record.by, record.body[-1:]) for record in heard] == [
        *[(DecidedBy.COUNT, b"z")] * 10,
        (DecidedBy.NOTHING, b"b"),
    ]


async def test_who_is_denied_goes_into_the_queue(tmp_path: Path) -> None:
    """A rule's queue takes what it denies, also where there is no time."""
    rules = RULES.replace("requests_per_unit: 2}", "requests_per_unit: 2}, on_limit: enqueue")
    ends = overloaded(tmp_path, rules)
    ends.service.enqueueing = enqueueing = Enqueueing(None, ends.stats)
    ends.receive(frames_of(ends, 6))

    assert late(ends, 10) == (10, 0)
    assert ends.stats.queued == {"dropped_no_redis": 14}
    await enqueueing.finish()
