"""Who is read from in turns of its own, and what of that is counted; and rests between turns."""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.turns import Turns
from ratelimit_service.grpc.h2 import drawing
from ratelimit_service.grpc.h2.calls import METHODS
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.grpc.h2.overload import Allowance, Backlog
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.memory import MemoryStore
from tests.grpc.ends import held_back
from tests.grpc.served_ends import ENVOYS_US, RULES, Ends, rounds
from tests.grpc.taken_turns import take_turn
from tests.service.asking import Asking, Busy, Timed


async def test_late_clients_are_read_from_when_it_is_their_turn(tmp_path: Path) -> None:
    """The loop does not read from a client that is late while others wait, but its turns do.

    The loop reads again once eight reads in a row were in time, or twice nothing has come.
    """
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    other = Http2Protocol(ends.calls, METHODS, ends.turns, lambda _: None)
    there, here = socket.socketpair()
    with there, here:
        here.setblocking(False)
        ends.protocol.draw_from(here)
        other.data_received(b"PRI")
        now_us = elapsed_us()

        def late(now_us: int) -> None:
            ends.protocol.data_received(ends.frames("100S"))
            chunks = ends.protocol._inbox.chunks
            chunks[0] = (now_us - 80_000_000, chunks[0][1])
            assert ends.protocol.handle_piece(now_us)
            assert not ends.wire.reading

        late(now_us)
        there.send(ends.frames("100S") + ends.frames("100S"))
        assert not ends.protocol.handle_piece(now_us + 80_000_000)
        assert ends.stats.overloaded["refused"] == 3
        for number in range(1, 9):
            assert not ends.wire.reading
            there.send(ends.frames("100S"))
            assert not ends.protocol.handle_piece(now_us + 80_000_000 + number * 10_000_000)
        assert ends.wire.reading
        assert ends.stats.overloaded["refused"] == 3

        late(now_us + 200_000_000)
        assert not ends.protocol.handle_piece(now_us + 210_000_000)
        assert not ends.wire.reading
        assert not ends.protocol.handle_piece(now_us + 220_000_000)
        assert ends.wire.reading
    ends.turn()


class Rested:
    """Somebody who rests between turns."""

    used_us, dear, brought_calls, late, little_pieces = 0, False, True, False, 0

    def __init__(self) -> None:
        self.turns = 0
        self.had_turn = asyncio.Event()

    def handle_piece(self, _now_us: int, *, at_once: bool = False) -> bool:
        self.turns += 1
        self.had_turn.set()
        return False

    def end_turn(self) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


async def test_who_rests_has_its_turn_in_time() -> None:
    """A client that rests has no turn before its rest is over, also beside others, and then one."""
    turns, long, short, other = held_back(), Rested(), Rested(), Rested()
    now_us = elapsed_us()
    turns.rest(long, now_us + 100_000_000)
    turns.rest(short, now_us)
    turns._push(other)
    assert turns.busy

    take_turn(turns)
    take_turn(turns)

    assert (long.turns, short.turns, other.turns) == (0, 1, 1)
    until_us, number, _ = turns._resting[0]
    turns._resting[0] = (until_us - 100_000_000, number, long)
    take_turn(turns)
    assert (long.turns, short.turns, other.turns) == (1, 1, 1)
    assert not turns.busy


async def test_a_rest_ends_by_itself() -> None:
    """Who rests has its turn although nothing else happens."""
    turns, rested = Turns(), Rested()

    turns.rest(rested, elapsed_us() + 1_000)
    async with asyncio.timeout(10):
        await rested.had_turn.wait()

    assert not turns.busy


async def test_a_long_rest_makes_no_short_one_longer() -> None:
    """Beside a client that rests for minutes another one's short rest ends in time.

    The long one ends by itself, too.
    """
    turns, long, short = Turns(), Rested(), Rested()
    now_us = elapsed_us()

    turns.rest(long, now_us + 600_000_000)
    turns.rest(short, now_us + 1_000)
    async with asyncio.timeout(10):
        await short.had_turn.wait()
        assert turns.busy
        until_us, number, _ = turns._resting[0]
        turns._resting[0] = (until_us - 600_000_000, number, long)
        turns.rest(short, elapsed_us())
        await long.had_turn.wait()

    assert (long.turns, short.turns) == (1, 2)
    assert not turns.busy


