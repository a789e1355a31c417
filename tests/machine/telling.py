"""What is told of a request by the documents: its statuses, and what is said beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.machine.answers import (
    UNLIMITED,
    Answer,
    Counted,
    Shown,
    Status,
    partly,
    seconds,
    shown,
    would_pass,
)
from tests.machine.meaning import Meant
from tests.machine.terms import Terms


def answer(meant: Sequence[Meant], *, denied: bool, queue: str = "") -> Answer:
    """The answer to a request whose limits have their results."""
    limits = tuple(
        Shown(place, would_pass(result, terms), seconds(result.reset_us), result.over)
        for place, one in enumerate(meant)
        if len(one.terms) > 1 or any(map(partly, one.results))
        for terms, result in zip(one.terms, one.results, strict=True)
        if not one.twice(terms)
    )
    passing = [] if denied else list(_passing(meant))
    # "the code is OK, and answers above the limit have the header x-ratelimit-warning"
    soft = any(result.remaining < terms.soft for terms, result, _, _ in passing)
    delays = list(_delays(meant)) if not denied else []
    leased = any(
        terms.algorithm == "concurrency" and result.counted for terms, result, _, _ in passing
    )
    return Answer(
        denied,
        tuple(map(status, meant)),
        limits,
        soft,
        -(-max(delays) // 1_000) if delays else None,
        leased,
        tuple(result for one in meant for result in one.counted),
        queue=queue,
        paid=()
        if denied
        else tuple(one.terms[one.payer].name for one in meant if one.payer is not None),
    )


def delay_us(meant: Sequence[Meant], *, denied: bool) -> int:
    """How long the request is to wait."""
    return 0 if denied else max(_delays(meant), default=0)


def _passing(meant: Sequence[Meant]) -> Iterator[tuple[Terms, Counted, int, int]]:
    """Each limit that passes, with its result, its delay and its hits."""
    for one in meant:
        if one.refund:
            continue
        for place, (terms, result, delay, hits) in enumerate(
            zip(one.terms, one.results, one.delays, one.hits, strict=True)
        ):
            if not result.over and (not one.first or place == one.payer):
                yield terms, result, delay, hits


def _delays(meant: Sequence[Meant]) -> Iterator[int]:
    """Rule: "an admitted hit has a delay, until what was before it has leaked"."""
    for terms, result, delay, hits in _passing(meant):
        if terms.max_wait_us and (result.counted or not hits):
            yield delay


def status(one: Meant) -> Status:
    """What a descriptor is told.

    "The descriptor has one status: that of the limit that denies, of several the one with the
    longest wait; else that of the limit with the fewest hits left; else the first."
    """
    if one.unlimited or one.exempt:
        return Status(over=one.banned, remaining=0 if one.banned else UNLIMITED)
    if not one.terms:
        return Status(over=one.banned)
    pairs = list(zip(one.terms, one.results, strict=True))
    if one.first:
        return _status_of(one, *pairs[_speaking(one)])
    over = [pair for pair in pairs if pair[1].over]
    if over:
        terms, result = max(over, key=lambda pair: pair[1].reset_us)
    else:
        terms, result = min(pairs, key=lambda pair: shown(pair[1], pair[0]))
    return _status_of(one, terms, result)


def _speaking(one: Meant) -> int:
    """The limit whose status a list has that pays in turn.

    "The descriptor's status is that of the limit that paid"; "A denied descriptor shows the limit
    that has room again first". Where nothing was charged it is the first with room.
    """
    results = one.results
    places = range(len(results))
    paid = [place for place in places if results[place].counted]
    needed = 1 if one.refund else max(1, one.hits[0])
    fit = [at for at in places if not results[at].over and results[at].remaining >= needed]
    return next(iter([*paid, *fit]), min(places, key=lambda at: results[at].reset_us))


def _status_of(one: Meant, terms: Terms, result: Counted) -> Status:
    return Status(
        result.over and not one.shadow,
        terms.requests_per_unit,
        shown(result, terms),
        seconds(result.reset_us),
    )
