"""What is read late: which calls are refused, which are counted, and who is read from when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ratelimit_service import wire
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.turns import Turns
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ErrorCode, FrameType
from ratelimit_service.grpc.h2.overload import Backlog
from ratelimit_service.model import Request
from tests.grpc.counted_work import work_of
from tests.grpc.served_ends import ENVOYS_US, RULES, Ends, rounds
from tests.grpc.taken_turns import take_turn
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
    work = work_of(lambda: said.extend(ends.receive(data, waited_us=80_000_000)))

    assert said == [FrameType.RST_STREAM] * 1_000
    assert work < 20_000
    assert store.deadlines_us == []
    assert len(ends.protocol.connection.streams) == 0
    ends.calls.look()
    assert ends.stats.overloaded == {"refused": 1_000}
    late = b"".join(
        frames.rst_stream(stream_id, ErrorCode.CANCEL)
        for stream_id in range(first, first + 2_000, 2)
    )
    assert ends.receive(late) == []
    assert ends.call()


async def test_what_comes_behind_late_calls_is_counted(tmp_path: Path) -> None:
    """Of what was read at different times only that is refused which has waited too long.

    The later the oldest is, the less of the newest is counted.
    """
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()
    now_us, inbox = elapsed_us(), ends.protocol._inbox.chunks
    for place, waited_us in enumerate((80_000_000, 70_000_000, 15_000_000, 5_000_000, 0)):
        ends.protocol.data_received(b"".join(ends.frames("100S") for _ in range(10)))
        inbox[place] = (now_us - waited_us, inbox[place][1])

    while ends.protocol.handle_piece(now_us):
        pass
    ends.turns._finish_turn([ends.protocol], elapsed_us())

    kinds = ends.wire.kinds()
    assert kinds.count(FrameType.RST_STREAM) == 30
    assert kinds.count(FrameType.DATA) == 20
    assert store.deadlines_us


def test_the_later_one_is_the_less_is_counted() -> None:
    """Behind a late call the newest are counted, in inverse proportion to its lateness."""
    backlog = Backlog()
    newest_us = []
    for waited_us in (4_000, 8_000, 16_000, 200_000):
        backlog.is_late(0, waited_us, ENVOYS_US)
        newest_us.append(1_000_000 - backlog.caught_up_us(1_000_000))

    assert newest_us == [4_000, 2_000, 1_000, 1_000]


async def test_calls_of_many_connections_are_decided_together(tmp_path: Path) -> None:
    """What comes in one turn, on whichever connections, is one batch for the store."""
    store = Timed()
    asking = Asking(tmp_path, RULES, store=store)
    several = [Ends(asking) for _ in range(5)]
    for ends in several:
        ends.calls, ends.turns = several[0].calls, several[0].turns
        ends.protocol._calls, ends.protocol._turns = ends.calls, ends.turns
        ends.settle()
    store.deadlines_us.clear()

    now_us = elapsed_us()
    for ends in several:
        ends.wire.kinds()
        ends.protocol.data_received(ends.frames("100S"))
        ends.protocol.handle_piece(now_us)
    several[0].turns._finish_turn([ends.protocol for ends in several], elapsed_us())

    assert len(store.deadlines_us) == 1
    assert [ends.wire.kinds().count(FrameType.DATA) for ends in several] == [1] * 5


async def test_time_in_the_store_counts(tmp_path: Path) -> None:
    """While an older call waits long for the store, one that has waited for us is not counted."""
    store = Busy()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.client.encoder.header_table_size = 0
    ends.receive(ends.frames("100S"))
    usual = ends.calls._pending.since_us[0]
    (oldest,) = usual

    usual[oldest] -= 45_000_000
    assert FrameType.RST_STREAM in ends.receive(ends.frames("100S"), waited_us=10_000_000)
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("100S"))
    store.go_on()
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("100S"), waited_us=10_000_000)


async def test_who_has_many_calls_under_way_comes_after_others(tmp_path: Path) -> None:
    """The more undecided calls a connection has, the later its next ones go to the store.

    However they come, a few at a time or all at once. That they wait delays nobody else's calls.
    """
    store = Busy()
    several = [Ends(Asking(tmp_path, RULES, store=store)) for _ in range(3)]
    for ends in several:
        ends.calls = ends.protocol._calls = several[0].calls
        ends.client.encoder.header_table_size = 0
    at_once, a_few, other = several

    at_once.receive(b"".join(at_once.frames("100S") for _ in range(900)))
    for _ in range(60):
        a_few.receive(b"".join(a_few.frames("100S") for _ in range(15)))
    counts = [len(requests) for requests, *_ in store.waiting]
    for batches in at_once.calls._pending.since_us[1:]:
        for each in batches:
            batches[each] -= 90_000_000
    said = other.receive(other.frames("100S"), waited_us=10_000_000)

    assert FrameType.RST_STREAM not in said
    assert store.ranks[-1] == 0
    before = zip(counts, store.ranks, strict=False)
    assert sum(count for count, rank in before if rank < 3) < 2 * 64
    assert store.ranks[-61:-1] == sorted(store.ranks[-61:-1])
    store.go_on()
    assert {ends.protocol.undecided for ends in several} == {0}


async def test_bytes_may_have_come_while_the_loop_was_busy() -> None:
    """What is read between two turns is taken to have come in the middle of a round of the loop."""
    turns = Turns()
    assert turns.came_us(5_000) == 5_000

    turns.scheduled, turns._before_us, turns._ended_us = True, 10_000, 17_000
    assert turns.came_us(18_000) == 14_000


def nothing() -> None:
    """A step that does nothing."""


async def test_what_ends_a_rest_has_come_just_now() -> None:
    """The time before the first of some turns is no time that bytes have waited."""
    turns = Turns()
    for _ in range(2):
        turns.alone(nothing, 1)
        await rounds()
    turns.alone(nothing, 1)
    after_ten_seconds = elapsed_us() + 10_000_000

    assert turns.came_us(after_ten_seconds) == after_ten_seconds

    await rounds()
    turns._ended_us -= 10_000_000
    began_us = elapsed_us()
    for _ in range(2):
        turns.alone(nothing, 1)
    take_turn(turns)
    assert turns.came_us(elapsed_us()) >= began_us


async def test_other_calls_are_not_refused_along(tmp_path: Path) -> None:
    """Between late calls a check of health is answered, and so is a caller with more patience."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    some = b"".join(ends.frames("100S") for _ in range(100))
    check = ends.client.headers(path="/grpc.health.v1.Health/Check") + ends.client.data(b"")
    patient = ends.frames("10000S")
    more = b"".join(ends.frames("100S") for _ in range(100))

    kinds = ends.receive(some + check + patient + more, waited_us=80_000_000)

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