def test_a_visit_should_find_some_calls() -> None:
    """A client of few calls rests as long again as they took to come, 30 % of the patience at most.

    One that brings many does not rest. A late one rests for longer, and also if it brings more. But
    what comes meanwhile can still be answered in time, if all of it may be counted at once.
    """
    backlog = Backlog()
    backlog.is_late(0, 0, ENVOYS_US)

    assert backlog.rest_us(1_000, 300, late=False) == 1_000
    assert backlog.rest_us(9_000, 300, late=False) == 6_000
    assert backlog.rest_us(9_000, 0, late=False) == 6_000
    assert backlog.rest_us(9_000, 4_096, late=False) == 0
    for size, store_us, longest_us in (
        (4_096, None, 11_000),
        (4_096, 1_000, 7_000),
        (4_096, 9_000, 6_000),
        (10_000, 9_000, 11_000),
    ):
        backlog.chosen(0, 1_000, size, 8_192, store_us)
        assert backlog.rest_us(1_000, size, late=True) == 1_000
        assert backlog.rest_us(12_000, size, late=True) == longest_us
    assert backlog.rest_us(12_000, 30_000, late=True) == 0


@contextmanager
def drawn_from(ends: Ends) -> Iterator[socket.socket]:
    """The client's end of a socket that is read from in turns; it was last empty at time 1."""
    there, here = socket.socketpair()
    with there, here:
        here.setblocking(False)
        there.setblocking(False)
        ends.protocol.draw_from(here)
        ends.protocol.drawing.begin(1)
        yield there


async def test_a_late_client_is_read_from_until_its_socket_is_empty(tmp_path: Path) -> None:
    """What was there before the newest calls is read, and refused, in the same visit."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    with drawn_from(ends) as there:
        calls = 1_000
        there.sendall(b"".join(ends.frames("100S") for _ in range(calls)))
        while ends.protocol.handle_piece(80_000_001):
            pass
        ends.turns._finish_turn([ends.protocol], elapsed_us())

    kinds = ends.wire.kinds()
    counted = calls // 4  # at four fifths of the patience a fifth of it is a quarter
    assert abs(kinds.count(FrameType.DATA) - counted) <= 1
    assert kinds.count(FrameType.RST_STREAM) == calls - kinds.count(FrameType.DATA)


async def test_of_few_calls_those_are_counted_that_can_be_in_time(tmp_path: Path) -> None:
    """Where a visit finds few calls, all are counted that can be answered in time, also late ones.

    Each visit costs the same, so to refuse some of these would not leave time for others.
    """
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    with drawn_from(ends) as there:
        there.sendall(b"".join(ends.frames("100S") for _ in range(20)))
        assert not ends.protocol.handle_piece(80_000_001)
        ends.turns._finish_turn([ends.protocol], elapsed_us())

    kinds = ends.wire.kinds()
    # After 50 of 100 s a call is still in time, and 85 % of these are safe: 42.5 of 80 s.
    assert kinds.count(FrameType.DATA) == 11
    assert kinds.count(FrameType.RST_STREAM) == 9


class Slow(Timed):
    """A store that says how long it would take, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def wait_us(self, rank: int) -> int:
        self.asked += 1
        return 1_000 * (rank + 1)


async def test_one_look_at_a_store_serves_many_clients(tmp_path: Path) -> None:
    """How long a store would take is asked once for all clients of a moment, for each rank."""
    store = Slow()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    clients = [ends.protocol]
    for _ in range(9):
        ends.connect()
        clients.append(ends.protocol)
    clients[-1].undecided = 16
    store.asked, now_us = 0, elapsed_us() + 1_000_000

    def told(now_us: int) -> list[int | None]:
        for client in clients:
            client.now_us = now_us
        return [ends.calls.store_us(client) for client in clients]

    assert told(now_us) == told(now_us + 199) == [1_000] * 9 + [2_000]
    assert store.asked == 2
    told(now_us + 200)
    assert store.asked == 4
    told(now_us - 1)  # another client's piece began before
    assert store.asked == 6


