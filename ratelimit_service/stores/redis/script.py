"""The one script: how hits become its arguments, and its reply their outcomes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, starmap
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import ratelimit_service
from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import (
    Anchor,
    Calendar,
    CounterSpec,
    Hit,
    Hold,
    Mode,
    Outcome,
)
from ratelimit_service.stores import PRIORITIES
from ratelimit_service.stores.keys import slot_of
from ratelimit_service.stores.redis.batch import Batch

__all__ = ["HELD_KEYS", "MAX_CALL_WEIGHT", "SCRIPT", "SHA", "ScriptCall", "weight"]

MAX_CALL_WEIGHT: Final = 256
"""The most that one script call weighs, so that it holds Redis for a millisecond at most: 128 hits
on new fixed windows. A single request that weighs more goes alone."""

_UNDO: Final = 3
"""Stands in place of a refund's mode and says that its receipt follows."""
_COUNT_DENIED: Final = 4
_REFUND: Final = 8
_JOINED: Final = 16
_MORE: Final = 32
_CALENDAR: Final = 64
_LEASE: Final = 128

_HIT: Final = struct.Struct(">IdIBB")
"""A hit packed: limit, window in microseconds, addend, algorithm, mode and flags."""

_ADVANCE: Final = 64
_GRANT: Final = 128
"""Added to the algorithm's number, in place of a mode."""

_REST_OF_SPEC: Final = struct.Struct(">IBHB")
"""With _MORE the rest of a spec: rate, tick, buckets, and 1 for first_hit, 2 for stepped, 4
for a queue, 8 where the algorithm's own parameters follow, 16 where behind these follows whether
there is room only beside what is held, and what is to be held or settled."""

_OWN: Final = struct.Struct(">d")
"""One of the algorithm's own parameters, in the order in which it declares them."""

_PERIODS: Final = struct.Struct(">Idddd")
"""With _CALENDAR this period's number, and when three begin and the last ends."""

_DEADLINE: Final = struct.Struct(">Hd")
"""A number of hits of 0, and the deadline of the requests behind it."""

_RECEIPT: Final = struct.Struct(">dd")
"""The receipt of a charge that is undone: when it was counted, and when it was to reset."""

_SETTLED: Final = 1 << 15
"""A mark beside a request's number of hits: it is settled without trying the fast path first."""

_HOLDS: Final = 1
_HAS_HOLD: Final = 2
_SETTLES: Final = 4
_CHARGED: Final = 8
_HOLD: Final = struct.Struct(">Bd")
"""What a hit does with the hold that its lease names: these flags, and a time to live."""

HELD_KEYS: Final = (b"~h", b"~a")
"""Behind the key of a counter: what is held beside it, by its end and by its id."""

_HELD_WEIGHT: Final = 4
"""What it weighs more to look at what is held."""

_NUMBERS: Final = {name: number for number, name in enumerate(ALGORITHMS)}

_DAMAGED: Final = 1
_LATE: Final = 2
_MARKS: Final = bytes(range(2 * _LATE))

_HEAD: Final = struct.Struct(">QQ")
"""How a reply begins: with the number of the call, and the server's time."""

_OUTCOME: Final = struct.Struct(">?IQQx")
"""An outcome in a reply: the first fields of `Outcome` in their order. The last byte says nothing.
"""

_HEAD_BYTES: Final = _HEAD.size
_OUTCOME_BYTES: Final = _OUTCOME.size
_WAIT_AT: Final = 5
"""Where the first byte of the wait is, in an outcome. It is 0, as waits are below 2^55."""


_PACKAGE: Final = Path(ratelimit_service.__file__).parent