async def test_time_before_a_client_is_read_from_counts(tmp_path: Path) -> None:
    """What comes after a pause in reading may have come when the pause began."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.call()
    ends.protocol.pauses.pause()
    ends.protocol.pauses.since_us -= 80_000_000
    ends.protocol.pauses.resume()

    ends.protocol.data_received(b"")
    ends.protocol.data_received(b"")

    assert all(elapsed_us() - came_us >= 80_000_000 for came_us, _ in ends.protocol._inbox.chunks)


async def test_time_before_several_pauses_counts(tmp_path: Path) -> None:
    """If reading pauses again before all was read, the rest may have come in the first pause."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.call()
    for waited_us in (80_000_000, 0):
        ends.protocol.pauses.pause()
        ends.protocol.pauses.since_us -= waited_us
        ends.protocol.pauses.resume()
        await asyncio.sleep(0)
    ends.protocol.pauses.pause()
    ends.protocol.pauses.resume()

    ends.protocol.data_received(b"")

    assert elapsed_us() - ends.protocol._inbox.chunks[0][0] >= 80_000_000
    await rounds()
    assert not ends.protocol.pauses.since_us


async def test_a_call_after_a_pause_and_a_silence_is_fresh(tmp_path: Path) -> None:
    """What comes once a socket that was not read has been emptied has waited for nothing."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    assert ends.call()
    ends.protocol.pause_writing()
    ends.protocol.pauses.since_us -= 1_000_000_000
    ends.protocol.resume_writing()
    assert ends.wire.reading
    await rounds()

    request = Request("edge", (descriptor("user=a"),))
    data = ends.client.headers([("grpc-timeout", "100S")])
    ends.wire.kinds()
    ends.protocol.data_received(data + ends.client.data(wire.encode_request(request)))
    take_turn(ends.turns)

    assert FrameType.DATA in ends.wire.kinds()
    assert not ends.stats.overloaded


async def test_calls_without_deadline_behind_a_late_one_take_turns(tmp_path: Path) -> None:
    """A client that is late has no more calls counted in one piece than a turn is long."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.settle()
    ends.call(waited_us=80_000_000)
    body = wire.encode_request(Request("edge", (descriptor("user=a"),)))
    calls = [ends.frames("100S")]
    calls += [ends.client.headers() + ends.client.data(body) for _ in range(1_000)]
    ends.wire.kinds()

    ends.protocol.data_received(b"".join(calls))
    chunks = ends.protocol._inbox.chunks
    chunks[0] = (elapsed_us() - 80_000_000, chunks[0][1])
    ends.protocol.handle_piece(elapsed_us())
    ends.protocol.end_turn()

    first = ends.wire.kinds().count(FrameType.DATA)
    ends.turn()
    assert first <= 256
    assert first + ends.wire.kinds().count(FrameType.DATA) == 1_000
