"""Whose turn it is, and for how long.

It is long because each rule of turns has its test, on clients and a clock that all of them share.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop import scheduler
from ratelimit_service.eventloop.scheduler import TURN_US, Scheduler
from tests.grpc.ends import take_turn
from tests.waiting import PATIENCE_SECONDS

CALL_US = 10


class Time:
    """A clock that only moves while somebody works."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def elapsed_us(self) -> int:
        return self.us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    if compiled():
        pytest.skip("compiled code has bound the clock")
    clock = Time()
    monkeypatch.setattr(scheduler, "elapsed_us", clock.elapsed_us)
    return clock


class Client:
    """A client each of whose visits takes so many microseconds, and leaves so many calls."""

    def __init__(
        self, clock: Time, us: int = 0, calls: int = 0, *, visits: int = 1 << 30, name: str = ""
    ) -> None:
        self.used_us = self.visits = self.ends = 0
        self.alone: list[bool] = []
        self.most: list[int] = []
        self.failed: list[Exception] = []
        self.last_visit = visits
        self.name = name
        self.order: list[str] = []
        self.finish: Callable[[int], None] = self.decide
        self.scheduler: Scheduler | None = None
        self._clock, self._us, self._calls = clock, us, calls

    def decide(self, now_us: int) -> None: ...

    def ready(self, since_us: int, events: int) -> bool:
        return True

    def has_much(self) -> bool:
        return False

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        self.visits += 1
        self.alone.append(alone)
        self.most.append(most)
        self.order.append(self.name)
        self._clock.us += self._us
        if self._calls and self.scheduler is not None:
            self.scheduler.later(self.finish, self, self._calls)
        return self.visits < self.last_visit

    def flush(self) -> None:
        self.ends += 1
        self.order.append(self.name.upper())

    def fail(self, error: Exception) -> None:
        self.failed.append(error)


def added(held: Scheduler, *clients: Client) -> None:
    for each in clients:
        each.scheduler = held
        held.add(each)


