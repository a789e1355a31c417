"""What is read late: which calls are refused, which are counted, and who is read from when."""

from __future__ import annotations

from pathlib import Path

from ratelimit_service import wire
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ErrorCode, FrameType
from ratelimit_service.model import Request
from tests.grpc.counted_work import work_of
from tests.grpc.ends import come, take_turn
from tests.grpc.served_ends import RULES, Beside, Ends
from tests.service.asking import Asking, Busy, Timed, descriptor


async def test_refusing_costs_little(tmp_path: Path) -> None:
    """A thousand late calls of one read are refused at once: nothing is handed on or kept."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()
    first = ends.client.stream_id + 2
    data = b"".join(ends.frames("100S") for _ in range(1_000))

    said: list[int] = []
    work = work_of(lambda: said.extend(ends.receive(data, waited_us=80_000_000, evenly=False)))

    assert said == [FrameType.RST_STREAM] * 1_000
    assert work < 20_000
    assert store.deadlines_us == []
    assert len(ends.served.connection.streams) == 0
    ends.calls.look()
    assert ends.stats.overloaded == {"refused": 1_000}
    late = b"".join(
        frames.rst_stream(stream_id, ErrorCode.CANCEL)
        for stream_id in range(first, first + 2_000, 2)
    )
    assert ends.receive(late) == []
    assert ends.call()


async def test_time_in_the_store_counts(tmp_path: Path) -> None:
    """While an older call waits long for the store, one that has waited for us is not counted."""
    store = Busy()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.client.encoder.header_table_size = 0
    ends.receive(ends.frames("100S"))
    usual = ends.pending[0]
    (oldest,) = usual

    usual[oldest] -= 60_000_000
    assert FrameType.RST_STREAM in ends.receive(ends.frames("100S"), waited_us=10_000_000)
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("100S"))
    store.go_on()
    ends.calls._waits_us.clear()  # as after 200 us: compiled, all of this takes less
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("100S"), waited_us=10_000_000)


async def test_who_has_many_calls_under_way_comes_after_others(tmp_path: Path) -> None:
    """The more undecided calls a connection has, the later its next ones go to the store.

    However they come, a few at a time or all at once. That they wait delays nobody else's calls.
    """
    store = Busy()
    several = [Ends(Asking(tmp_path, RULES, store=store)) for _ in range(3)]
    for ends in several:
        ends.calls = ends.served._calls = several[0].calls
        ends.client.encoder.header_table_size = 0
    at_once, a_few, other = several

    at_once.receive(b"".join(at_once.frames("100S") for _ in range(900)))
    for _ in range(60):
        a_few.receive(b"".join(a_few.frames("100S") for _ in range(15)))
    counts = [len(requests) for requests, *_ in store.waiting]
    for batches in at_once.pending[1:]:
        for each in batches:
            batches[each] -= 90_000_000
    said = other.receive(other.frames("100S"), waited_us=10_000_000)

    assert FrameType.RST_STREAM not in said
    assert store.priorities[-1] == 0
    before = zip(counts, store.priorities, strict=False)
    assert sum(count for count, priority in before if priority < 3) < 2 * 64
    assert store.priorities[-61:-1] == sorted(store.priorities[-61:-1])
    store.go_on()
    assert {ends.served.undecided for ends in several} == {0}


async def test_other_calls_are_not_refused_along(tmp_path: Path) -> None:
    """Between late calls a check of health is answered, and so is a caller with more patience."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    some = b"".join(ends.frames("100S") for _ in range(100))
    check = ends.client.headers(path="/grpc.health.v1.Health/Check") + ends.client.data(b"")
    patient = ends.frames("10000S")
    more = b"".join(ends.frames("100S") for _ in range(100))

    kinds = ends.receive(some + check + patient + more, 80_000_000, evenly=False)

    assert kinds.count(FrameType.RST_STREAM) == 200
    assert kinds.count(FrameType.DATA) == 2


async def test_callers_that_give_up_are_no_flood(tmp_path: Path) -> None:
    """Who cancels what we have not answered in time is not told to calm down."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.settle()

    for _ in range(3_000):
        assert not ends.call(waited_us=80_000_000)
        reset = frames.rst_stream(ends.client.stream_id, ErrorCode.CANCEL)
        assert ends.receive(reset) == []

    assert ends.call()
    assert not ends.wire.closed


async def test_what_comes_behind_late_calls_is_counted(tmp_path: Path) -> None:
    """Of calls that came evenly those are refused that have waited too long."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()

    calls, before_us = b"".join(ends.frames("100S") for _ in range(100)), elapsed_us()
    kinds = ends.receive(calls, waited_us=90_000_000)
    passed_us = elapsed_us() - before_us

    counted = kinds.count(FrameType.DATA)
    assert (65_000_000 - passed_us) // 900_000 <= counted <= 73  # those of the last 65 seconds
    assert kinds.count(FrameType.RST_STREAM) == 100 - counted
    (deadline_us,) = store.deadlines_us
    assert deadline_us - before_us > 14_000_000  # that of the oldest one that is counted


async def test_the_rest_of_a_large_read_is_no_older_than_it_is(tmp_path: Path) -> None:
    """A socket that is never empty has bytes of the last moments: ages do not grow for ever."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.settle()
    ends.wire.most, served = 10_000, ends.served
    call = len(ends.frames("100S"))
    some = 3 * ends.wire.most // call
    come(served, b"".join(ends.frames("100S") for _ in range(some)), waited_us=60_000_000)

    before_us = []
    for _ in range(3):
        before_us.append(elapsed_us() - served._since_us)
        take_turn(ends.scheduler)

    assert [round(each / 1e7) for each in before_us] == [6, 4, 2]


async def test_calls_of_many_connections_are_decided_together(tmp_path: Path) -> None:
    """What comes in one turn, on whichever connections, is one batch for the store."""
    store = Timed()
    first = Ends(Asking(tmp_path, RULES, store=store))
    several = [Beside(first) for _ in range(5)]
    for ends in several:
        ends.settle()
    store.deadlines_us.clear()

    for ends in several:
        come(ends.served, ends.frames("100S"))
    take_turn(first.scheduler)

    assert len(store.deadlines_us) == 1
    assert [ends.wire.kinds().count(FrameType.DATA) for ends in several] == [1] * 5


async def test_calls_without_deadline_are_all_counted(tmp_path: Path) -> None:
    """However long they wait, and beside calls that are late; but not all in one turn."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.settle()
    body = wire.encode_request(Request("edge", (descriptor("user=a"),)))
    ends.receive(ends.client.headers() + ends.client.data(body))
    ends.scheduler._call_us = 100
    calls = [ends.client.headers() + ends.client.data(body) for _ in range(300)]

    come(ends.served, b"".join(calls), waited_us=80_000_000)
    take_turn(ends.scheduler)

    first = ends.wire.kinds().count(FrameType.DATA)
    ends.turn()
    assert first <= 256
    assert first + ends.wire.kinds().count(FrameType.DATA) == 300
    assert not ends.stats.overloaded
