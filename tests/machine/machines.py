"""Walks over worlds in which more can happen: servers away, denials remembered, a full store."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import rule

from ratelimit_service.model import CounterSpec
from tests.machine import gateway, walk
from tests.machine.answers import Answer, Asked, Counted, by_policy
from tests.machine.gateway import Spoken
from tests.machine.in_redis import Cached
from tests.machine.losing import Failing, Losing
from tests.machine.machine import Machine
from tests.machine.meaning import Alone, Identity, Rule
from tests.machine.model import Model
from tests.machine.reservations import NOTHING, Reservation, ReservingMachine
from tests.machine.reserving import LONGEST_US, ONLY_ASKS, Wanted
from tests.machine.terms import SECOND
from tests.machine.walk import Requested
from tests.machine.world import DOMAIN, FullMemory, Told

GARBLED = (
    b"+OK\r\n",
    b":7\r\n",
    b"*0\r\n",
    b"*2\r\n:1\r\n:2\r\n",
    b"-ERR it is broken\r\n",
    b"$9\r\nhalf",
    b"HTTP/1.1 400 Bad Request\r\n",
)
"""What may be read in place of a script call's reply, and is none."""


MOST_TOLD_AT_ONCE = 5
"""What has been counted in so many counters is told in one script call."""


class Denial(NamedTuple):
    """What a process was told of a counter that had no room: when, and until when it has none."""

    asked_us: int
    passes_us: int
    spec: CounterSpec


class FailingMachine(Machine):
    """A walk in which processes lose their store and find it again."""

    world: Failing

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        alone = self.alone.get(number)
        if alone is None:
            return super().expected(number, descriptors, hits, one)
        if self.policy == "local":
            alone.share = self.world.share(number)
            known = by_policy(alone.decide(self.now, descriptors, hits, one.lease, alone=True))
        else:
            known = alone.without(descriptors, hits, self.policy)
        self.model.last = alone.last
        return known

    @rule(process=st.integers(0, 1), then=walk.requested)
    def lose(self, process: int, then: Requested) -> None:
        """A process loses its way to the store."""
        if process not in self.alone:
            self.world.lose(process)
            self.leave_alone(process)
        self.ask_then(then)

    def reaches(self, process: int, name: Identity) -> bool:
        return process not in self.alone

    def leave_alone(self, process: int) -> None:
        self.alone[process] = Model(DOMAIN, self.model.settings)
        self.alone[process].load(self.written)
        self.alone[process].overrides = self.model.overrides
        self.alone[process].now = self.now

    @rule(
        request=walk.request,
        process=st.integers(0, 1),
        instead=st.sampled_from([b"", b"", *GARBLED]),
    )
    def lose_the_reply(
        self, request: tuple[list[walk.Wish], int], process: int, instead: bytes
    ) -> None:
        """A process loses its store, which has counted what the process is never told.

        Also if the process reads something else in place of the reply.
        """
        self.idle = process in self.alone
        if self.idle:
            return
        wishes, hits = request
        descriptors = [self.asked(wish) for wish in wishes]
        self.world.lose_next_reply(process, instead)
        (one,) = self.world.run(self.world.processes[process].decide([(descriptors, hits)]))
        if one.hits:
            self.world.lose(process)
            self.world.asked([one])
            lease = next((hit.lease.hex() for hit in one.hits if hit.lease and not hit.refund), "")
            self.model.decide(self.now, descriptors, hits, lease)
            self.leave_alone(process)
        else:
            self.world.lose_no_reply(process)
        self.hold(process, descriptors, hits, one)
        if self.world.stood_still:
            self.begin_anew()

    @rule(request=walk.request, process=st.integers(0, 1))
    def cannot_send(self, request: tuple[list[walk.Wish], int], process: int) -> None:
        """A fault where hits are written to Redis: a policy decides, and none of them counts."""
        self.idle = process in self.alone or self.policy == "local"
        if self.idle:
            return
        wishes, hits = request
        descriptors = [self.asked(wish) for wish in wishes]
        one = self.world.run(self.world.processes[process].decide_unsent(descriptors, hits))
        if one.hits:
            self.compare(descriptors, one, self.model.without(descriptors, hits, self.policy))

    @rule(
        requests=walk.requests,
        process=st.integers(0, 1),
        lost=st.sampled_from(["", "call", "reply"]),
        dice=st.integers(0, 3),
        then=walk.requested,
    )
    def go_without(
        self,
        requests: list[tuple[list[walk.Wish], int]],
        process: int,
        lost: str,
        dice: int,
        then: Requested,
    ) -> None:
        """A process loses its store, is asked, and finds it again. That is slow, so it is rare."""
        self.idle = dice > 0
        if self.idle:
            return
        if process not in self.alone:
            self.world.lose(process)
            self.leave_alone(process)
        for wishes, hits in requests:
            self.decide([([self.asked(wish) for wish in wishes], hits)], process)
        self.find_again(process, lost, then)

    @rule(process=st.integers(0, 1), then=walk.requested)
    def find(self, process: int, then: Requested) -> None:
        """A process finds its store again, and tells what it has counted without it."""
        self.find_again(process, "", then)

    def find_again(self, process: int, lost: str, then: Requested) -> None:
        """As `find`; the call in which the process tells, or the reply to it, may be lost.

        "If the reply to that is lost, it is told again": what had been counted counts twice.
        A process that has lost its store again begins to count anew.
        """
        self.idle = process not in self.alone
        if self.idle:
            return
        owed, since = [], self.now
        if lost:
            alone = self.alone[process]
            if lost == "reply" and len(alone.counters) > MOST_TOLD_AT_ONCE:
                lost = "call"
            if self.world.find_in_vain(process, lost):
                self.model.told(alone.counters, self.now, self.now)
            if self.world.stood_still:
                self.begin_anew()
                return
            if self.world.lost(process):
                owed.append((alone, since))
                stalls = self.world.stalls
                self.leave_alone(process)
                self.ask_then(then)
                if self.world.stalls > stalls:
                    return
        owed.append((self.alone.pop(process), self.now))
        self.world.find(process)
        for each, since in owed:
            self.model.told(each.counters, self.now, since)
            self.model.latest = max(self.model.latest, each.latest, self.now)
        if self.world.stood_still:
            self.begin_anew()


