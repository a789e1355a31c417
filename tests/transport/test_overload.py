"""Calls that there is no time for: decided without a count, or not at all, and no longer."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ratelimit_service import wire
from ratelimit_service.clock import elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.model import Code, FailurePolicy, Hit, Outcome, Request
from ratelimit_service.observer import Stats
from ratelimit_service.service.at_hand import AtHand, Ready
from ratelimit_service.settings import Settings
from ratelimit_service.stores import AT_ONCE, DROPPED, NEVER, Done, Outcomes, Wanted, always, judge
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.calls import METHODS, ServiceCalls
from ratelimit_service.transport.h2.frames import PREFACE, ErrorCode, FrameType
from ratelimit_service.transport.h2.overload import PATIENCE_US, Backlog, Fate, Overload
from ratelimit_service.transport.h2.protocol import Http2Protocol
from ratelimit_service.transport.h2.server import H2Server
from ratelimit_service.transport.h2.turns import Turns
from ratelimit_service.transport.health import HealthService
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, Away, Busy, Heard, Timed, descriptor
from tests.stores.cases import hearing, hit
from tests.transport.test_h2 import Client
from tests.transport.test_protocol import Wire, held_back

ENVOYS_US = 20_000

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
"""


def test_calls_are_counted_until_they_have_waited_for_long() -> None:
    """In the first fifth of its caller's patience a call is counted, later it is not."""
    assert Backlog().fate(0, ENVOYS_US) is Fate.COUNTED
    assert Backlog().fate(4_000, ENVOYS_US) is Fate.COUNTED
    assert Backlog().fate(4_001, ENVOYS_US) is Fate.HURRIED
    assert Backlog().fate(15_000, ENVOYS_US) is Fate.HURRIED
    assert Backlog().fate(15_001, ENVOYS_US) is Fate.REFUSED


def test_callers_that_wait_longer_are_counted_for_longer() -> None:
    """Patience is each caller's own."""
    assert Backlog().fate(100_000, 1_000_000) is Fate.COUNTED
    assert Backlog().fate(200_001, 1_000_000) is Fate.HURRIED


