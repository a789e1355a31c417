"""Walks on which hits are reserved and settled, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.machine import gateway, walk
from tests.machine.answers import Answer, Asked
from tests.machine.gateway import Spoken
from tests.machine.machine import Machine
from tests.machine.meaning import Rule
from tests.machine.reserving import LONGEST_US, ONLY_ASKS, Wanted
from tests.machine.terms import SECOND
from tests.machine.walk import Requested
from tests.machine.world import Told

UNKNOWN = "0f" * 16
"""An id that nobody was told."""

SEAMS = ("charge", "plan", "settle", "after the charge")
"""Where a fault of the service's own can be: the last two come once it is counted."""


class Reservation(NamedTuple):
    """What a caller knows of what it has reserved."""

    id: str
    descriptors: Sequence[Asked]


class ReservingMachine(Machine):
    """A walk with reservations."""

    def start(self, rules: list[Rule]) -> None:
        self.reservations: list[Reservation] = []
        super().start(rules)

    @rule(wishes=walk.wishes, held=walk.held, process=st.integers(0, 1), beside=walk.used)
    def reserve(self, wishes: list[walk.Wish], held: walk.Held, process: int, beside: int) -> None:
        """A stream begins, or goes on for longer; a request meets what it holds."""
        self.begin_stream(wishes, held, process)
        if self.reservations:
            asked = self.reservations[-1].descriptors
            request = [each._replace(addend=beside, negative=False) for each in asked]
            self.decide([(request, 0)], process)

    @rule(
        wishes=walk.wishes,
        held=walk.held,
        process=st.integers(0, 1),
        seam=st.sampled_from(SEAMS),
    )
    def reserve_in_vain(
        self, wishes: list[walk.Wish], held: walk.Held, process: int, seam: str
    ) -> None:
        """A fault of the service's own: what may be held nobody settles, until it ends."""
        self.begin_stream(wishes, held, process, seam)

    @rule(
        which=st.integers(0, 9),
        used=walk.used,
        by=st.sampled_from(["", "", "", "", "unknown", "none", "others"]),
        then=walk.requested,
    )
    def settle(self, which: int, used: int, by: str, then: Requested) -> None:
        """A stream has ended; maybe it was settled before, or by another id or descriptors."""
        wishes, _, process = then
        self.idle = not self.reservations
        if self.idle:
            return
        hold_id, descriptors = self.reservations[-1 - which % len(self.reservations)]
        if by == "others":
            descriptors = [self.asked(wish) for wish in wishes]
        hold_id = {"unknown": UNKNOWN, "none": ""}.get(by, hold_id)
        self.end_stream(Reservation(hold_id, descriptors), used, process)

    @rule(
        which=st.integers(0, 9),
        used=walk.used,
        process=st.integers(0, 1),
        seam=st.sampled_from(SEAMS),
    )
    def settle_in_vain(self, which: int, used: int, process: int, seam: str) -> None:
        """A fault of the service's own: it is settled again, and counts once."""
        self.idle = not self.reservations
        if self.idle:
            return
        known = self.reservations[-1 - which % len(self.reservations)]
        self.end_stream(known, used, process, seam)
        self.end_stream(known, used, process)

    @rule(
        request=walk.request,
        process=st.integers(0, 1),
        method=st.sampled_from(["CheckRateLimit", "Report"]),
    )
    def ask_or_report(
        self, request: tuple[list[walk.Wish], int], process: int, method: str
    ) -> None:
        """Asks whether hits would fit, or counts hits whatever the limits say."""
        wishes, hits = request
        asked = [self.asked(wish) for wish in wishes]
        # "Without a number it asks for 1."
        numbers = [hits or 1 if each.addend is None else each.addend for each in asked]
        meant = [
            each._replace(addend=number, negative=False)
            for each, number in zip(asked, numbers, strict=True)
        ]
        self.call(method, asked, hits, meant, process % len(self.world.processes))

    def call(
        self, method: str, asked: list[Asked], hits: int, meant: list[Asked], process: int
    ) -> None:
        """Asks or reports; `meant` are the descriptors with the numbers that they mean."""
        one = self.world.run(gateway.call(self.world.processes[process], method, asked, hits))
        if not self.noted(one):
            return
        if method == "Report":
            self.model.settle(self.now, meant, "")
            expected = (True, "", False)
        else:
            denied, _ = self.model.reserve(self.now, meant, ONLY_ASKS)
            expected = (not denied, "", False)
        self.look(f"{method} {hits}", one, expected, meant, process)

    def stream_of(self, wishes: list[walk.Wish], held: walk.Held) -> Reservation:
        """What is to be reserved: by the id and the descriptors of one of before, or by no id."""
        if held.again is not None and self.reservations:
            return self.reservations[-1 - held.again % len(self.reservations)]
        return Reservation("", [self.asked(wish) for wish in wishes])

    def begin_stream(
        self, wishes: list[walk.Wish], held: walk.Held, process: int, seam: str = ""
    ) -> None:
        """Reserves hits by a new id, or by a known one."""
        hold_id, asked = self.stream_of(wishes, held)
        process %= len(self.world.processes)
        meant = [each._replace(addend=held.hits, negative=False) for each in asked]
        one = self.world.run(
            gateway.reserve(
                self.world.processes[process], asked, held.hits, held.ttl, hold_id, seam
            )
        )
        if not self.noted(one):
            return
        if one.failed and not one.hits:
            self.look("in vain", one, (False, "", False), meant, process, seam)
            return
        known = (
            hold_id
            or one.id
            or next((hit.lease.hex()[:32] for hit in one.hits if len(hit.lease) >= 16), "")
        )
        ttl_us = min(held.ttl * SECOND or LONGEST_US, LONGEST_US)
        denied, holds = self.model.reserve(self.now, meant, Wanted(known, ttl_us, bool(hold_id)))
        if not denied and one.id:
            self.reservations.append(Reservation(one.id, asked))
        passes = not denied
        expected = (passes, known if passes else "", holds)
        if hold_id and denied and not self.world.settles_in_order and not one.failed:
            # "Where its limits lie in several stores, the old one can then hold fewer hits, for
            # longer": nobody knows which, so it ends here.
            assert not one.passes
            self.end_stream(Reservation(hold_id, asked), 0, process)
            return
        self.look(f"reserve {held} {seam}", one, expected, meant, process, seam)

    def end_stream(self, known: Reservation, used: int, process: int, seam: str = "") -> None:
        """Settles a reservation."""
        hold_id, asked = known
        process %= len(self.world.processes)
        meant = [each._replace(addend=used, negative=False) for each in asked]
        one = self.world.run(
            gateway.settle(self.world.processes[process], asked, used, hold_id, seam)
        )
        if not self.noted(one):
            return
        if one.failed and not one.hits:
            self.look("in vain", one, (False, "", False), meant, process, seam)
            return
        held = self.model.settle(self.now, meant, hold_id)
        self.look(f"settle {used} {seam}", one, (True, hold_id, held), meant, process, seam)

    def noted(self, one: Spoken) -> bool:
        """Notes what a call has asked of the store; returns whether the walk goes on."""
        self.world.asked([Told(NOTHING, "", one.hits)])
        if self.world.stood_still:
            self.begin_anew()
        return not self.world.stood_still

    def look(
        self,
        what: str,
        one: Spoken,
        expected: tuple[bool, str, bool],
        meant: Sequence[Asked],
        process: int,
        seam: str = "",
    ) -> None:
        """Holds what a call was told against the model, and then all that its counters show."""
        got = (one.passes, one.id, one.held)
        named = {key for asked in meant for key, _ in asked.entries}
        lines = [
            what,
            *map(str, meant),
            *(str(each) for each in self.written if each["key"] in named),
        ]
        lines += [
            f"{name}: {vars(self.model.counters[name])}"
            for name in self.model.last
            if name in self.model.counters
        ]
        lines += [f"got  {got}", f"want {expected}"]
        assert got == expected or (one.failed and seam), "\n".join(lines)
        ends: list[int] = []
        for name, hit in zip(self.model.last, one.hits, strict=False):
            self.keys[name] = hit.key
            if name in self.model.counters:
                ends += self.model.counters[name].holds.ends
        self.hits.update({hit.key: hit for hit in one.hits})
        if not self.world.settles_in_order:
            self.start_anew(given_back=not one.passes)
        self.decide([([each._replace(addend=0) for each in meant], 0)], process)
        self.edges += [end for end in ends if end > self.now]


NOTHING = Answer(False, (), (), False, None, False, ())