class FailingReservingMachine(FailingMachine, ReservingMachine):
    """A walk in which processes reserve and settle, too, also while they have lost their store."""

    def begin_stream(
        self, wishes: list[walk.Wish], held: walk.Held, process: int, seam: str = ""
    ) -> None:
        if process not in self.alone:
            super().begin_stream(wishes, held, process, seam)
            return
        hold_id, asked = self.stream_of(wishes, held)
        one = self.world.run(
            gateway.reserve(self.world.processes[process], asked, held.hits, held.ttl, hold_id)
        )
        meant = [each._replace(addend=held.hits, negative=False) for each in asked]
        self.look_alone(one, meant, Wanted("", LONGEST_US), process)

    def end_stream(self, known: Reservation, used: int, process: int, seam: str = "") -> None:
        """Rule: "Commit is tried again for some time": in vain, so the hold waits for its end."""
        if process not in self.alone:
            super().end_stream(known, used, process, seam)
            return
        asked = known.descriptors
        one = self.world.run(gateway.settle(self.world.processes[process], asked, used, known.id))
        assert one == (True, known.id, False, False, one.hits)

    def call(
        self, method: str, asked: list[Asked], hits: int, meant: list[Asked], process: int
    ) -> None:
        if process not in self.alone:
            super().call(method, asked, hits, meant, process)
            return
        one = self.world.run(gateway.call(self.world.processes[process], method, asked, hits))
        if method == "Report":
            assert one == (True, "", False, False, one.hits)
        else:
            self.look_alone(one, meant, ONLY_ASKS, process)

    def look_alone(self, one: Spoken, meant: list[Asked], wanted: Wanted, process: int) -> None:
        """Holds what was told without the store against the model: "with an empty id"."""
        told = self.model.reserve_without(meant, wanted, self.policy)
        passes = not (told.over or told.failed)
        if one.hits:
            assert one.id == ""
        assert (one.passes, one.failed, one.held) == (passes, told.failed, False), meant
        self.decide([([each._replace(addend=0) for each in meant], 0)], process)

    @rule(which=st.integers(0, 9), used=walk.used, process=st.integers(0, 1))
    def lose_the_reply_to_a_settle(self, which: int, used: int, process: int) -> None:
        """A process loses its store, which has settled what the process is never told: once."""
        self.idle = process in self.alone or not self.reservations
        if self.idle:
            return
        hold_id, asked = self.reservations[-1 - which % len(self.reservations)]
        self.world.lose_next_reply(process, b"")
        one = self.world.run(gateway.settle(self.world.processes[process], asked, used, hold_id))
        if not one.hits:
            self.world.lose_no_reply(process)
            return
        self.world.lose(process)
        self.world.asked([Told(NOTHING, "", one.hits)])
        meant = [each._replace(addend=used, negative=False) for each in asked]
        self.model.settle(self.now, meant, hold_id)
        self.leave_alone(process)
        assert one == (True, hold_id, False, False, one.hits)
        self.keys.update(zip(self.model.last, [hit.key for hit in one.hits], strict=False))
        self.hits.update({hit.key: hit for hit in one.hits})
        if self.world.stood_still:
            self.begin_anew()