@pytest.mark.parametrize(("visited_s", "at_once"), [(80, False), (86, True)])
async def test_refusals_wait_for_the_answers_of_their_visit(
    tmp_path: Path, visited_s: int, at_once: bool
) -> None:
    """A visit's refusals leave in one write with its answers, if these come in time for all."""
    busy = Busy()
    ends = Ends(Asking(tmp_path, RULES, store=busy))
    ends.call()
    busy.go_on()
    ends.settle()
    busy.go_on()
    await rounds()
    ends.wire.kinds()
    with drawn_from(ends) as there:
        there.sendall(b"".join(ends.frames("100S") for _ in range(20)))
        ends.protocol.handle_piece(visited_s * 1_000_000 + 1)
        ends.turns._finish_turn([ends.protocol], elapsed_us())

    kinds = ends.wire.kinds()
    assert set(kinds) == ({FrameType.RST_STREAM} if at_once else set())
    busy.go_on()
    await rounds()
    kinds += ends.wire.kinds()
    assert {FrameType.DATA, FrameType.RST_STREAM} < set(kinds)
    assert kinds.count(FrameType.DATA) + kinds.count(FrameType.RST_STREAM) == 20


async def test_a_visit_that_comes_too_early_costs_no_place(tmp_path: Path) -> None:
    """Who brought calls, and nothing since, has its next visit as soon as others like it."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    with drawn_from(ends) as there:
        there.sendall(b"".join(ends.frames("100S") for _ in range(20)))
        ends.protocol.handle_piece(80_000_001)
        ends.protocol.handle_piece(90_000_001)
        ends.turns._push(ends.protocol)

    (place_us, _, _), used_us = ends.turns._others[0], ends.protocol.used_us
    assert place_us == used_us


@pytest.mark.skipif(compiled(), reason="how often a socket is read cannot be changed then")
async def test_nothing_is_counted_while_more_is_in_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as reads do not empty a socket, what they bring may be as old as the last such."""
    monkeypatch.setattr(drawing, "_MOST_READS", 1)
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    with drawn_from(ends) as there:
        there.sendall(b"".join(ends.frames("100S") for _ in range(1_000)))
        assert ends.protocol.handle_piece(80_000_001)
        ends.turns._finish_turn([ends.protocol], elapsed_us())
        assert set(ends.wire.kinds()) == {FrameType.RST_STREAM}

        assert ends.protocol.handle_piece(80_000_002)
        ends.turns._finish_turn([ends.protocol], elapsed_us())
        assert FrameType.RST_STREAM in ends.wire.kinds()


def test_the_allowance_follows_the_time_between_visits() -> None:
    """Less is allowed while visits come later than in three quarters of the patience, else more.

    While callers wait it changes by 30 % at most, however many visits there are.
    """
    allowance = Allowance()

    assert allowance.visited(0, 30_000, ENVOYS_US) == 45_875
    assert allowance.visited(0, 30_000, ENVOYS_US) == 45_875
    assert allowance.visited(10_000, 90_000, ENVOYS_US) == 38_993
    assert allowance.visited(30_000, 15_000, ENVOYS_US) == 38_993
    assert allowance.visited(50_000, 7_500, ENVOYS_US) == 44_843
    for visit in range(3, 23):
        allowance.visited(visit * 20_000, 60_000, ENVOYS_US)
    assert allowance.visited(460_000, 15_000, ENVOYS_US) == 256


