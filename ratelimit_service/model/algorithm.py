"""What an algorithm is to everybody else, and what one counter is judged by.

Whoever wants to know something of an algorithm asks its declared object, never its name. The
objects are declared in `algorithms`, each beside its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from ratelimit_service.model.calendar import Anchor, Calendar
from ratelimit_service.model.limit import MAX_ADDEND, Limit
from ratelimit_service.model.parameter import Contradiction, Parameter
from ratelimit_service.model.step import Held, Receipt, State, Step
from ratelimit_service.model.unit import SECOND_US

__all__ = [
    "TICKS_US",
    "Algorithm",
    "BundleFunction",
    "ChargeFunction",
    "CounterForm",
    "CounterSpec",
    "Denied",
    "HeldFunction",
    "RefundFunction",
]

TICKS_US: Final[tuple[int, ...]] = tuple(10**exponent for exponent in range(13))
"""The lengths of ticks in microseconds by their exponents."""

ChargeFunction = Callable[[State | None, int, int, "CounterSpec", bool, bytes], Step]
"""`charge(state, now_us, addend, spec, force, lease)` adds hits if they fit; those algorithms
that can count what they deny do so with `force`.

0 hits are a peek: it passes while the count does not exceed the limit, and changes nothing.
`lease` is the id under which `concurrency` can give them back.
"""

RefundFunction = Callable[[State | None, int, int, "CounterSpec", bytes, Receipt | None], Step]
"""`refund(state, now_us, addend, spec, lease, receipt)` gives hits back, the newest first, never
below nothing; it never makes a state.

With a receipt just those of that charge, so that the counter is as if it had not been; where
that can no longer be told, it holds more rather than less.
"""


AdvanceFunction = Callable[["CounterSpec", int], int]
"""`advance(spec, reset_us)` is for how long hits that were just counted may be spent, where their
reset is that far away: so long they lie in the same window or part as if counted when spent."""


HeldFunction = Callable[[State | None, int, "CounterSpec"], list[Held]]
"""`held(state, now_us, spec)` is what a state holds one by one, of what still counts."""


BundleFunction = Callable[[Iterable[tuple[int, bytes]]], bytes]
"""`bundle(leases)` is what stands for an id where several leases, hits and id of each, are taken
with one hit."""


class Denied(IntEnum):
    """What becomes of hits whose request is denied, where they are to be counted all the same."""

    NOT_COUNTED = 0
    """Nothing is counted. (A lease that no answer hands out would only be in the way.)"""
    COUNTED_WITH_ROOM = 1
    """Those are counted for which there is room."""
    COUNTED = 2
    """All are counted."""
    ALWAYS_COUNTED = 3
    """All are counted, also where neither the rule nor a setting says so."""


def _requests_per_unit(limit: Limit) -> int:
    return limit.requests_per_unit


def _no_contradictions(_limit: Limit) -> Iterable[Contradiction]:
    return ()


def _key(spec: CounterSpec) -> str:
    """The letter and the window in seconds, as `l3600`."""
    return f"{spec.algorithm.letter}{spec.window_us // SECOND_US}"


_WEIGHT: Final = 3


def _weight(_spec: CounterSpec) -> int:
    return _WEIGHT


@dataclass(eq=False, repr=False)
class Algorithm:
    """One algorithm: its arithmetic, and all that others have to know of it. It never changes.

    `charge` and `refund` are pure functions from a counter's state to its next; None is the state
    of a new counter. Times and windows are integer microseconds. All integers stay below 2^53, so
    that the Lua rendering, which has only doubles, computes the same. A state less than a window
    ahead of `now_us` means that the clock stepped back: the time is then the state's.
    """

    name: str
    """As rules, the Lua file, metrics and documents have it."""
    letter: str
    """What its counters' keys begin with, behind the tag; nobody else's."""
    charge: ChargeFunction
    refund: RefundFunction
    parameters: tuple[Parameter, ...] = ()
    """The keys of rules that mean something to it, beside those of every limit."""
    capacity: Callable[[Limit], int] = _requests_per_unit
    """The hits that fit before the soft part begins: what `remaining` counts down from."""
    contradictions: Callable[[Limit], Iterable[Contradiction]] = _no_contradictions
    """What is wrong with a limit whose keys are all right, each for itself."""
    most: int = MAX_ADDEND
    """The highest limit, the soft part included."""
    most_why: str = ""
    """Why, and what to use instead."""
    key: Callable[[CounterSpec], str] = _key
    """The part of a counter's key that says how and over which window is counted, without any
    number of hits. Two limits with the same one share their counters."""
    weight: Callable[[CounterSpec], int] = _weight
    """What a hit takes of Redis' time at most, in units of some 4 microseconds."""
    held: HeldFunction | None = None
    """What a state holds one by one, the oldest first; None where it holds only numbers."""
    denied: Denied = Denied.COUNTED
    bundle: BundleFunction | None = None
    """How several leases are taken at once; None where hits take none."""
    cached: bool = True
    """Whether who is over stays so until the moment that was told, if nothing is given back:
    then the local cache may deny in the store's stead."""
    refunded: bool = True
    """Whether callers can give hits back. Stores undo charges in any case."""
    divided: bool = True
    """Whether processes that each count a part of the limit admit the limit between them."""
    refills: bool = False
    """Whether `requests_per_unit` is a rate that comes back, not the most that is held."""
    ticks: bool = False
    """Whether it multiplies hits with time, which takes ticks to be exact."""
    adds: bool = False
    """Whether in windows of the clock a state is an integer to which hits add their number: it
    charges as `fixed_window.passing` says, which stores use in its stead."""
    paired: bool = False
    """Whether without sub-counters a state is a window's number and a pair of counts: it
    charges as `sliding_window.passing` says, which stores use in its stead."""
    advance: AdvanceFunction | None = None
    """How long an advance lives; None where there are none."""
    exact_why: str = ""
    """Why there are none, and what to use instead."""
    mark: bytes = field(init=False)
    """The letter, with which states may begin."""
    leases: bool = field(init=False)
    """Whether hits take leases, which are given back by an id."""

    def __post_init__(self) -> None:
        self.mark = self.letter.encode()
        self.leases = self.bundle is not None

    def __repr__(self) -> str:
        return self.name


