"""Limits that pay in turn, and what is held beside them, in every order of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ratelimit_service.algorithms import holding, spec_of
from ratelimit_service.algorithms.settle import settle
from ratelimit_service.model import Hit, Hold, Limit, Mode, Reservations, State, Unit
from tests.stores.cases import T

_DEPTH = 7
_LIMIT = 3
_POOLS = [b"tier", b"credits"]
_IDS = [b"a" * 16, b"b" * 16]
_SPEC = spec_of(Limit(_LIMIT, Unit.DAY, reservations=Reservations()))


class Books(NamedTuple):
    """What is counted and held, and what it should come to. Time stands still."""

    states: tuple[State | None, ...] = (None, None)
    counted: tuple[int, ...] = (0, 0)
    overrun: tuple[int, ...] = (0, 0)
    """Of these, beyond what was held."""
    held: frozenset[tuple[int, bytes, int]] = frozenset()
    """By pool and id; -1 of an id that was settled."""

    def held_in(self, pool: int, hold_id: bytes = b"") -> int:
        """By an id, or without one by all of them."""
        if not hold_id:
            return sum(hits for at, _, hits in self.held if at == pool and hits > 0)
        return sum(hits for at, by, hits in self.held if (at, by) == (pool, hold_id))


def test_one_limit_holds_and_settles_in_any_order() -> None:
    """Whatever comes in seven steps of two ids, with plain hits and holds that end.

    An id holds, or is known as settled, in one limit at most. What it has used counts where it
    held, and once while it is known. What is counted and held in a limit is within it, but for
    overruns there. A reserve is denied only if none that is asked has room, or its id was settled.
    """
    seen, edge = {Books()}, [Books()]
    for _ in range(_DEPTH):
        following = {after for books in edge for after in _steps(books)} - seen
        seen |= following
        edge = list(following)
        for books in edge:
            for pool in range(len(_POOLS)):
                there = books.counted[pool] + books.held_in(pool)
                assert there <= _LIMIT + books.overrun[pool], books
            assert all(sum(by == each for _, by, _ in books.held) <= 1 for each in _IDS), books
    assert len(seen) > 500, len(seen)


def _steps(books: Books) -> Iterator[Books]:
    yield _charged(books, b"", None, 1)
    for hold_id in _IDS:
        for hits in (1, 2):
            yield _charged(books, hold_id, Hold(60_000_000), hits)
        for hits in (0, 2):
            yield _charged(books, hold_id, Hold(60_000_000, settles=True), hits)
    for place in books.held:
        yield books._replace(held=books.held - {place})


def _charged(books: Books, hold_id: bytes, hold: Hold | None, hits: int) -> Books:
    """After a request, whose steps are held against the promise."""
    settles = hold is not None and hold.settles
    request = [
        Hit(
            key,
            _SPEC,
            0 if place else hits,
            Mode.IN_TURN if settles or not place else Mode.ENFORCED,
            lease=hold_id,
            joined=place > 0,
            receipt=hold,
        )
        for place, key in enumerate(_POOLS)
    ]
    steps, changes, by = settle(
        request,
        lambda key: books.states[_POOLS.index(key)],
        T,
        lambda key, each: books.held_in(_POOLS.index(key), each),
    )
    states, held = [*books.states], {(at, who): each for at, who, each in books.held}
    for name, (hit, step) in changes.items():
        pool, who = _POOLS.index(hit.key), holding.held_by(name, hit.key)
        if who is None:
            states[pool] = step.state
        elif who and isinstance(step.state, int):
            held[pool, who] = step.state
    own = [books.held_in(pool, hold_id) if hold_id else 0 for pool in (0, 1)]
    asked = [pool for pool in (0, 1) if own[pool]] or [0, 1]
    room = [
        _LIMIT - books.counted[pool] - books.held_in(pool) + max(0, own[pool]) for pool in asked
    ]
    first = next((pool for pool, left in zip(asked, room, strict=True) if left >= hits), -1)
    counted, overrun = [*books.counted], [*books.overrun]
    if settles:
        holder = next((pool for pool in (0, 1) if own[pool] > 0), -1)
        is_known = -1 in own
        pays = -1 if is_known else holder if holder >= 0 else first
        assert [step.counted for step in steps] == [hits * (pool == pays) for pool in (0, 1)], books
        assert [step.passed for step in steps] == [pool == holder for pool in (0, 1)], books
        if pays >= 0:
            counted[pays] += hits
            overrun[pays] += max(0, hits - own[pays]) if holder >= 0 else 0
    else:
        assert (by < 0) == (first >= 0 and -1 not in own), books
        if hold is None and first >= 0:
            counted[first] += hits
    return Books(
        tuple(states),
        tuple(counted),
        tuple(overrun),
        frozenset((at, who, each) for (at, who), each in held.items()),
    )
