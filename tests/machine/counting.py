"""What the documents say of counting: one class for each way, with exact fractions.

Written from `docs/rules.md` alone, and slow on purpose: a wait is not worked out but searched
for, by asking what is used at a later time. Nothing of the service's own arithmetic is used.
Times are integer microseconds, what is used is an integer or a Fraction. It is long because all
ways share this search.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from tests.machine.holds import Hold, Holds
from tests.machine.terms import BUCKETS, SECOND, Terms, period


def first_moment(holds: Callable[[int], bool], start: int) -> int:
    """The first moment from `start` on at which something holds that holds for ever after."""
    if holds(start):
        return start
    step = 1
    while not holds(start + step):
        step *= 2
    low, high = start + step // 2, start + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Counter:
    """One counter. Time is an argument; a clock that stepped back finds what was there.

    "A clock that steps back by less than a window loses nothing: counters go on from where they
    were. What was last used further in the future is damage: it starts anew."
    """

    resets_with_window = False
    """Whether the reset is the end of a window, "else [...] the time until [...] as new"."""

    takes_only_what_fits = False
    """"buckets and leases take only what has room"."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        """The limit by which it was last judged."""
        self.changed: int | None = None
        """The latest moment at which it changed."""
        self.touched = False
        """Whether it has changed since it was last put away."""
        self.given_back_at: int | None = None
        """When hits were last counted, and given back as their request was denied elsewhere."""
        self.holds = Holds()
        """What is held beside it."""
        self.forget()

    def copy(self) -> Counter:
        copied = copy.copy(self)
        copied.holds = self.holds.copy()
        return copied

    def forget(self) -> None:
        """A new counter."""
        self.changed = None

    def used(self, terms: Terms, at: int) -> Fraction | int:
        """What counts at a moment, if nothing comes until then."""
        raise NotImplementedError

    def end(self, terms: Terms, now: int) -> int:
        """When the window ends that counts now."""
        raise NotImplementedError

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        raise NotImplementedError

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        raise NotImplementedError

    def hold(self, name: str, hold: Hold) -> None:
        """Holds hits beside it; what counts stays as it is."""
        self.holds.put(name, hold)

    def held(self, terms: Terms, but: str = "") -> int:
        """What is held, to a limit that takes reservations."""
        return self.holds.total(but) if terms.reservations else 0

    def look(self, now: int) -> None:
        """Starts anew if the clock is more than the longest step back from the last change."""
        self.holds.look(now)
        if self.damaged(now):
            self.forget()

    def damaged(self, now: int) -> bool:
        """Whether it was last used more than a window, also the longest, after that."""
        return self.changed is not None and now <= self.changed - 2 * self.terms.spans_us[1]

    def unclear(self, now: int, latest: int) -> bool:
        """Whether the documents do not say what a clock that steps back to `now` finds.

        By what is "last used" a window may be meant that began before; and what was over for a
        second may have been put out ("A key lives a second longer than its window").
        """
        if self.holds.unclear(now, latest):
            return True
        if self.changed is None or not self.used(self.terms, 0):
            return False  # what counts nothing is new
        shortest, longest = self.terms.spans_us
        if self.changed - 2 * longest < now <= self.changed - shortest:
            return True
        if now >= latest and now >= self.changed:
            return False
        back = self.given_back_at
        if back and now < back and (now <= back - shortest or self.moves(now, back)):
            return True
        over = self.over_at()
        return now < over <= latest - SECOND // 2 or now < over == self.changed

    def moves(self, now: int, then: int) -> bool:
        """Whether it goes on between these moments: what has leaked by `then` stays so."""
        return self.used(self.terms, now) != self.used(self.terms, then)

    def leaked_by_another(self, rates: Collection[int]) -> bool:
        """Whether a give-back can have made it leak, or now will, by another rate than these.

        "What has leaked stays so, also if the rate changes afterwards."
        """
        return False

    def over_at(self) -> int:
        """From when on nothing counts any more."""
        return first_moment(lambda at: not self.used(self.terms, at), self.changed or 0)

    def remaining(self, terms: Terms, now: int) -> int:
        """`remaining` is how many single hits would pass now."""
        return max(0, (terms.hard - self.used(terms, now)).__floor__() - self.held(terms))

    def passes(self, terms: Terms, now: int, hits: int, but: str = "") -> bool:
        """Rule: "more hits than are left are denied whole"; a peek exceeds the limit or passes.

        "There is room for a request while counted + held + hits is within the limit"; `but` is
        the id whose hold the hits take the place of.
        """
        return self.used(terms, now) + self.held(terms, but) + hits <= terms.hard

    def wait(self, terms: Terms, now: int, hits: int) -> int:
        """Over the limit the reset is the wait until these same hits pass.

        "A denied request is told to wait no longer than if nothing was held, or 1 s if that is
        more."
        """
        stays = self.until_room(terms, now, hits + self.held(terms))
        return min(stays, max(SECOND, self.until_room(terms, now, hits)))

    def until_room(self, terms: Terms, now: int, hits: int) -> int:
        """From now until these hits pass beside what counts.

        "(if they never can, one window, or for buckets until they are as new)".
        """
        if hits > terms.hard:
            return self.whole(terms, now)
        return first_moment(lambda at: self.used(terms, at) + hits <= terms.hard, now) - now

    def whole(self, terms: Terms, now: int) -> int:
        """One window."""
        return terms.window_us

    def reset(self, terms: Terms, now: int) -> int:
        """Rule: "else the end of the window, or the time until [they] are as new"."""
        if self.resets_with_window:
            return self.end(terms, now) - now
        return first_moment(lambda at: not self.used(terms, at), now) - now

    def take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        if hits:
            self._take(terms, now, hits, lease)
            self._note(now)

    def give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        """Rule: "the newest first: never below 0, to what still counts only"."""
        given = self._give(terms, now, hits, lease) if hits else 0
        if given:
            self._note(now)
        return given

    def _note(self, now: int) -> None:
        self.touched = True
        self.changed = now if self.changed is None else max(self.changed, now)


class FixedWindow(Counter):
    """Counts from the beginning of a window. "Windows begin at the multiples of their length"."""

    resets_with_window = True

    def forget(self) -> None:
        super().forget()
        self.start, self.stop, self.count = 0, 0, 0

    def used(self, terms: Terms, at: int) -> int:
        return self.count if at < self.stop else 0

    def end(self, terms: Terms, now: int) -> int:
        return self.stop if self._goes_on(now) else period(terms, now)[1]

    def whole(self, terms: Terms, now: int) -> int:
        start, stop = period(terms, now)
        return stop - start

    def _goes_on(self, now: int) -> bool:
        """Whether a window of later goes on, since the clock stepped back.

        "A counter in which nothing counts is new", also then.
        """
        return self.count > 0 and now < self.stop

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        if not self._goes_on(now):
            (self.start, self.stop), self.count = period(terms, now), 0
        self.count += hits

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        given = min(hits, self.used(terms, now))
        self.count -= given
        return given


class FirstHit(FixedWindow):
    """A window begins with the first hit after the one before is over."""

    resets_with_window = False

    def whole(self, terms: Terms, now: int) -> int:
        return terms.window_us

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        if not self.used(terms, now):
            self.start, self.stop, self.count = now, now + terms.window_us, 0
        self.count += hits


class TwoCounters(Counter):
    """This window's hits and the share of the one before that is still within, rounded down."""

    resets_with_window = True

    def forget(self) -> None:
        super().forget()
        self.start, self.before, self.count = 0, 0, 0

    def _at(self, terms: Terms, at: int) -> tuple[int, int, int]:
        """The beginning of the window at a moment, its hits and those before."""
        window = terms.window_us
        start = at // window * window
        if not (self.count or self.before):
            return start, 0, 0
        if start <= self.start:
            return self.start, self.count, self.before
        if start == self.start + window:
            return start, 0, self.count
        return start, 0, 0

    def moves(self, now: int, then: int) -> bool:
        return self._at(self.terms, now)[0] != self._at(self.terms, then)[0]

    def used(self, terms: Terms, at: int) -> int:
        start, count, before = self._at(terms, at)
        still_within = terms.window_us - (max(at, start) - start)
        return before * still_within // terms.window_us + count

    def end(self, terms: Terms, now: int) -> int:
        return self._at(terms, now)[0] + terms.window_us

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        new = not self.used(terms, now)  # "A counter in which nothing counts is new"
        self.start, self.count, self.before = self._at(terms, now)
        if new:
            self.before = 0
        self.count += hits

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        if not self.used(terms, now):
            return 0
        self.start, self.count, self.before = self._at(terms, now)
        newest = min(hits, self.count)
        older = min(hits - newest, self.before)
        self.count -= newest
        self.before -= older
        return newest + older