def test_of_late_reads_all_or_the_newest_are_counted() -> None:
    """What is counted of a late read is saved up until all of it can be, if that is in time.

    Of many bytes the newest are counted, as many as are allowed. Of few those are counted that can
    be answered in time; if that is less than a call, once in eight visits.
    """
    backlog = Backlog()
    backlog.is_late(0, 0, ENVOYS_US)
    assert backlog.chosen(0, 4_000, 1_000, 8_192, None) == (False, 1_000)
    assert backlog.chosen(0, 13_000, 1_000, 8_192, None) == (True, 1_000)
    assert backlog.chosen(0, 16_000, 40_000, 8_192, None) == (False, 10_000)
    backlog = Backlog()
    backlog.is_late(0, 0, ENVOYS_US)
    few = [backlog.chosen(0, 16_000, size, 8_192, None) for size in (1_024, 370, 2_048)]
    assert few == [(False, 707), (False, 0), (False, 1_414)]
    backlog = Backlog()
    backlog.is_late(0, 0, ENVOYS_US)
    fewer = [backlog.chosen(0, 16_000, 370, 8_192, None) for _ in range(15)]
    assert fewer == [(False, 0)] * 7 + [(False, 255)] + [(False, 0)] * 7

    for visit in range(40):
        backlog.chosen(visit * 20_000, 40_000, 40_000, 8_192, None)
    assert backlog.chosen(800_000, 15_000, 40_000, 8_192, None) == (False, 256)
    scarce = [backlog.chosen(800_000, 13_000, 1_024, 8_192, None)[0] for _ in range(16)]
    assert scarce.count(True) == 4


def test_calls_that_would_be_late_in_the_store_are_not_chosen() -> None:
    """Half of the patience is for the wait for us and in the store, where there is one."""
    backlog = Backlog()
    backlog.is_late(0, 0, ENVOYS_US)

    assert backlog.chosen(0, 7_000, 1_000, 8_192, 3_000) == (True, 1_000)
    assert backlog.chosen(0, 7_000, 1_000, 8_192, 3_001) == (False, 849)
    assert backlog.chosen(0, 7_000, 14_000, 8_192, 3_000) == (False, 8_000)
    assert backlog.chosen(0, 7_000, 14_000, 8_192, 9_000) == (False, 2_000)


def test_at_ten_times_the_load_all_hear_in_time_and_as_much_is_counted() -> None:
    """A hundred late clients are each visited within their patience, whatever the costs are.

    Beside visits and refusals there is time to count, and it is used.
    """
    for visit_us, call_us in ((80, 10), (120, 20)):
        allowance, now_us = Allowance(), 0
        clients = [(0, number) for number in range(100)]  # when it may be visited, and who it is
        backlogs = [Backlog(allowance) for _ in clients]
        visited_us, counted, longest_us = [0] * 100, 0, 0
        for backlog in backlogs:
            backlog.is_late(0, 0, ENVOYS_US)
        while now_us < 2_000_000:
            due_us, number = heapq.heappop(clients)
            now_us = max(now_us, due_us)
            since_us = now_us - visited_us[number]
            size = since_us * 900 // 1_000  # 2,700 calls a second, of 333 bytes each
            _, chosen = backlogs[number].chosen(now_us, since_us, size, 8_192, None)
            rest_us = backlogs[number].rest_us(since_us, size, late=True)
            heapq.heappush(clients, (now_us + rest_us, number))
            visited_us[number] = now_us
            if now_us > 1_000_000:
                counted += chosen // 333
                longest_us = max(longest_us, since_us)
            now_us += visit_us + chosen // 333 * call_us + size // 1_000

        free_us = 1_000_000 - 100 * 1_000_000 // 15_000 * visit_us - 90_000
        assert longest_us < 20_000
        assert counted * call_us > free_us * 8 // 10


async def test_chosen_calls_are_counted_where_no_store_is_waited_for(tmp_path: Path) -> None:
    """In memory a call that was chosen is counted after more than half of its caller's patience.

    Where a store is waited for it is not: the answer would come too late.
    """
    for store, counted in ((MemoryStore(100, Stats(), Health()), True), (Timed(), False)):
        ends = Ends(Asking(tmp_path, RULES, store=store))
        ends.settle()
        with drawn_from(ends) as there:
            there.send(ends.frames("100S"))
            ends.protocol.handle_piece(60_000_000)
            ends.turns._finish_turn([ends.protocol], elapsed_us())

        kinds = ends.wire.kinds()
        assert (kinds.count(FrameType.DATA), kinds.count(FrameType.RST_STREAM)) == (
            (1, 0) if counted else (0, 1)
        )