def _joined() -> str:
    """The algorithms' files, the rule of passing and the part that talks to Redis, in one.

    Each call runs this whole text, so parts that few calls use stand in functions.
    """
    lua = _PACKAGE / "algorithms" / "lua"

    def text(name: str) -> str:
        return (lua / f"{name}.lua").read_text()

    parts = [f"local algorithms, load_algorithm, load_level = {{}}, {{}}, nil\n{_LAZY}"]
    parts.append(f"load_level = function()\n{text('level')}\nend")
    parts += [
        f"load_algorithm[{number}] = function()\n{text(name)}\nend"
        for name, number in _NUMBERS.items()
    ]
    own = [
        f"own_parameters[{number}] = {{ {names} }}"
        for number, algorithm in enumerate(ALGORITHMS.values())
        if (
            names := ", ".join(
                [f'"{each.name}"' for each in algorithm.parameters if not each.field]
            )
        )
    ]
    parts.append("\n".join(["local own_parameters = {}", *own]))
    parts.append(f"local function load_settle(holding)\n{text('settle')}\nreturn settle\nend")
    here = _PACKAGE / "stores" / "redis"
    parts += [
        "local function load_long_way(packed, now, read, doubt)",
        f"local function load_holding(held)\n{text('holding')}\nend",
        f"local function load_holds(now)\n{(here / 'holds.lua').read_text()}\nend",
        f"{(here / 'long_way.lua').read_text()}\nend",
    ]
    parts.append((here / "script.lua").read_text())
    return "\n".join(parts)


_LAZY: Final = """\
local level = setmetatable({}, { __index = function(level, name)
  for each, charge_or_refund in pairs(load_level()) do
    level[each] = charge_or_refund
  end
  return rawget(level, name)
end })
setmetatable(algorithms, { __index = function(_, number)
  algorithms[number] = load_algorithm[number]()
  return rawget(algorithms, number)
end })
"""


SCRIPT: Final = _joined()
SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class _Form(NamedTuple):
    """Those parts of a spec's arguments that are the same in every script call."""

    spec: CounterSpec
    """Held here, so that no other spec can get its id."""
    number: int
    rest: bytes
    """The bytes behind a hit; none for a fixed window of the clock."""
    single: bytes
    """A single enforced hit, packed; empty if its bytes change with time."""
    weight: int
    """What a hit may take of Redis' time at most, in units of some 4 microseconds."""


_MAX_FORMS: Final = 4_096
_forms: Final[dict[int, _Form]] = {}
"""By the spec's id: there is one spec for all hits on a limit, and hashing it costs more."""


def _form(spec: CounterSpec) -> _Form:
    """Works out a spec's form, and remembers it."""
    algorithm = spec.algorithm
    number, rest, flags = _NUMBERS[algorithm.name], b"", 0
    if spec.holds or not spec.adds:
        rest = _rest(spec, None)
        flags = _MORE
    single = b""
    if not isinstance(spec.anchor, Calendar):
        single = _HIT.pack(spec.limit, spec.window_us, 1, number, flags) + rest
    if len(_forms) >= _MAX_FORMS:
        _forms.clear()  # callers bring limits of their own
    weight = algorithm.weight(spec) + _HELD_WEIGHT * spec.holds
    form = _forms[id(spec)] = _Form(spec, number, rest, single, weight)
    return form


def _rest(spec: CounterSpec, hold: Hold | None) -> bytes:
    """What follows a hit: the rest of its spec, and what it holds or settles."""
    variant = (spec.anchor is Anchor.FIRST_HIT) + 2 * spec.stepped + 4 * spec.form.queue
    variant += 8 * bool(spec.own)
    behind = b""
    if hold is not None:
        flags = _HOLDS * spec.holds | _HAS_HOLD | _SETTLES * hold.settles | _CHARGED * hold.charged
        behind = _HOLD.pack(flags, hold.ttl_us)
    elif spec.holds:
        behind = bytes([_HOLDS])
    variant += 16 * bool(behind)
    rest = _REST_OF_SPEC.pack(spec.rate, spec.tick, spec.buckets, variant)
    return rest + b"".join([_OWN.pack(value) for value in spec.own]) + behind