class Parts(Counter):
    """The window is counted in n parts, and the oldest, partly covered one counts whole."""

    def forget(self) -> None:
        super().forget()
        self.counts: dict[int, int] = {}

    def copy(self) -> Parts:
        copied = cast("Parts", super().copy())
        copied.counts = dict(self.counts)
        return copied

    def _part(self, terms: Terms) -> int:
        return -(-terms.window_us // terms.parts)

    def _newest(self, terms: Terms, at: int) -> int:
        known = list(self.counts) if any(self.counts.values()) else []
        return max([at // self._part(terms), *known])

    def moves(self, now: int, then: int) -> bool:
        return self._newest(self.terms, now) != self._newest(self.terms, then)

    def used(self, terms: Terms, at: int) -> int:
        oldest = self._newest(terms, at) - terms.parts
        return sum(hits for number, hits in self.counts.items() if number >= oldest)

    def _drop(self, terms: Terms, now: int) -> int:
        newest = self._newest(terms, now)
        within = range(newest - terms.parts, newest + 1)
        self.counts = {number: self.counts.get(number, 0) for number in within}
        return newest

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        newest = self._drop(terms, now)
        self.counts[newest] += hits

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        if not self.used(terms, now):
            return 0
        self._drop(terms, now)
        rest = hits
        for number in sorted(self.counts, reverse=True):
            given = min(rest, self.counts[number])
            self.counts[number] -= given
            rest -= given
        return hits - rest


@dataclass
class Entry:
    time: int
    hits: int
    lease: str = ""


class Log(Counter):
    """Keeps the time of every hit: "at no moment have more than the limit passed"."""

    def forget(self) -> None:
        super().forget()
        self.entries: list[Entry] = []

    def copy(self) -> Log:
        copied = cast("Log", super().copy())
        copied.entries = [copy.copy(entry) for entry in self.entries]
        return copied

    def counting(self, terms: Terms, at: int) -> list[Entry]:
        """The hits that count at a moment."""
        newest = max([at, *(entry.time for entry in self.entries)])
        return [entry for entry in self.entries if entry.time + terms.window_us > newest]

    def used(self, terms: Terms, at: int) -> int:
        return sum(entry.hits for entry in self.counting(terms, at))

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        self.entries = self.counting(terms, now)
        moment = max([now, *(entry.time for entry in self.entries)])
        self.entries.append(Entry(moment, hits, lease))

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        counting = self.counting(terms, now)
        given = _give_back(list(reversed(counting)), hits)
        if given:
            self.entries = [entry for entry in counting if entry.hits]
        return given


class Leases(Log):
    """An admitted hit takes a lease; "the window is how long one that is never given back counts".

    "An id that is not known gives back nothing; without the entry the oldest lease is given
    back."
    """

    takes_only_what_fits = True

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        counting = self.counting(terms, now)
        given = _give_back([e for e in counting if not lease or e.lease == lease], hits)
        if given:
            self.entries = [entry for entry in counting if entry.hits]
        return given


def _give_back(entries: list[Entry], hits: int) -> int:
    rest = hits
    for entry in entries:
        given = min(rest, entry.hits)
        entry.hits -= given
        rest -= given
    return hits - rest


class Bucket(Counter):
    """What is used of a bucket: "`requests_per_unit` come back evenly over each unit".

    "Fractions of a token are never lost." "With `refill: stepped` all of a unit's tokens come
    back at once, with each multiple of the unit."
    """

    takes_only_what_fits = True

    def forget(self) -> None:
        super().forget()
        self.level, self.at = Fraction(0), 0
        self.rate, self.as_new = 0, 0
        """The rule's rate at the last change, and when the bucket is as new by it."""

    def used(self, terms: Terms, at: int) -> Fraction:
        window = terms.window_us
        now = max(at, self.at)
        if terms.rate != self.rate and at >= self._forgotten():
            return Fraction(0)
        since = (
            now // window - self.at // window if terms.stepped else Fraction(now - self.at, window)
        )
        return max(Fraction(0), self._most(terms) - since * terms.rate)

    def until_room(self, terms: Terms, now: int, hits: int) -> int:
        return self._until(terms, now, max(0, terms.hard - hits))

    def reset(self, terms: Terms, now: int) -> int:
        return self._until(terms, now, 0)

    def _until(self, terms: Terms, now: int, most: int) -> int:
        """From now until no more than this is used; a search is too slow with fractions."""
        level = self._most(terms)
        if self.used(terms, now) <= most:
            return 0
        refills = (level - most) / terms.rate
        if terms.stepped:
            return (self.at // terms.window_us + refills.__ceil__()) * terms.window_us - now
        return self.at + (refills * terms.window_us).__ceil__() - now

    def leaked_by_another(self, rates: Collection[int]) -> bool:
        known = set(rates)
        # Also in the moment of the last change: another descriptor may have had its rate there.
        if self.given_back_at is not None and self.given_back_at >= self.at:
            known.add(self.terms.requests_per_unit)
            # "The bucket was used then, by the rate of that moment": so it is as new by that rate.
            if self.terms.rate != self.rate:
                return True
        return len(known) > 1

    def over_at(self) -> int:
        return self.at + self._until(self.terms, self.at, 0)

    def _forgotten(self) -> int:
        """When a state counts no more by another rate.

        "a bucket that nobody has used for ten minutes, and that would be as new by its old rate,
        is as new."
        """
        return max(self.as_new, self.at + 600 * SECOND)

    def _changed(self, terms: Terms) -> None:
        self.rate, self.as_new = terms.rate, self.at
        self.as_new = self.at + self._until(terms, self.at, 0)

    def unclear(self, now: int, latest: int) -> bool:
        since = (self.as_new, self._forgotten(), self._leaked())
        over = any(now < each <= latest - SECOND // 2 for each in since)
        return super().unclear(now, latest) or (self.changed is not None and over)

    def _leaked(self) -> int:
        """When nothing of it counts by any rule, since each gives back a hit a window at least."""
        window = self.terms.window_us
        if self.terms.stepped:
            return (self.at // window + self.level.__ceil__()) * window
        return self.at + (self.level * window).__ceil__()

    def _most(self, terms: Terms) -> Fraction:
        """Of what is used above a lowered `burst` at most `requests_per_unit` counts."""
        most = terms.hard + terms.rate
        whole = self.level.__floor__()
        return min(whole, most) + self.level - whole

    def _take(self, terms: Terms, now: int, hits: int, lease: str) -> None:
        # "A counter in which nothing counts is new": it does not go on at a later time.
        at = max(now, self.at) if self.level else now
        self.level, self.at = self.used(terms, now) + hits, at
        self._changed(terms)

    def _give(self, terms: Terms, now: int, hits: int, lease: str) -> int:
        used = self.used(terms, now)
        given = min(hits, used.__ceil__())
        if given:
            self.level, self.at = max(Fraction(0), used - hits), max(now, self.at)
            self._changed(terms)
        return given


def counter_of(terms: Terms) -> Counter:
    """A new counter of a limit."""
    if terms.algorithm in BUCKETS:
        return Bucket(terms)
    if terms.algorithm == "sliding_window":
        return Parts(terms) if terms.parts else TwoCounters(terms)
    if terms.algorithm == "sliding_log":
        return Log(terms)
    if terms.algorithm == "concurrency":
        return Leases(terms)
    return FirstHit(terms) if terms.first_hit else FixedWindow(terms)