class LosingMachine(Machine):
    """A walk in which each process can lose single shards of a ring, and find them again.

    Shards are as they were then, or empty.
    """

    world: Losing
    grants = False

    def start(self, rules: list[Rule]) -> None:
        self.away: set[tuple[int, int]] = set()
        """The processes with the shards that they have lost."""
        super().start(rules)

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        missing = self.world.missing(number, one.hits)
        if not any(missing):
            return super().expected(number, descriptors, hits, one)
        lease = next((hit.lease.hex() for hit in one.hits if hit.lease and not hit.refund), "")
        expected = self.model.decide_partly(
            self.now, descriptors, hits, lease, missing, self.policy
        )
        if expected.failed:
            return expected._replace(counted=one.answer.counted)
        got = one.answer
        # What else is said beside a decision by policy, the documents leave open.
        return expected._replace(
            limits=got.limits, soft=got.soft, delay_ms=got.delay_ms, leased=got.leased
        )

    def drop_request(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> None:
        missing = self.world.missing(number, one.hits)
        self.model.drop(self.now, descriptors, hits, missing, self.policy)
        self.note_keys(one)
        for name, hit in zip(self.model.last, one.hits, strict=True):
            # Hits without room are not told which window they are in. If the clock has stepped
            # back, "the counter holds more rather than less" when they are given back.
            counter = self.model.counters.get(name)
            if hit.count_denied and counter and (counter.changed or 0) > self.now:
                self.drop(name)
        self.start_anew(given_back=True)

    def drop(self, name: Identity) -> None:
        if isinstance(name, Alone):
            del self.model.counters[name]
            self.world.forget_alone(name.process, name.shard, self.hits[self.keys[name]])
        else:
            super().drop(name)

    def reaches(self, process: int, name: Identity) -> bool:
        return not any(self.world.missing(process, [self.hits[self.keys[name]]]))

    @rule(wishes=st.lists(walk.wish, min_size=3, max_size=6), process=st.integers(0, 1))
    def ask_widely(self, wishes: list[walk.Wish], process: int) -> None:
        """A request whose counters lie in several shards, of which some may be away."""
        self.decide([([self.asked(wish) for wish in wishes], 0)], process)

    @rule(shard=st.integers(0, 2), process=st.integers(0, 1), then=walk.requested)
    def lose(self, shard: int, process: int, then: Requested) -> None:
        """A process loses a shard."""
        process %= len(self.world.processes)
        if (process, shard) not in self.away:
            self.away.add((process, shard))
            self.world.lose(process, shard)
        self.ask_then(then)

    @rule(wish=walk.wish, process=st.integers(0, 1), shard=st.integers(0, 2))
    def lose_the_reply(self, wish: walk.Wish, process: int, shard: int) -> None:
        """A process loses a shard, which has counted what the process is never told."""
        process %= len(self.world.processes)
        self.idle = (process, shard) in self.away
        if self.idle:
            return
        asked = self.asked(wish)
        self.drop_leaked(self.model.rates([asked]))
        self.world.lose_next_reply(process, shard)
        (one,) = self.world.run(self.world.processes[process].decide([([asked], 0)]))
        self.world.lose_no_reply(process, shard)
        if self.world.lost(process, shard):
            self.away.add((process, shard))
            self.world.lose(process, shard)
            lease = next((hit.lease.hex() for hit in one.hits if hit.lease and not hit.refund), "")
            self.model.decide(self.now, [asked], 0, lease)
            self.note_keys(one)
        self.world.asked([one])
        if self.world.stood_still:
            self.begin_anew()
            return
        self.hold(process, [asked], 0, one)

    @rule(shard=st.integers(0, 2), then=walk.requested)
    def empty(self, shard: int, then: Requested) -> None:
        """A shard loses its data; its counters are new, also those that nobody has lost."""
        for name in self.world.names_in(shard, self.keys):
            self.model.counters.pop(name, None)
        self.world.empty(shard)
        self.ask_then(then)

    @rule(
        which=st.integers(0, 5),
        lost=st.sampled_from(["", "", "", "call", "reply"]),
        then=walk.requested,
    )
    def find(self, which: int, lost: str, then: Requested) -> None:
        """A process finds a shard again, and tells what it has counted without it.

        That call, or the reply to it, may be lost.
        """
        self.idle = not self.away
        if self.idle:
            return
        process, shard = sorted(self.away)[which % len(self.away)]
        self.drop_leaked(self.model.rates_alone(process, shard))
        owed, since = [], self.now
        if lost:
            alone = self.model.take_alone(process, shard)
            if lost == "reply" and len(alone) > MOST_TOLD_AT_ONCE:
                lost = "call"
            if self.world.find_in_vain(process, shard, lost):
                self.model.told(alone, self.now, self.now)
            if self.world.stood_still:
                self.begin_anew()
                return
            if self.world.lost(process, shard):
                owed.append((alone, since))
                stalls = self.world.stalls
                self.ask_then((then[0], then[1], process))
                if self.world.stalls > stalls:
                    return
            else:
                self.model.told(alone, self.now, self.now)
        owed.append((self.model.take_alone(process, shard), self.now))
        self.away.remove((process, shard))
        self.world.find(process, shard)
        for each, since in owed:
            self.model.told(each, self.now, since)
        if self.world.stood_still:
            self.begin_anew()
        else:
            self.ask_then(then)


class CachedMachine(Machine):
    """A walk in which processes deny by what they know, for a second at most."""

    world: Cached

    def start(self, rules: list[Rule]) -> None:
        self.denials: dict[tuple[int, bytes], Denial] = {}
        self.told_last = b""
        """The key of the last hit that a process was told of."""
        super().start(rules)

    def reset_at(self, process: int, name: Identity) -> None:
        """A process that resets a counter forgets what it knows of it; others learn it later."""
        super().reset_at(process, name)
        self.denials.pop((process, self.keys[name]), None)

    @rule(wish=walk.wish, process=st.integers(0, 1), pause=walk.short_pauses)
    def fill(self, wish: walk.Wish, process: int, pause: int) -> None:
        """Single hits until they are denied, and more soon after."""
        asked = self.asked(wish)._replace(addend=None, negative=False)
        for _ in range(12):
            self.decide([([asked], 0)], process)
            if self.denials.get((process, self.told_last)):
                break
        if self.set_clock(self.now + pause):
            self.decide([([asked], 0)], process)
            self.decide([([asked], 0)], 1 - process)

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        """The model's answer, or what this process may believe.

        "A key of which not even one hit would pass is remembered for as long as that holds, one
        second at most [...]. What is given back, or a raised limit, so reaches other processes
        within a second, this one at once."
        """
        now = self.world.elapsed_us
        if self.world.knew(number):
            results = []
            for hit in one.hits:
                denial = self.denials[number, hit.key]
                assert denial.spec == hit.spec, f"{hit} was denied by {denial}"
                assert now < min(denial.passes_us, denial.asked_us + SECOND), f"{now}: {denial}"
                results.append(Counted(True, 0, denial.passes_us - now, 0))
            return self.model.known_over(descriptors, hits, results)
        expected = self.model.decide(self.now, descriptors, hits, one.lease)
        keys = [hit.key for hit in one.hits]
        for hit, name, result in zip(one.hits, self.model.last, one.answer.counted, strict=True):
            if hit.refund:
                self.denials.pop((number, hit.key), None)
            elif not result.over:
                # Hits of another rate may have let the bucket leak faster.
                known = self.denials.get((number, hit.key))
                if known is not None and known.spec.rate != hit.spec.rate:
                    del self.denials[number, hit.key]
            elif hit.addend == 1 and keys.count(hit.key) == 1:
                # Of several hits on one key it learns nothing: one of them may have filled it.
                counter = self.model.counters.get(name)
                if counter is None or not counter.remaining(counter.terms, self.now):
                    denial = Denial(now, now + result.reset_us, hit.spec)
                    self.denials[number, hit.key] = denial
        self.told_last = one.hits[-1].key if one.hits else b""
        return expected


class FullMachine(Machine):
    """A walk in a full store: it forgets what it says that it forgets, and nothing else."""

    world: FullMemory

    def start(self, rules: list[Rule]) -> None:
        self.put_out = 0
        super().start(rules)

    def decide(self, batch: list[tuple[list[Asked], int]], number: int) -> None:
        for one in batch:
            super().decide([one], number)
            self.forget()

    def fail(self, descriptors: list[Asked], hits: int, number: int, seam: str) -> None:
        super().fail(descriptors, hits, number, seam)
        self.forget()

    def forget(self) -> None:
        """Has the model forget what the store put out, which is no more than it says."""
        lost = []
        for name, key in self.keys.items():
            counter = self.model.counters.get(name)
            if counter is None or self.world.has(key):
                continue
            counter.look(self.now)
            if counter.used(counter.terms, self.now):
                lost.append(f"{key!r}: {vars(counter)}")
            del self.model.counters[name]
            self.lost.add(name)
        told = self.world.put_out - self.put_out
        assert len(lost) <= told, "\n".join([f"{told} told, {len(lost)} lost:", *lost])
        self.put_out = self.world.put_out