def _looks_at_held(hit: Hit) -> bool:
    """Whether the script looks at what is held beside a hit's counter."""
    return hit[1].holds or isinstance(hit[9], Hold)


def weight(hits: Sequence[Hit]) -> int:
    """What a request may take of Redis' time at most, in units of some 4 microseconds."""
    known = _forms.get
    return sum([(known(id(hit[1])) or _form(hit[1]))[4] for hit in hits])


_MOST_LEADS: Final = 64
_LEADS: Final = [count.to_bytes(2, "big") for count in range(_MOST_LEADS)]
"""The first bytes of a request, by its number of hits."""


_SINGLE: Final = (1, Mode.ENFORCED, False, False, b"", False)
"""What nearly all hits have between their spec and their policy."""


def _packed(hit: Hit, form: _Form, now_us: int) -> tuple[bytes, int]:
    """A hit packed, and whether its request is settled at once."""
    _, spec, addend, mode, count_denied, refund, lease, joined, _, receipt = hit
    _, number, rest, single, _ = form
    if single and hit[2:8] == _SINGLE:
        return single, _SETTLED
    if isinstance(receipt, Hold):
        rest, receipt = _rest(spec, receipt), None
    flags: int = mode
    if mode is Mode.GRANT:
        flags, number = 0, number + _GRANT
    elif mode is Mode.ADVANCE:
        flags, number = 0, number + _ADVANCE
    flags |= _COUNT_DENIED * count_denied | _REFUND * refund | _JOINED * joined
    if rest:
        flags |= _MORE
    if isinstance(spec.anchor, Calendar):
        flags |= _CALENDAR
        periods = spec.anchor.periods(now_us)
        rest += _PERIODS.pack(periods.number, *periods.starts_us)
    if receipt:
        flags |= _UNDO
        rest += _RECEIPT.pack(*receipt)
    if lease:
        flags |= _LEASE
        rest += len(lease).to_bytes(2, "big") + lease
    part = _HIT.pack(spec.limit, spec.window_us, addend, number, flags) + rest
    return part, _SETTLED if rest or flags != mode or not addend else 0


_KEY: Final = itemgetter(0)
"""The key of a hit."""