def test_callers_that_say_nothing_are_always_answered() -> None:
    """Who gives no time is taken to wait fifteen milliseconds for a count, and for ever else."""
    assert Backlog().fate(PATIENCE_US // 5, None) is Fate.COUNTED
    assert Backlog().fate(PATIENCE_US // 5 + 1, None) is Fate.HURRIED
    assert Backlog().fate(60_000_000, None) is Fate.HURRIED


def test_only_some_are_decided_by_policy() -> None:
    """For eight calls that are counted one may be decided by policy, and a burst of some more."""
    overload = Overload(Stats(), Health())
    hurried = 0
    while overload.may_hurry:
        overload.hurried(1)
        hurried += 1

    overload.counted(8)
    assert hurried == 500
    assert overload.may_hurry
    overload.hurried(1)
    assert not overload.may_hurry


async def rounds() -> None:
    """The event loop reads, and does what is due, until all has come of what was begun."""
    for _ in range(5):
        await asyncio.sleep(0)


class Ends:
    """A client and a service, and how long bytes have waited between them."""

    def __init__(self, asking: Asking) -> None:
        self.health, self.stats = Health(), asking.stats
        self.service, self.tally = asking.service, asking.tally
        self.overload = Overload(self.stats, self.health)
        self.calls = ServiceCalls(asking.service, HealthService(self.health), self.overload)
        self.turns, self.wire = held_back(), Wire()
        self.protocol = Http2Protocol(self.calls, METHODS, self.turns, lambda _: None)
        self.protocol.connection_made(self.wire)
        self.client = Client()
        self.receive(PREFACE + frames.settings({}) + Client.ack())

    def receive(self, data: bytes, waited_us: int = 0) -> list[int]:
        """Bytes come that have waited; returns the types of the frames that are said then."""
        self.wire.kinds()
        self.protocol.data_received(data)
        inbox = self.protocol._inbox
        inbox[0] = (elapsed_us() - waited_us, inbox[0][1])
        self.turn()
        return self.wire.kinds()

    def call(self, *, waited_us: int = 0, timeout: str = "1S") -> bool:
        """Makes a call that has waited; says if it is answered."""
        return FrameType.DATA in self.receive(self.frames(timeout), waited_us)

    def frames(self, timeout: str) -> bytes:
        """A call of a caller that waits for so long."""
        request = Request("edge", (descriptor("user=a"),))
        data = self.client.headers([("grpc-timeout", timeout)])
        return data + self.client.data(wire.encode_request(request))

    def turn(self) -> None:
        """Handles all that has come."""
        while self.turns._waiting:
            self.turns._turn()

    def settle(self) -> None:
        """Makes calls until header blocks depend on nothing, and the request is remembered."""
        self.call()
        self.client.encoder.header_table_size = 0
        self.receive(Client.ack())
        for _ in range(6):
            self.call()
        self.calls.look()
        self.stats.take()
        self.tally("user").take()


async def test_a_count_is_waited_for_as_long_as_an_answer_can_still_be_in_time(
    tmp_path: Path,
) -> None:
    """A fifth of the caller's time is left for the answer."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))

    before = elapsed_us()
    assert ends.call(timeout="20S")
    after = elapsed_us()

    assert before + 16_000_000 <= store.deadlines_us[-1] <= after + 16_000_000


async def test_what_waited_too_long_is_decided_without_waiting_more(tmp_path: Path) -> None:
    """A store gets no time for such a call, or none at all; fresh calls are counted again."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()

    assert ends.call()
    assert ends.call(waited_us=500_000)
    assert not ends.call(waited_us=800_000)
    assert ends.call()

    assert [deadline_us > AT_ONCE for deadline_us in store.deadlines_us] == [True, False, True]
    ends.calls.look()
    assert ends.stats.overloaded == {"hurried": 1, "refused": 1}
    assert list(ends.health.faults) == ["overloaded"]


async def test_answers_at_hand_are_those_of_the_policy(tmp_path: Path) -> None:
    """A request that comes again while there is no time gets the same answer, and is tallied."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    ends.call(waited_us=500_000)

    answered = [ends.call(waited_us=500_000) for _ in range(100)]

    assert answered == [True] * 100
    store = ends.service._store
    assert isinstance(store, Timed)
    assert len(store.deadlines_us) < 50  # nearly all were answered without being planned
    ends.calls.look()
    assert ends.stats.overloaded == {"hurried": 101}
    assert ends.stats.policy_decisions == {"open": 101}
    assert ends.stats.decisions == {"ok": 101}
    assert ends.tally("user").take() == [101, 0, 0, 0, 0, 0, 0, 101]


async def test_what_was_never_asked_is_not_planned_without_time(tmp_path: Path) -> None:
    """Where all policies are `open` it is allowed; where one is not, the policies are looked up."""
    asking = Asking(tmp_path, RULES, store=Timed())
    closed = RULES.replace("edge", "shut").replace(
        "per_unit: 2", "per_unit: 2, failure_policy: closed"
    )
    (tmp_path / "closed.yaml").write_text(closed)
    asking.rules.load()
    request = Request("edge", (descriptor("user=new"), descriptor("other=1")))
    bodies = [wire.encode_request(each) for each in (request, request._replace(domain="shut"))]

    open_, shut = await asking.service.decide(bodies, AT_ONCE)

    assert isinstance(open_, bytes)
    assert isinstance(shut, bytes)
    assert [status.code for status in wire.decode_decision(open_).statuses] == [Code.OK] * 2
    decided = wire.decode_decision(shut)
    assert [status.code for status in decided.statuses] == [Code.OVER_LIMIT, Code.OK]
    assert decided.code is Code.OVER_LIMIT
    assert asking.stats.policy_decisions == {"open": 2, "closed": 1}


def test_answers_are_at_hand_for_a_moment_only() -> None:
    """Then it is asked again who is over a limit."""
    at_hand = AtHand(Stats())
    at_hand.answers(1_000_000)

    at_hand.put(b"request", Ready(b"answer", (), DROPPED))

    assert list(at_hand.answers(1_049_999)) == [b"request"]
    assert list(at_hand.answers(1_050_000)) == []


async def test_who_is_over_is_denied_at_hand_too(tmp_path: Path) -> None:
    """A caller that the local cache knows is denied in haste, and tallied, as it is with time."""
    over = Over()
    ends = Ends(Asking(tmp_path, RULES, store=LocalCache(over, 1 << 20, Stats())))
    ends.settle()
    ends.call(waited_us=500_000)

    answered = [ends.call(waited_us=500_000) for _ in range(20)]

    assert answered == [True] * 20
    ends.calls.look()
    assert ends.stats.decisions == {"over_limit": 21}
    assert ends.tally("user").take() == [21, 21, 0, 0, 0, 0, 0, 0]


async def test_callers_that_wait_longer_get_no_answer_in_haste(tmp_path: Path) -> None:
    """Beside callers without time one that has time is counted."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    ends.call(waited_us=500_000)
    store.deadlines_us.clear()

    assert ends.call(waited_us=500_000, timeout="100S")

    assert [deadline_us > AT_ONCE for deadline_us in store.deadlines_us] == [True]


async def test_overload_is_over_when_all_calls_are_counted(tmp_path: Path) -> None:
    """Health speaks of it for a few seconds more."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.call(waited_us=800_000)

    ends.overload.look()
    assert list(ends.health.faults) == ["overloaded"]
    ends.overload._noted_us -= 6_000_000
    ends.overload.look()

    assert ends.health.faults == {}


@contextmanager
def counted_functions() -> Iterator[list[int]]:
    """Counts the functions of Python that are called meanwhile."""
    called: list[int] = []
    sys.setprofile(lambda _, event, __: called.append(event == "call"))
    try:
        yield called
    finally:
        sys.setprofile(None)


async def test_refusing_costs_next_to_nothing(tmp_path: Path) -> None:
    """A thousand late calls of one read are refused at once: nothing is handed on or kept."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.settle()
    store.deadlines_us.clear()
    first = ends.client.stream_id + 2
    data = b"".join(ends.frames("1S") for _ in range(1_000))

    with counted_functions() as functions:
        said = ends.receive(data, waited_us=800_000)

    assert said == [FrameType.RST_STREAM] * 1_000
    assert sum(functions) < 500
    assert store.deadlines_us == []
    assert ends.protocol.connection.open_streams == 0
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
    now_us, inbox = elapsed_us(), ends.protocol._inbox
    for place, waited_us in enumerate((800_000, 700_000, 150_000, 50_000, 0)):
        ends.protocol.data_received(b"".join(ends.frames("1S") for _ in range(10)))
        inbox[place] = (now_us - waited_us, inbox[place][1])

    while ends.protocol.handle_piece(now_us):
        pass
    ends.turns._finish_turn([ends.protocol])

    kinds = ends.wire.kinds()
    assert kinds.count(FrameType.RST_STREAM) == 30
    assert kinds.count(FrameType.DATA) == 20
    assert all(deadline_us > AT_ONCE for deadline_us in store.deadlines_us)


def test_the_later_one_is_the_less_is_counted() -> None:
    """Behind a late call the newest are counted, in inverse proportion to its lateness."""
    backlog = Backlog()
    newest_us = []
    for waited_us in (4_000, 8_000, 16_000, 200_000):
        backlog.fate(waited_us, ENVOYS_US)
        newest_us.append(1_000_000 - backlog.caught_up_us(1_000_000))

    assert newest_us == [4_000, 2_000, 1_000, 1_000]


async def test_who_has_gone_is_not_refused(tmp_path: Path) -> None:
    """Calls too late for a refusal get none; who has not taken his back a second later gets one."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    first = ends.client.stream_id + 2
    data = b"".join(ends.frames("1S") for _ in range(3))

    assert ends.receive(data, waited_us=900_000) == []
    assert ends.receive(frames.rst_stream(first, ErrorCode.CANCEL)) == []
    ends.protocol.connection.tick()
    assert ends.receive(frames.rst_stream(first + 2, ErrorCode.CANCEL)) == []
    ends.protocol.connection.tick()
    ends.protocol.flush()

    assert ends.wire.written[9 - 4 : 9] == (first + 4).to_bytes(4, "big")
    assert ends.wire.kinds() == [FrameType.RST_STREAM]
    ends.protocol.connection.tick()
    assert ends.protocol.connection.take_output() == b""


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
        ends.protocol.data_received(ends.frames("1S"))
        ends.protocol.handle_piece(now_us)
    several[0].turns._finish_turn([ends.protocol for ends in several])

    assert len(store.deadlines_us) == 1
    assert [ends.wire.kinds().count(FrameType.DATA) for ends in several] == [1] * 5


async def test_time_in_the_store_counts(tmp_path: Path) -> None:
    """While an older call waits long for the store, one that has waited for us is not counted."""
    store = Busy()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    ends.client.encoder.header_table_size = 0
    ends.receive(ends.frames("1S"))
    (oldest,) = ends.calls._pending._since_us
    ends.overload.hurried(4_000)

    ends.calls._pending._since_us[oldest] -= 450_000
    assert FrameType.RST_STREAM in ends.receive(ends.frames("1S"), waited_us=100_000)
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("1S"))
    store.go_on()
    assert FrameType.RST_STREAM not in ends.receive(ends.frames("1S"), waited_us=100_000)


async def test_late_clients_are_read_from_when_it_is_their_turn(tmp_path: Path) -> None:
    """The loop does not read from a client that is late while others wait, but its turns do.

    Once nothing has come, or what comes is not late, the loop reads again.
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

        ends.protocol.data_received(ends.frames("1S"))
        arrived_us, data = ends.protocol._inbox[0]
        ends.protocol._inbox[0] = (arrived_us - 800_000, data)
        now_us = elapsed_us()
        assert ends.protocol.handle_piece(now_us)
        assert not ends.wire.reading

        there.send(ends.frames("1S") + ends.frames("1S"))
        assert ends.protocol.handle_piece(now_us + 800_000)
        assert ends.calls._haste.refused > 1
        there.send(ends.frames("1S"))
        assert not ends.protocol.handle_piece(now_us + 900_000)
        assert ends.wire.reading

        ends.protocol.data_received(ends.frames("1S"))
        ends.protocol._inbox[0] = (now_us, ends.protocol._inbox[0][1])
        assert ends.protocol.handle_piece(now_us + 800_000)
        assert not ends.protocol.handle_piece(now_us + 1_600_000)
        assert ends.wire.reading
    ends.turn()


async def test_bytes_may_have_come_while_the_loop_was_busy() -> None:
    """What is read between two turns is taken to have come in the middle of a round of the loop."""
    turns = Turns()
    assert turns.came_us(5_000) == 5_000

    turns._scheduled, turns._before_us, turns._ended_us = True, 10_000, 17_000
    assert turns.came_us(18_000) == 14_000


def test_of_late_reads_a_share_is_counted() -> None:
    """The square of the ratio of 40 % of the patience to the time between two reads is counted.

    Few bytes are counted all or not at all, many by what came last.
    """
    backlog = Backlog()
    backlog.fate(0, ENVOYS_US)

    assert backlog.chosen(4_000, 1_000, 8_192) == (False, 1_000)
    few = [backlog.chosen(12_800, 1_024, 8_192)[0] for _ in range(64)]
    assert few.count(True) == 25
    assert backlog.chosen(16_000, 40_000, 8_192) == (False, 10_000)


async def test_other_calls_are_not_refused_along(tmp_path: Path) -> None:
    """Between late calls a check of health is answered, and so is a caller with more patience."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    some = b"".join(ends.frames("1S") for _ in range(100))
    check = ends.client.headers(path="/grpc.health.v1.Health/Check") + ends.client.data(b"")
    patient = ends.frames("100S")
    more = b"".join(ends.frames("1S") for _ in range(100))

    kinds = ends.receive(some + check + patient + more, waited_us=800_000)

    assert kinds.count(FrameType.RST_STREAM) == 200
    assert kinds.count(FrameType.DATA) == 2


async def test_callers_that_give_up_are_no_flood(tmp_path: Path) -> None:
    """Who cancels what we have not answered in time is not told to calm down."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.settle()

    for _ in range(3_000):
        assert not ends.call(waited_us=800_000)
        reset = frames.rst_stream(ends.client.stream_id, ErrorCode.CANCEL)
        assert ends.receive(reset) == []

    assert ends.call()
    assert not ends.wire.closed


async def test_time_before_a_client_is_read_from_counts(tmp_path: Path) -> None:
    """What comes after a pause in reading may have come when the pause began."""
    ends = Ends(Asking(tmp_path, RULES))
    ends.call()
    ends.protocol._pause_reading()
    ends.protocol._unread_since_us -= 800_000
    ends.protocol._resume_reading()

    ends.protocol.data_received(b"")

    assert elapsed_us() - ends.protocol._inbox[0][0] >= 800_000


def minutely(policy: FailurePolicy, key: str = "a") -> Hit:
    return hit(key=key, limit=5)._replace(policy=policy)


async def test_a_well_server_is_not_asked_without_time(own_redis: RedisServer) -> None:
    """What there is no time for is decided by policy, also `local`, and blames no server."""
    stats, health = Stats(), Health()
    store = RedisStore(own_redis.url, 10_000_000, stats, health)
    await store.start()
    answers: list[list[Outcomes]] = []

    store.charge([[minutely(FailurePolicy.OPEN)]] * 9, hearing(answers.append), deadline_us=AT_ONCE)
    store.charge([[minutely(FailurePolicy.LOCAL)]], hearing(answers.append), deadline_us=AT_ONCE)

    assert answers[0] == [[None]] * 9
    ((local,),) = answers[1]
    assert local is not None
    assert local.local
    assert stats.store_errors == {"overloaded": 10}
    assert health.faults == {}
    await store.close()


async def test_who_is_known_to_be_over_is_denied_all_the_same() -> None:
    """A key in the local cache is denied whether or not there is time for the store."""
    over, answers = Over(), list[list[Outcomes]]()
    cache = LocalCache(over, 1 << 20, Stats())
    cache.charge([[minutely(FailurePolicy.OPEN)]], hearing(answers.append))

    cache.charge(
        [[minutely(FailurePolicy.OPEN)], [minutely(FailurePolicy.OPEN, "b")]],
        hearing(answers.append),
        deadline_us=AT_ONCE,
    )

    (denied,), (other,) = answers[1]
    assert denied is not None
    assert denied.over
    assert other is None


class Over(Away):
    """A store in which everything is over its limit, if it is given time."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        over = Outcome(True, 0, 60_000_000, 0) if deadline_us > AT_ONCE else None
        done([judge(hits, [over] * len(hits)) for hits in requests])


async def test_a_call_after_a_pause_and_a_silence_is_fresh(tmp_path: Path) -> None:
    """What comes once a socket that was not read has been emptied has waited for nothing."""
    store = Timed()
    ends = Ends(Asking(tmp_path, RULES, store=store))
    assert ends.call()
    ends.protocol.pause_writing()
    ends.protocol._unread_since_us -= 10_000_000
    ends.protocol.resume_writing()
    assert ends.wire.reading
    await rounds()

    request = Request("edge", (descriptor("user=a"),))
    data = ends.client.headers([("grpc-timeout", "1S")])
    ends.wire.kinds()
    ends.protocol.data_received(data + ends.client.data(wire.encode_request(request)))
    ends.turns._turn()

    assert FrameType.DATA in ends.wire.kinds()
    assert not ends.stats.overloaded


async def test_answers_at_hand_are_counted_at_the_end(tmp_path: Path) -> None:
    """What was answered at hand just before the server stops is counted and told as well."""
    closed = Settings(failure_policy=FailurePolicy.CLOSED)
    asking = Asking(tmp_path, RULES, store=Away(), settings=closed)
    server = H2Server("127.0.0.1:0", asking.service, Health(), stats=asking.stats)
    await server.start()
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    heard = Heard(asking.service)
    await asking.service.decide([body], AT_ONCE)
    asking.service.at_hand.answers(0)[body].times += 7
    await server.stop(0)

    assert [each.times for each in heard] == [1, 7]
    assert asking.stats.overloaded["hurried"] == 7
