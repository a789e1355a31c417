"""What is held and settled by the documents, as `docs/how-to/reservations.md` has it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from typing import NamedTuple

from tests.machine import verdicts
from tests.machine.answers import Counted
from tests.machine.charging import Scratch
from tests.machine.counting import counter_of
from tests.machine.holds import SETTLED, Hold
from tests.machine.meaning import Identity, Meant, Settings
from tests.machine.terms import SECOND, Terms

LONGEST_US = 600 * SECOND
"""Rule: "The longest is `--max-reservation-ttl`, 10 minutes"."""

REMEMBERED_US = LONGEST_US + 60 * SECOND
"""Rule: "An id is remembered for a minute longer than the longest reservation"."""

MOST_HOLDS = 10_000
"""Rule: "A hold counts as a ten-thousandth of its limit at least"."""

LEASE_DIGITS = 16
"""So much of an id names its place under `concurrency`."""


class Wanted(NamedTuple):
    """Under which id hits are to be held, for how long, and whether in the place of others."""

    id: str
    ttl_us: int
    extends: bool = False


ONLY_ASKS = Wanted("", 0)


def too_large(meant: Sequence[Meant], settings: Settings) -> bool:
    """Rule: "A reservation larger than `max_reservation` is denied, and never held in part".

    Of limits that pay in turn: "If all of them let less be held, it is denied."
    """
    for one in meant:
        pairs = zip(one.terms, one.hits, strict=True)
        refusing = [
            _too_large(terms, hits) for terms, hits in pairs if _holds(one, terms, settings)
        ]
        if all(refusing) and refusing if one.first else any(refusing):
            return True
    return False


def _too_large(terms: Terms, hits: int) -> bool:
    return hits * 100 > terms.hard * terms.most_percent


def _holds(one: Meant, terms: Terms, settings: Settings) -> bool:
    """Rule: "`shadow_mode`, `quota_mode`: Nothing is held"."""
    return terms.reservations and not (one.shadow or one.quota or settings.shadow_mode)


def hold(
    meant: Sequence[Meant], scratch: Scratch, settings: Settings, wanted: Wanted
) -> tuple[bool, bool]:
    """Holds the hits of a request until the time to live is over; without one it only asks.

    Returns whether it is denied, and whether anything is held. "Holds hits beside every limit of
    the request, or beside none."
    """
    before, held = scratch.copies(), False
    for one, names in zip(meant, _names(meant, wanted.id), strict=True):
        before_one = scratch.copies()
        if one.first:
            held = _hold_first(one, names, scratch, settings, wanted) or held
        else:
            for place, name in enumerate(names):
                held = _hold_at(one, place, name, scratch, settings, wanted) or held
        if one.over and (one.shadow or (settings.shadow_mode and not one.quota)):
            scratch.go_back(before_one)
    denied = verdicts.denied(meant, settings) and not settings.shadow_mode
    if denied:
        scratch.go_back(before)
    return denied, held and not denied


def _names(meant: Sequence[Meant], hold_id: str) -> list[list[str]]:
    """Of each limit the name of its hold: several on one counter have each their own.

    A soft part that pays in turn has that of its limit.
    """
    met: Tally[Identity] = Tally()
    names: list[list[str]] = []
    for one in meant:
        names.append([])
        for counter in one.counters:
            names[-1].append(f"{hold_id}-{met[counter]}")
            met[counter] += not one.first
        met.update(set(one.counters) if one.first else ())
    return names


def _hold_first(
    one: Meant, names: Sequence[str], scratch: Scratch, settings: Settings, wanted: Wanted
) -> bool:
    """Rule: "The first limit that has room for all of it holds all of it", and no other.

    "The hold is extended where it lies, and nowhere else."
    """
    known = _known(one, names, scratch)
    held, met = False, False
    one.results = []
    for place, name in enumerate(names):
        asked = not met and (not known or place in known)
        if asked:
            held = _hold_at(one, place, name, scratch, settings, wanted) or held
            met = not one.results[-1].over
        else:
            one.results.append(Counted(True, 0, 0, 0))
    if met:
        one.results = [each._replace(over=False) for each in one.results]
    return held


def _mixes(one: Meant) -> bool:
    """Whether some limits of a list that pay in turn have places, and others count."""
    return one.first and len({terms.algorithm == "concurrency" for terms in one.terms}) > 1


def _known(one: Meant, names: Sequence[str], scratch: Scratch) -> list[int]:
    """The limits that know an id: it is held there, or was settled."""
    found = []
    for place, (counter, terms) in enumerate(zip(one.counters, one.terms, strict=True)):
        if scratch.counter(counter, terms).holds.of(names[place]) is not None:
            found.append(place)
    return found


def _hold_at(
    one: Meant,
    place: int,
    name: str,
    scratch: Scratch,
    settings: Settings,
    wanted: Wanted,
) -> bool:
    """Holds the hits of one limit; returns whether any are held."""
    (hold_id, ttl_us, extends), now = wanted, scratch.now
    terms, hits = one.terms[place], one.hits[place]
    at = scratch.counter(one.counters[place], terms)
    if terms.algorithm == "concurrency" and not _mixes(one):
        # Rule: "To reserve by the same id again takes no other".
        places = 1 if ttl_us and not extends else 0
        over = not at.passes(terms, now, places)
        if not over:
            at.take(terms, now, places, hold_id[:LEASE_DIGITS])
        one.results.append(Counted(over, 0, 0, 0))
        return bool(ttl_us) and not over
    known = at.holds.of(name)
    for_us = min(ttl_us, terms.longest_us or ttl_us)
    holds = _holds(one, terms, settings) and bool(hits and for_us)
    if holds:
        hits = max(hits, -(-terms.hard // MOST_HOLDS))
    # Rule: "To reserve by an id that was settled is denied".
    settled = known is not None and known.hits == SETTLED
    over = not at.passes(terms, now, hits, but=name) or (holds and settled)
    if one.first and ttl_us and terms.reservations and _too_large(terms, one.hits[place]):
        over = True  # "The limit is passed over, and the next one may hold it."
    one.results.append(Counted(over, 0, 0, 0))
    if over or not holds:
        return False
    end = now + for_us
    if terms.charged_at_end:
        # "they stay for as long as they would count, had they been charged at that time"
        then = counter_of(terms)
        then.take(terms, end, hits, "")
        end = then.over_at()
    at.hold(name, Hold(hits, end))
    return True


def settle(meant: Sequence[Meant], scratch: Scratch, hold_id: str) -> bool:
    """Counts what was used, and ends what an id holds; returns whether it held anything.

    "A commit counts once." Without an id nothing is remembered.
    """
    held = False
    for one, names in zip(meant, _names(meant, hold_id), strict=True):
        if one.first and any(terms.algorithm != "concurrency" for terms in one.terms):
            held = _settle_first(one, names, scratch, hold_id) or held
            continue
        for place, name in enumerate(names):
            held = _settle_at(one, place, name, scratch, hold_id) or held
    return held


def _settle_first(one: Meant, names: Sequence[str], scratch: Scratch, hold_id: str) -> bool:
    """Rule: "the limit that held is the one that settles".

    "Commit, late or with an unknown id: the first limit that has room counts it, once."
    """
    now = scratch.now
    for place in _known(one, names, scratch):
        return _settle_at(one, place, names[place], scratch, hold_id)
    for place, (name, terms, hits) in enumerate(
        zip(one.counters, one.terms, one.hits, strict=True)
    ):
        at = scratch.counter(name, terms)
        if at.passes(terms, now, hits):
            if terms.algorithm == "concurrency":
                at.take(terms, now, hits, "")
            else:
                _settle_at(one, place, names[place], scratch, hold_id)
            return False
    return False


def _settle_at(one: Meant, place: int, name: str, scratch: Scratch, hold_id: str) -> bool:
    """Settles beside one limit; returns whether anything was held there."""
    terms, hits, now = one.terms[place], one.hits[place], scratch.now
    at = scratch.counter(one.counters[place], terms)
    if terms.algorithm == "concurrency":
        # "Commit gives it back"
        return at.give(terms, now, 1, hold_id[:LEASE_DIGITS] or "none") > 0
    known = at.holds.of(name)
    if known and known.hits == SETTLED:
        return False
    if at.takes_only_what_fits:
        # "Commit counts beyond the hold until the bucket is full."
        hits = min(hits, max(0, (terms.hard - at.used(terms, now)).__floor__()))
    at.take(terms, now, hits, "")
    if hold_id:
        at.hold(name, Hold(SETTLED, now + REMEMBERED_US))
    return known is not None
