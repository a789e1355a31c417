"""One walk, step by step against the model: what may come next, and what must then be told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ratelimit_service.model import Hit, Mode
from tests.machine import walk
from tests.machine.answers import FAILED, Answer, Asked, Counted
from tests.machine.meaning import Alone, Identity, Override, Rule, Settings
from tests.machine.model import Model
from tests.machine.walk import Requested
from tests.machine.world import DOMAIN, SEAMS, Told, World


def told_of_grants(hits: Sequence[Hit], counted: tuple[Counted, ...]) -> tuple[Counted, ...]:
    """The same, without the resets of grants that have taken nothing: nobody is told of these."""
    if len(hits) != len(counted):
        return counted
    return tuple(
        one._replace(reset_us=0) if hit.mode is Mode.GRANT and not one.counted else one
        for hit, one in zip(hits, counted, strict=True)
    )


class Machine(RuleBasedStateMachine):
    """A walk over one world.

    A step that cannot be gone is idle. It is not left out, since what may come next must not follow
    from what came before: a stall of the machine makes a walk begin anew, and hypothesis takes it
    for a fault of the walk if the same choices then lead elsewhere.
    """

    world: World

    grants = True
    """Whether operators grant hits."""

    @initialize(settings=walk.settings, policy=walk.policies, rules=walk.rules)
    def begin(self, settings: Settings, policy: str, rules: list[Rule]) -> None:
        self.settings, self.policy, self.fresh = settings, policy, 0
        self.idle = True
        """Whether this step has not done anything."""
        self.start(rules)

    def start(self, rules: list[Rule]) -> None:
        """Begins in an empty world."""
        self.world.begin(self.settings, self.policy)
        self.model = Model(DOMAIN, self.settings)
        self.model.now = self.now
        self.lost: set[Identity] = set()
        """The counters that were lost, of which processes may know that they were full."""
        self.spent: set[Identity] = set()
        """The grants that were spent, which processes know for a while."""
        self.alone: dict[int, Model] = {}
        """What processes count that have lost their store."""
        self.keys: dict[Identity, bytes] = {}
        """The service's keys of the model's counters."""
        self.hits: dict[bytes, Hit] = {}
        """The last hit on each key."""
        self.overridden = 0
        """How many overrides there were."""
        self.leases: list[str] = []
        self.last: list[tuple[list[Asked], int]] = []
        """The last request."""
        self.edges: list[int] = []
        self.load(rules)

    def begin_anew(self) -> None:
        """Goes on from the start where Redis may have dropped what was just counted."""
        self.world.stalls += 1
        self.idle = True
        self.start(self.written)

    def load(self, rules: list[Rule]) -> None:
        self.written = rules
        for each in (self.model, *self.alone.values()):
            each.load(rules)
        self.world.load(rules)

    @property
    def now(self) -> int:
        return self.world.clock.now_us

    @invariant()
    def count(self) -> None:
        """Counts the steps that did something; called after each."""
        self.world.steps += not self.idle
        self.idle = False

    @rule(requests=walk.requests, process=st.integers(0, 9))
    def ask(self, requests: list[tuple[list[walk.Wish], int]], process: int) -> None:
        """Requests one after the other."""
        for wishes, hits in requests:
            self.decide([([self.asked(wish) for wish in wishes], hits)], process)

    @rule(requests=walk.requests, process=st.integers(0, 9))
    def ask_at_once(self, requests: list[tuple[list[walk.Wish], int]], process: int) -> None:
        """Requests in one batch."""
        if not self.world.settles_in_order:
            self.idle = True
            return
        batch = [([self.asked(wish) for wish in wishes], hits) for wishes, hits in requests]
        self.decide(batch, process)

    @rule(process=st.integers(0, 1), pause=walk.short_pauses)
    def ask_again(self, process: int, pause: int) -> None:
        """The last request once more, soon after."""
        self.idle = not self.last
        if self.last and self.set_clock(self.now + pause):
            self.decide(self.last, process)

    def ask_then(self, requested: Requested) -> None:
        """A request after something else has happened, which shows what came of that."""
        wishes, hits, process = requested
        self.decide([([self.asked(wish) for wish in wishes], hits)], process)

    def asked(self, wish: walk.Wish) -> Asked:
        value = wish.value
        if value == "new":
            self.fresh += 1
            value = f"new-{self.fresh}"
        node = self.written[wish.rule % len(self.written)]
        entries = [(node["key"], value)]
        if wish.deeper:
            entries.append(("deep", value))
        negative = wish.addend is not None and wish.addend < 0
        if negative and wish.lease and self.leases:
            entries.append(("lease", self.leases[wish.lease % len(self.leases)]))
        addend = abs(wish.addend) if wish.addend is not None else None
        return Asked(tuple(entries), addend, negative, wish.limit)

    def decide(self, batch: list[tuple[list[Asked], int]], number: int) -> None:
        self.last = batch[-1:]
        number %= len(self.world.processes)
        for descriptors, _ in batch:
            self.drop_leaked(self.model.rates(descriptors))
        told = self.world.run(self.world.processes[number].decide(batch))
        if number not in self.alone:
            self.world.asked(told)
        if self.world.stood_still:
            self.begin_anew()
            return
        for (descriptors, hits), one in zip(batch, told, strict=True):
            self.hold(number, descriptors, hits, one)
        models = (self.model, *self.alone.values())
        if not all(each.may_be(self.now) for each in models):
            self.set_clock(max(each.latest for each in models))

    def hold(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> None:
        """Holds what was told against the model, and notes what it tells."""
        self.leave_out(descriptors, hits, one)
        self.compare(descriptors, one, self.expected(number, descriptors, hits, one))
        self.note(one)

    def leave_out(self, descriptors: list[Asked], hits: int, one: Told) -> None:
        """Has the models leave out the grants that the process knows to be spent.

        It may know that only of those that were spent, also if the clock has stepped back since.
        """
        models = (self.model, *self.alone.values())
        for each in models:
            each.left_out = frozenset()
        if not one.hits:
            return
        keys, left_out = iter([hit.key for hit in one.hits]), set()
        meant = self.model.meanings(descriptors, hits)
        for grants in [grants for each in meant for grants in each.grants]:
            asked = list(takewhile(lambda key: key[10:11] == b"+", keys))
            for grant in grants:
                if any(key[11:19] == b"%08x" % grant.made for key in asked):
                    continue
                left_out.add(grant.name)
                known = grant.name in self.lost | self.spent
                assert known, f"{grant} was left out, and is not spent"
        for each in models:
            each.left_out = frozenset(left_out)

    def note(self, one: Told) -> None:
        """Notes what a request tells for those after it."""
        self.note_keys(one)
        self.note_spent()
        if one.lease:
            self.leases.append(one.lease)
        if not self.world.settles_in_order:
            answer = one.answer
            over = any(each.over for each in answer.counted)
            self.start_anew(given_back=over or answer.over or answer.failed)
        self.edges = [self.now + each.reset_us for each in one.answer.counted]

    def note_spent(self) -> None:
        """Notes the grants of which nothing is left."""
        for each in (self.model, *self.alone.values()):
            self.spent |= {
                name
                for name, counter in each.counters.items()
                if "grant" in name and not counter.remaining(counter.terms, self.now)
            }

    def note_keys(self, one: Told) -> None:
        """Notes the keys of the counters that the model has just counted in."""
        for name, hit in zip(self.model.last, one.hits, strict=False):
            self.keys[name] = hit.key
            if isinstance(name, Alone):  # once it is told, the server has a counter of this name
                self.keys[name.name] = hit.key
        self.hits.update({hit.key: hit for hit in one.hits})

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        """The model's answer to a request that a process was asked."""
        return self.model.decide(self.now, descriptors, hits, one.lease)

    @rule(request=walk.request, process=st.integers(0, 9), seam=st.sampled_from(SEAMS))
    def ask_in_vain(self, request: tuple[list[walk.Wish], int], process: int, seam: str) -> None:
        """A fault of the service's own: the request is refused, once.

        Before its store is asked nothing counts. Afterwards what it was charged is given back, as
        far as anybody knows what that is.
        """
        wishes, hits = request
        process %= len(self.world.processes)
        self.fail([self.asked(wish) for wish in wishes], hits, process, seam)

    def fail(self, descriptors: list[Asked], hits: int, number: int, seam: str) -> None:
        self.drop_leaked(self.model.rates(descriptors))
        one = self.world.run(self.world.processes[number].fail(descriptors, hits, seam))
        if not one.hits:
            return
        if number not in self.alone:
            self.world.asked([one])
        if self.world.stood_still:
            self.begin_anew()
            return
        if one.dropped:
            self.drop_request(number, descriptors, hits, one)
            return
        self.leave_out(descriptors, hits, one)
        expected = self.expected(number, descriptors, hits, one)
        self.compare(descriptors, one, FAILED._replace(counted=expected.counted))
        self.note(one)
        # Others may count on the same key under another name, each alone.
        names = {hit.key: name for name, hit in zip(self.model.last, one.hits, strict=False)}
        for hit, outcome in one.given_back:
            given = self.model.give_back(self.now, names[hit.key], hit.addend, hit.lease.hex())
            assert outcome is not None
            assert outcome.charged in (given, 0)  # nothing, where the counter was put out since

    @rule(request=walk.request, process=st.integers(0, 9))
    def ask_unknowing(self, request: tuple[list[walk.Wish], int], process: int) -> None:
        """The store cannot say how long a request would wait: it is decided all the same."""
        wishes, hits = request
        recorder = self.world.processes[process % len(self.world.processes)].recorder
        recorder.seam = "wait"
        self.decide([([self.asked(wish) for wish in wishes], hits)], process)
        recorder.seam = ""

    def drop_request(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> None:
        """A request that nobody waits for any more "before it is sent to Redis is [...] uncounted".

        Then nothing has changed.
        """

    @precondition(lambda self: self.world.has_scripts)
    @rule(then=walk.requested)
    def forget_scripts(self, then: Requested) -> None:
        """Redis forgets its scripts, as a restart or SCRIPT FLUSH makes it do."""
        self.world.forget_scripts()
        self.ask_then(then)

    @rule(
        wish=walk.wish,
        kind=st.sampled_from(["limit", "exempt", "ban"]),
        number=st.sampled_from([20, 1, 7]),
        wide=st.booleans(),
        then=walk.requested,
    )
    def override(
        self, wish: walk.Wish, kind: str, number: int, wide: bool, then: Requested
    ) -> None:
        """An operator says something of a descriptor, or of all whose last value begins so."""
        self.idle = self.settings.shadow_mode or self.settings.quota_mode
        if not self.idle:
            self.put_in_force(self.asked(wish._replace(addend=None)), kind, number, wide=wide)
            self.ask_then(then)

    @rule(
        wish=walk.wish,
        number=st.sampled_from([2, 1, 7]),
        wide=st.booleans(),
        requests=walk.requests,
        process=st.integers(0, 1),
    )
    def grant(
        self,
        wish: walk.Wish,
        number: int,
        wide: bool,
        requests: list[tuple[list[walk.Wish], int]],
        process: int,
    ) -> None:
        """An operator grants hits to one who then asks, or to all whose last value begins so.

        Where limits pay in turn a grant is one of them, which `tests/service/test_turns.py` holds.
        """
        self.idle = not self.grants or self.settings.shadow_mode or self.settings.quota_mode
        if self.idle:
            return
        asked = self.asked(wish._replace(addend=None, limit=None))
        in_turn = [node["key"] for node in self.written if node.get("charge") == "first"]
        self.idle = asked.entries[0][0] in in_turn
        if self.idle:
            return
        self.put_in_force(asked, "grant", number, wide=wide)
        for wishes, hits in requests:
            self.decide([([asked, *map(self.asked, wishes)], hits)], process)

    def put_in_force(self, asked: Asked, kind: str, number: int, *, wide: bool) -> None:
        """Makes an override."""
        (*before, (key, value)) = asked.entries
        self.overridden += 1
        entries = (*before, (key, value[:1] + "*" if wide else value))
        at = self.now if kind == "grant" else 0
        one = Override(kind, entries, number, self.overridden, at)
        self.model.overrides.append(one)
        self.world.override(one)

    @rule(which=st.integers(0, 9), then=walk.requested)
    def remove_override(self, which: int, then: Requested) -> None:
        """An operator takes back what was said."""
        overrides = self.model.overrides
        self.idle = not overrides
        if self.idle:
            return
        self.world.override(overrides.pop(which % len(overrides)), away=True)
        self.ask_then(then)

    @rule(which=st.integers(0, 9), process=st.integers(0, 1), then=walk.requested)
    def reset(self, which: int, process: int, then: Requested) -> None:
        """A counter is reset: "lets the counters of a descriptor start again, each atomically"."""
        # A process that is alone counts under keys that are not noted before it asks the server.
        known = [name for name in self.model.counters if name in self.keys]
        known = [name for name in known if not isinstance(name, Alone)]
        self.idle = not known
        if self.idle:
            return
        self.reset_at(process % len(self.world.processes), known[which % len(known)])
        if self.world.stood_still:
            self.begin_anew()
        else:
            self.ask_then(then)

    def reset_at(self, process: int, name: Identity) -> None:
        done = self.world.reset(process, self.hits[self.keys[name]])
        assert done == self.reaches(process, name), "a reset needs the counter's server"
        if done:
            del self.model.counters[name]
            self.lost.add(name)

    def reaches(self, process: int, name: Identity) -> bool:
        """Whether a process can ask the server of a counter."""
        return True

    def start_anew(self, *, given_back: bool) -> None:
        """Forgets what counts nothing now, but would if the clock stepped to where it counted.

        Where a denied request was charged in several places, giving it back leaves a new counter.
        """
        for name in dict.fromkeys(self.model.last):
            counter = self.model.counters.get(name)
            if counter is None:
                continue
            if given_back:
                counter.given_back_at = self.now
            if counter.damaged(self.now) or not counter.used(counter.terms, self.now):
                self.drop(name)

    def drop_leaked(self, rates: Mapping[Identity, Collection[int]]) -> None:
        """Forgets buckets that may have leaked by another rate than is now asked for.

        Where a charge is given back, "what has leaked stays so, also if the rate changes
        afterwards": then, or in the same request.
        """
        if self.world.settles_in_order:
            return
        for name, counter in list(self.model.counters.items()):
            asked = rates.get(name.name if isinstance(name, Alone) else name)
            if asked and counter.leaked_by_another(asked):
                self.drop(name)

    def drop(self, name: Identity) -> None:
        """Has the service and the model forget a counter, and not what is held beside it."""
        counter = self.model.counters[name]
        counter.forget()
        if not counter.holds:
            del self.model.counters[name]
        self.lost.add(name)
        self.world.forget(self.keys[name])

    def compare(self, descriptors: list[Asked], one: Told, expected: Answer) -> None:
        """Holds an answer against the model's."""
        got = one.answer._replace(counted=told_of_grants(one.hits, one.answer.counted))
        expected = expected._replace(counted=told_of_grants(one.hits, expected.counted))
        if self.model.delay_us % 1_000 == 1 and expected.delay_ms:
            # "exact to a microsecond": that can be the one above a whole millisecond.
            fewer = expected._replace(delay_ms=expected.delay_ms - 1)
            expected = fewer if got == fewer else expected
        if got == expected:
            return
        lines = ["", *map(str, descriptors), *map(str, expected.statuses)]
        named = {key for asked in descriptors for key, _ in asked.entries}
        lines += [str(rule) for rule in self.written if rule["key"] in named]
        for name, had, want in zip(Answer._fields, got, expected, strict=True):
            if not isinstance(want, tuple) or not isinstance(had, tuple) or len(had) != len(want):
                if had != want:
                    lines.append(f"{name}: got {had}, want {want}")
                continue
            for at, pair in enumerate(zip(had, want, strict=True)):
                if pair[0] != pair[1]:
                    lines.append(f"{name} {at}:\n   got  {pair[0]}\n   want {pair[1]}")
                    if name == "counted":
                        hit = one.hits[at]
                        lines.append(f"   of {hit}\n   in {self.model.named(descriptors, at)}")
        raise AssertionError("\n".join(lines))

    @rule(pause=walk.pauses, then=walk.requested)
    def wait(self, pause: int, then: Requested) -> None:
        """Time goes on."""
        self.set_clock(self.now + pause)
        self.ask_then(then)

    @rule(edge=st.integers(0, 9), beside=st.sampled_from([-1, 0, 1]), then=walk.requested)
    def wait_for_edge(self, edge: int, beside: int, then: Requested) -> None:
        """Time goes on to where something just asked for ends, or to beside that."""
        if self.edges:
            edge_us = self.edges[edge % len(self.edges)] + beside
            if edge_us > self.now:
                self.set_clock(edge_us)
        self.ask_then(then)

    @rule(back=walk.steps_back, then=walk.requested)
    def step_back(self, back: int, then: Requested) -> None:
        """The clock is set back, or less far where the documents say nothing of that."""
        while not self.set_clock(self.now - back):
            back //= 10
        self.ask_then(then)

    def set_clock(self, now: int) -> bool:
        """Sets the clock, if the documents say what then holds."""
        models = (self.model, *self.alone.values())
        if now != self.now and not all(each.may_be(now) for each in models):
            return False
        for each in models:
            each.latest, each.now = max(each.latest, now), now
        self.world.clock.now_us = now
        self.world.moved()
        return True

    @rule(choice=walk.choices, then=walk.requested)
    def reload(self, choice: walk.Choice, then: Requested) -> None:
        """A rule gets other numbers, or another mode."""
        self.load(walk.changed(self.written, choice))
        self.ask_then(then)