async def test_equal_shares_of_time(clock: Time) -> None:
    """Who has used the least time is visited first: dear visits are rarer, and time is equal."""
    held = Scheduler()
    dear, cheap = Client(clock, TURN_US // 2), [Client(clock, TURN_US // 8) for _ in range(9)]
    added(held, dear, *cheap)

    for _ in range(200):
        take_turn(held)

    times = [each.used_us for each in (dear, *cheap)]
    assert max(times) - min(times) <= TURN_US // 2
    assert all(abs(each.visits - 4 * dear.visits) <= 4 for each in cheap)


async def test_one_visit_in_a_turn(clock: Time) -> None:
    """Each client is visited at most once in a turn, and writes once in it."""
    held = Scheduler()
    clients = [Client(clock, 1) for _ in range(3)]
    added(held, *clients)

    for number in range(1, 6):
        take_turn(held)
        assert [each.visits for each in clients] == [number] * 3
        assert [each.ends for each in clients] == [number] * 3


async def test_new_clients_are_behind_all_who_wait(clock: Time) -> None:
    """However many new clients come, all who waited already are visited before them."""
    held, order = Scheduler(), list[str]()
    old = [Client(clock, TURN_US, name="o") for _ in range(5)]
    added(held, *old)
    for _ in range(7):  # so that some have used more than others
        take_turn(held)
    ends = []
    for number in range(20):
        new, other = socket.socketpair()
        ends += [new, other]
        client = Client(clock, TURN_US, name="n")
        held.watch(new, client)
        other.send(b"first %d" % number)
        old.append(client)
    for each in old:
        each.order = order

    for _ in range(5):
        take_turn(held)

    assert [each for each in order if each.islower()] == ["o"] * 5
    for end in ends:
        end.close()


class Calling(Client):
    """A client that is visited once each time it has sent something."""

    def __init__(self, held: Scheduler, clock: Time, us: int, *, much: bool, end_us: int = 0):
        super().__init__(clock, us)
        self.mine, self.other = socket.socketpair()
        self.mine.setblocking(False)
        self.much, self.end_us = much, end_us
        held.watch(self.mine, self)

    def send(self) -> None:
        self.other.send(b"a call")

    def has_much(self) -> bool:
        return self.much

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        super().visit(now_us, most, each_us, alone=alone)
        with contextlib.suppress(BlockingIOError):
            self.mine.recv(1_000)
        return False

    def flush(self) -> None:
        super().flush()
        self._clock.us += self.end_us

    def close(self) -> None:
        self.mine.close()
        self.other.close()


async def test_new_clients_are_behind_who_comes_back(clock: Time) -> None:
    """However many new clients come, one that calls now and then is visited in the next turn."""
    held = Scheduler()
    caller = Calling(held, clock, 100, much=False)
    for _ in range(5):
        caller.send()
        take_turn(held)
    new = [Calling(held, clock, TURN_US // 2, much=True) for _ in range(300)]
    for each in new:
        each.send()
    take_turn(held)

    for number in range(6, 20):
        caller.send()
        take_turn(held)
        assert caller.visits == number
    assert sum(each.visits for each in new) > 14  # and these have their turns, too
    for each in (caller, *new):
        each.close()


async def test_who_has_sent_little_is_ahead_of_many_who_have_sent_much(clock: Time) -> None:
    """Many clients that send much at the same moment keep nobody waiting who makes one call."""
    held = Scheduler()
    caller = Calling(held, clock, 100, much=False)
    crowd = [Calling(held, clock, 300, much=True) for _ in range(300)]
    for each in crowd:  # all are known
        each.send()
    for _ in range(100):
        take_turn(held)
    caller.send()
    take_turn(held)
    for each in crowd:
        each.send()

    for number in range(2, 20):
        caller.send()
        take_turn(held)
        assert caller.visits == number
    for _ in range(50):
        take_turn(held)
    assert min(each.visits for each in crowd) == 2
    for each in (caller, *crowd):
        each.close()


async def test_writes_are_part_of_a_turn(clock: Time) -> None:
    """Who is visited writes at the end: so many are not visited that all these writes take long."""
    held = Scheduler()
    clients = [Calling(held, clock, 10, much=False, end_us=10) for _ in range(300)]
    for each in clients:
        each.send()
    started_us = clock.us
    take_turn(held)

    assert clock.us - started_us <= TURN_US + 100
    for each in clients:
        each.close()


@pytest.mark.parametrize("pause", [1, 10, 1_000])
async def test_no_time_can_be_saved_up(clock: Time, pause: int) -> None:
    """Who returns after a pause, however long, is ahead of others by a turn's work at most."""
    held = Scheduler()
    busy = [Client(clock, TURN_US // 4) for _ in range(2)]
    added(held, *busy)
    for _ in range(pause):
        take_turn(held)
    returned = Client(clock, TURN_US // 4)
    added(held, returned)
    before = min(each.visits for each in busy)

    for _ in range(20):
        take_turn(held)

    assert returned.visits <= min(each.visits for each in busy) - before + 5


async def test_a_visit_during_which_the_machine_stood_still(clock: Time) -> None:
    """A client is not charged for all of it."""
    held = Scheduler()
    unlucky, other = Client(clock, 50 * TURN_US), Client(clock, 1)
    added(held, unlucky, other)

    take_turn(held)

    assert unlucky.used_us == 2 * TURN_US


async def test_calls_are_decided_together(clock: Time) -> None:
    """All calls of a turn are decided once at its end, before anybody writes."""
    held, order = Scheduler(), list[str]()

    def decide(now_us: int) -> None:
        order.append("decide")

    clients = [Client(clock, 1, 2, name=name, visits=1) for name in "abc"]
    for each in clients:
        each.order, each.finish = order, decide
    added(held, *clients)

    take_turn(held)

    assert order == ["a", "b", "c", "decide", "A", "B", "C"]


async def test_each_pays_for_its_calls(clock: Time) -> None:
    """The time that deciding took is shared out by how many calls each client made."""
    held = Scheduler()

    def decide(now_us: int) -> None:
        clock.us += 400

    many, few = Client(clock, 10, 30, visits=1), Client(clock, 10, 10, visits=1)
    many.finish = few.finish = decide
    added(held, many, few)

    take_turn(held)

    assert (many.used_us, few.used_us) == (310, 110)


async def test_a_turn_is_full(clock: Time) -> None:
    """A turn stops when what clients ask for fills it, and when visits have filled it."""
    held = Scheduler()
    asking = [Client(clock, 0, TURN_US // CALL_US // 2) for _ in range(10)]
    added(held, *asking)
    take_turn(held)
    assert sum(each.visits for each in asking) == 2

    held = Scheduler()
    dear = [Client(clock, TURN_US // 4) for _ in range(10)]
    added(held, *dear)
    take_turn(held)
    assert sum(each.visits for each in dear) == 4


async def test_alone(clock: Time) -> None:
    """A client is alone in a turn where nobody else waits or was visited."""
    held = Scheduler()
    first, second = Client(clock, 1, visits=2), Client(clock, 1, visits=3)
    added(held, first, second)

    while held.busy:
        take_turn(held)

    assert first.alone == [False, False]
    assert second.alone == [False, False, True]


async def test_replies_come_before_visits(clock: Time) -> None:
    """Replies of a store come first, many in a turn, and visits share the turn with them."""
    held, order = Scheduler(), list[str]()
    client = Client(clock, 1, name="visit", visits=1)
    client.order = order
    added(held, client)
    for number in range(3):
        held.reply(lambda number=number: order.append(f"reply {number}"))  # type: ignore[misc]

    take_turn(held)

    assert order == ["reply 0", "reply 1", "reply 2", "visit", "VISIT"]


async def test_a_reply_at_once(clock: Time) -> None:
    """Where nothing else waits a reply is taken at once."""
    held, order = Scheduler(), list[str]()

    held.reply(lambda: order.append("reply"))

    assert order == ["reply"]
    assert not held.busy


@pytest.mark.parametrize("begun", [False, True])
async def test_steps_have_every_other_turn(clock: Time, begun: bool) -> None:
    """While clients wait, others' steps have one turn, and visits the next."""
    held, order = Scheduler(), list[str]()
    client = Client(clock, TURN_US, name="visit")
    client.order = order
    added(held, client)
    for _ in range(3):
        (held.go_on if begun else held.begin)(lambda: order.append("step"))

    for _ in range(6):
        take_turn(held)

    assert [each for each in order if each != "VISIT"] == ["step", "visit"] * 3


async def test_held_steps(clock: Time) -> None:
    """While steps are held no long work begins; what has begun goes on."""
    held, order = Scheduler(), list[str]()
    held.hold_steps()
    held.begin(lambda: order.append("first"))
    held.go_on(lambda: order.append("further"))

    for _ in range(3):
        take_turn(held)
    assert order == ["further"]
    assert not held.busy

    held.release_steps()
    take_turn(held)
    assert order == ["further", "first"]


class Failing(Client):
    """One that fails where it is told to."""

    where = ""

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        super().visit(now_us, most, each_us, alone=alone)
        if self.where == "visit":
            raise ZeroDivisionError
        return False

    def flush(self) -> None:
        if self.where == "end":
            raise ZeroDivisionError


@pytest.mark.parametrize("where", ["visit", "end"])
async def test_a_fault_of_one_client(clock: Time, where: str) -> None:
    """It is told to that client, which gets no more visits; the others of the turn are served."""
    held = Scheduler()
    failing, others = Failing(clock, 1), [Client(clock, 1, visits=2) for _ in range(2)]
    failing.where = where
    added(held, others[0], failing, others[1])

    while held.busy:
        take_turn(held)

    assert list(map(type, failing.failed)) == [ZeroDivisionError]
    assert failing.visits == 1
    assert [(each.visits, each.ends, each.failed) for each in others] == [(2, 2, [])] * 2


async def test_a_fault_in_deciding(clock: Time) -> None:
    """It is told to the loop, and each client writes what it has to say."""
    held, told = Scheduler(), list[object]()
    held.loop.set_exception_handler(lambda _loop, what: told.append(type(what["exception"])))

    def decide(now_us: int) -> None:
        raise ZeroDivisionError

    clients = [Client(clock, 1, 1, visits=1) for _ in range(2)]
    for each in clients:
        each.finish = decide
    added(held, *clients)

    take_turn(held)

    assert told == [ZeroDivisionError]
    assert [each.ends for each in clients] == [1, 1]


async def test_a_step_that_fails() -> None:
    """A fault in one's step is for the log of the loop, and costs nobody else their turn."""
    held, done, said = Scheduler(), asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: said.append(about["message"]))

    def fail() -> None:
        raise ValueError("of ours")

    held.begin(fail)
    held.go_on(fail)
    held.begin(done.set)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await done.wait()

    assert len(said) == 2


async def test_what_is_said_in_a_turn_is_written_before_the_next() -> None:
    """Also if something else that was to be said has failed; that is told to the loop."""
    held = Scheduler()
    said: list[str] = []
    told: list[object] = []
    held.loop.set_exception_handler(lambda _loop, what: told.append(type(what["exception"])))

    def fail() -> None:
        raise ZeroDivisionError

    def step() -> None:
        for work in (fail, lambda: said.append("this"), lambda: held.before_write(more)):
            held.before_write(work)
        assert not said

    def more() -> None:
        said.append("that")

    held.go_on(step)
    take_turn(held)

    assert said == ["this", "that"]
    assert told == [ZeroDivisionError]
    held.before_write(more)
    assert len(said) == 2
    await asyncio.sleep(0)
    assert said == ["this", "that", "that"]


async def test_deciding_that_takes_long(clock: Time) -> None:
    """However long it took to decide a call lately, each turn visits somebody."""
    held = Scheduler()

    def decide(now_us: int) -> None:
        clock.us += 10 * TURN_US

    client = Client(clock, 1, 1)
    client.finish = decide
    added(held, client)

    for _ in range(20):
        take_turn(held)

    assert client.visits == 20


@pytest.mark.parametrize(("us", "calls"), [(3 * TURN_US, 2), (240, 2)])
async def test_what_a_few_calls_take(clock: Time, us: int, calls: int) -> None:
    """Neither one stall while a few are decided nor many small batches make calls seem dear."""
    held = Scheduler()

    def decide(now_us: int) -> None:
        clock.us += us if us < TURN_US or client.visits == 1 else 20

    client = Client(clock, 1, calls)
    client.finish = decide
    added(held, client)

    for _ in range(30):
        take_turn(held)

    assert min(client.most) >= 90


def nothing(now_us: int) -> None: ...


async def test_cheap_calls_are_taken_to_cost_something(clock: Time) -> None:
    """After many batches that took no time a visit is still asked for a turn's work at most."""
    held = Scheduler()
    client = Client(clock, 1, 5)
    client.finish = nothing
    added(held, client)

    for _ in range(30):
        take_turn(held)

    assert max(client.most) <= TURN_US // 10


async def test_dear_calls_are_known(clock: Time) -> None:
    """What each batch shows is soon known: of dear calls fewer are taken in a visit."""
    held = Scheduler()

    def decide(now_us: int) -> None:
        clock.us += 20 * 100

    client = Client(clock, 1, 20)
    client.finish = decide
    added(held, client)

    for _ in range(30):
        take_turn(held)

    assert 20 <= client.most[-1] <= 25