class CounterForm(NamedTuple):
    """How a counter counts, whatever its numbers of hits.

    Numbers that multiply hits with time do so in ticks of 10^`tick` microseconds: the smallest in
    which `window_us * (limit + rate)` is exact. `buckets` is the number of sub-counters of a
    sliding window, 0 for the two it else has. `stepped` buckets get the whole rate back at once. A
    `queue` is a bucket in which hits have places, which nobody else may get once it was told. `own`
    are the values of the algorithm's parameters that have no field here, in the order in which it
    declares them. With `advances` processes may hold hits that are counted ahead. With `holds`
    there is room only beside what is held.
    """

    tick: int = 0
    anchor: Anchor | Calendar = Anchor.CLOCK
    buckets: int = 0
    stepped: bool = False
    queue: bool = False
    own: tuple[int, ...] = ()
    advances: bool = False
    holds: bool = False


class CounterSpec:
    """How one counter counts. Shared by all counters of a limit; never changed.

    `limit` is the most hits that it holds: in a window, in a bucket, or at a time. Buckets get
    `rate` hits back in each `window_us`. `reserved` hits more may lie on the counter: they are left
    to other limits, which charge it too. What its form says is at hand here, since calls read it.
    """

    __slots__ = (
        "adds",
        "advances",
        "algorithm",
        "anchor",
        "buckets",
        "cached",
        "form",
        "holds",
        "limit",
        "own",
        "paired",
        "rate",
        "reserved",
        "stepped",
        "tick",
        "tick_us",
        "window_ticks",
        "window_us",
    )

    def __init__(
        self,
        algorithm: Algorithm,
        limit: int,
        window_us: int,
        rate: int = 0,
        reserved: int = 0,
        form: CounterForm = CounterForm(),  # noqa: B008 -- it never changes
    ) -> None:
        self.algorithm: Final = algorithm
        self.limit: Final = limit
        self.window_us: Final = window_us
        self.rate: Final = rate
        self.reserved: Final = reserved
        self.form: Final = form
        self.tick: Final = form.tick
        self.anchor: Final = form.anchor
        self.buckets: Final = form.buckets
        self.stepped: Final = form.stepped
        self.own: Final = form.own
        self.advances: Final = form.advances
        self.holds: Final = form.holds
        self.cached: Final = algorithm.cached and not form.holds
        """Whether the local cache may deny: a hold can end at any time."""
        self.adds: Final = algorithm.adds and form.anchor is Anchor.CLOCK
        """Whether hits add their number to the state: then stores have a fast path."""
        self.paired: Final = algorithm.paired and not form.buckets
        """Whether a state is a pair of counts: then the memory store has a fast path."""
        self.tick_us: Final = TICKS_US[form.tick]
        """A tick in microseconds."""
        self.window_ticks: Final = -(-window_us // TICKS_US[form.tick])
        """The window in ticks, rounded up."""

    @property
    def key(self) -> str:
        """The part of a counter's key that says how is counted."""
        return self.algorithm.key(self)

    def with_numbers(self, limit: int, rate: int) -> CounterSpec:
        """The same with other numbers of hits, on the same counters; none of them is reserved."""
        return CounterSpec(self.algorithm, limit, self.window_us, rate, form=self.form)

    def as_counted(self) -> CounterSpec:
        """A limit that nothing reaches, on the same counters, whatever is held beside them."""
        form = self.form._replace(holds=False)
        return CounterSpec(self.algorithm, MAX_ADDEND, self.window_us, self.rate, form=form)

    @property
    def most(self) -> int:
        """The most hits that may lie on the counter, by whichever limit that charges it."""
        return self.limit + self.reserved

    def _fields(self) -> tuple[object, ...]:
        return self.algorithm, self.limit, self.window_us, self.rate, self.reserved, self.form

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, CounterSpec) and self._fields() == other._fields()
        )

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"CounterSpec{self._fields()}"