class ScriptCall:
    """One call of the script, from the first request that it charges to what its reply says."""

    __slots__ = (
        "_held",
        "_hits",
        "_not_after_us",
        "_packed",
        "at_us",
        "damaged",
        "found",
        "late",
        "now_us",
        "number",
        "parts",
        "priority",
        "sent_us",
        "weight",
        "within",
    )

    at_us: int
    """Once a reply is read: the server's time."""
    found: Iterator[Outcome | None]
    """The outcome of each hit of each request; None if the hit came after its deadline."""
    damaged: Sequence[bytes]
    """The keys of counters that started again from nothing, because their state was impossible."""
    late: bool
    """Whether any hit came after its deadline."""
    within: bool
    """Whether no hit is over, and each has an outcome."""

    def __init__(self, number: int, now_us: int, sent_us: int = 0) -> None:
        """The script sends `number` back, so that a reply is known to be this call's.

        At the wall clock's `now_us` it is decided which periods of a calendar to send; Redis picks
        one of them. `sent_us` is by `elapsed_us`.
        """
        self.number = number
        self.now_us = now_us
        self.sent_us = sent_us
        self.parts: list[tuple[Batch, Sequence[int]]] = []
        """Which requests of which batches these are."""
        self.priority = PRIORITIES - 1
        """The smallest one of these batches."""
        self.weight = 0
        self._hits: list[Hit] = []
        self._held: list[bytes] = []
        """The keys of those beside whose counters the script looks at what is held."""
        self._packed: list[bytes] = []
        self._not_after_us = 0

    def add(
        self, batch: Batch, indexes: Sequence[int], not_after_us: int = 0, beside: int = 0
    ) -> int:
        """Adds the first ones of these requests, and returns how many: as many as fit.

        After `not_after_us`, by the server's clock, only their refunds count; 0 for no deadline.
        What is sent together with this call weighs as much as `beside`. If that is nothing, the
        first request fits in any case.
        """
        known, requests = _forms.get, batch.requests
        charged: list[Hit] = []
        packed: list[bytes] = []
        if not_after_us != self._not_after_us:
            packed.append(_DEADLINE.pack(0, not_after_us))
        weight = beside + self.weight
        count = 0
        for index in indexes:
            hits = requests[index]
            led, start, lighter = len(hits), len(packed), weight
            packed.append(_LEADS[1])
            for hit in hits:
                spec = hit[1]
                form = known(id(spec)) or _form(spec)
                weight += form[4]
                if hit[2:8] == _SINGLE and not form[2]:
                    packed.append(form[3])
                else:
                    part, at_once = _packed(hit, form, self.now_us)
                    packed.append(part)
                    led |= at_once
                    if _looks_at_held(hit):
                        self._held.append(hit[0])
            if weight > MAX_CALL_WEIGHT and lighter:
                weight = lighter
                del packed[start:]
                held = len(self._held) - sum(map(_looks_at_held, hits))
                del self._held[held:]
                break
            charged += hits
            count += 1
            if led != 1:
                packed[start] = _LEADS[led] if led < _MOST_LEADS else led.to_bytes(2, "big")
        if count:
            self.parts.append((batch, indexes[:count]))
            self.priority = min(self.priority, batch.urgency.priority)
            self._not_after_us = not_after_us
            self._hits += charged
            self._packed += packed
            self.weight = weight - beside
        return count

    def arguments(self, judge: bool = False, prefix: bytes = b"") -> tuple[bytes | int | str, ...]:
        """What follows the script's name in EVAL and EVALSHA: keys, time, and the packed hits.

        With `judge` the time `now_us` counts, without it Redis' own. Hits are packed into one
        argument, and each request begins with the number of its hits. In the server the `prefix`
        stands before each key.
        """
        keys: Iterator[bytes] = map(_KEY, self._hits)
        if self._held:
            keys = chain(keys, [key + each for key in self._held for each in HELD_KEYS])
        if prefix:
            keys = map(prefix.__add__, keys)
        count = len(self._hits) + len(HELD_KEYS) * len(self._held)
        return count, *keys, self.now_us if judge else "", b"".join(self._packed)

    @property
    def in_one_slot(self) -> bool:
        """Whether all keys lie in one slot of a cluster."""
        return len({slot_of(hit.key) for hit in self._hits}) <= 1

    def read(self, reply: object) -> bool:
        """Reads a reply; returns whether it can be what the script says to this call."""
        count = len(self._hits)
        end = _HEAD_BYTES + count * _OUTCOME_BYTES
        if not isinstance(reply, bytes) or len(reply) - end not in (0, count):
            return False
        number, self.at_us = _HEAD.unpack_from(reply)
        packed, marks = reply[_HEAD_BYTES:end], reply[end:]
        overs = packed[::_OUTCOME_BYTES]
        if (
            number != self.number
            or overs.strip(b"\0\1")
            or packed[_WAIT_AT::_OUTCOME_BYTES].strip(b"\0")
            or marks.strip(_MARKS)
        ):
            return False
        self.found = starmap(Outcome, _OUTCOME.iter_unpack(packed))
        self.within = b"\1" not in overs
        self.damaged, self.late = (), False
        if marks:
            marked = zip(self._hits, marks, strict=True)
            self.damaged = [hit.key for hit, mark in marked if mark & _DAMAGED]
            self.late = max(marks) >= _LATE
            found = zip(self.found, marks, strict=True)
            self.found = iter([None if mark & _LATE else one for one, mark in found])
            self.within = self.within and not self.late
        return True
