"""Who is read from in turns of its own, and what of that is counted; and rests between turns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.clock import elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.transport.h2 import drawing
from ratelimit_service.transport.h2.calls import METHODS
from ratelimit_service.transport.h2.frames import FrameType
from ratelimit_service.transport.h2.overload import Backlog
from ratelimit_service.transport.h2.protocol import Http2Protocol
from ratelimit_service.turns import Turns
from tests.service.asking import Asking, Timed
from tests.transport.ends import held_back
from tests.transport.served_ends import ENVOYS_US, RULES, Ends
from tests.transport.taken_turns import take_turn


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
        ends.overload.hurried(4_000)
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
        assert ends.calls._haste.refused == 2
        for number in range(1, 9):
            assert not ends.wire.reading
            there.send(ends.frames("100S"))
            assert not ends.protocol.handle_piece(now_us + 80_000_000 + number * 10_000_000)
        assert ends.wire.reading
        assert ends.calls._haste.refused == 2

        late(now_us + 200_000_000)
        assert not ends.protocol.handle_piece(now_us + 210_000_000)
        assert not ends.wire.reading
        assert not ends.protocol.handle_piece(now_us + 220_000_000)
        assert ends.wire.reading
    ends.turn()


class Rested:
    """Somebody who rests between turns."""

    used_us, dear = 0, False

    def __init__(self) -> None:
        self.turns = 0
        self.had_turn = asyncio.Event()

    def handle_piece(self, _now_us: int) -> bool:
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

    One that brings many does not rest.
    """
    backlog = Backlog()
    backlog.fate(0, 0, ENVOYS_US)

    assert backlog.rest_us(1_000, 300) == 1_000
    assert backlog.rest_us(9_000, 300) == 6_000
    assert backlog.rest_us(9_000, 0) == 6_000
    assert backlog.rest_us(9_000, 4_096) == 0


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
        ends.turns._finish_turn([ends.protocol])

    kinds = ends.wire.kinds()
    counted = calls // 4  # at four fifths of the patience it is the square of a half
    assert abs(kinds.count(FrameType.DATA) - counted) <= 1
    assert kinds.count(FrameType.RST_STREAM) == calls - kinds.count(FrameType.DATA)


@pytest.mark.skipif(compiled(), reason="how often a socket is read cannot be changed then")
async def test_nothing_is_counted_while_more_is_in_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as reads do not empty a socket, what they bring may be as old as the last such."""
    monkeypatch.setattr(drawing, "_MOST_READS", 1)
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    ends.overload.hurried(4_000)
    with drawn_from(ends) as there:
        there.sendall(b"".join(ends.frames("100S") for _ in range(1_000)))
        assert ends.protocol.handle_piece(80_000_001)
        ends.turns._finish_turn([ends.protocol])
        assert set(ends.wire.kinds()) == {FrameType.RST_STREAM}

        assert ends.protocol.handle_piece(80_000_002)
        ends.turns._finish_turn([ends.protocol])
        assert FrameType.RST_STREAM in ends.wire.kinds()


def test_of_late_reads_a_share_is_counted() -> None:
    """The square of the ratio of 40 % of the patience to the time between two reads is counted.

    Few bytes are counted all or not at all, many by what came last.
    """
    backlog = Backlog()
    backlog.fate(0, 0, ENVOYS_US)

    assert backlog.chosen(4_000, 1_000, 8_192) == (False, 1_000)
    few = [backlog.chosen(12_800, 1_024, 8_192)[0] for _ in range(64)]
    assert few.count(True) == 25
    assert backlog.chosen(16_000, 40_000, 8_192) == (False, 10_000)


async def test_chosen_calls_are_counted_where_no_store_is_waited_for(tmp_path: Path) -> None:
    """In memory a call that was chosen is counted after more than half of its caller's patience.

    Where a store is waited for it is not: the answer would come too late.
    """
    for store, counted in ((MemoryStore(100, Stats(), Health()), True), (Timed(), False)):
        ends = Ends(Asking(tmp_path, RULES, store=store))
        ends.settle()
        ends.overload.hurried(4_000)
        with drawn_from(ends) as there:
            ends.protocol.backlog._earned_bytes = 8_192  # a share that is saved up
            there.send(ends.frames("100S"))
            ends.protocol.handle_piece(60_000_000)
            ends.turns._finish_turn([ends.protocol])

        kinds = ends.wire.kinds()
        assert (kinds.count(FrameType.DATA), kinds.count(FrameType.RST_STREAM)) == (
            (1, 0) if counted else (0, 1)
        )
