"""What a walk may do next: rules, requests, and how time goes.

Each is made of one number, digit by digit, since what hypothesis draws in many pieces is slow.
The first of the options is the simplest, so that what fails shrinks to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from tests.machine.meaning import Rule, Settings

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

Limit = Mapping[str, Any]
T = TypeVar("T")

NUMBERS = [5, 3, 1, 7, 10, 0, 100]
RATES = [5, 3, 1, 7, 10, 100]
UNITS = ["minute", "second", "minute", "hour", "day"]
KINDS: list[Limit] = [
    {"algorithm": "fixed_window"},
    {"algorithm": "fixed_window", "anchor": "first_hit"},
    {"algorithm": "fixed_window", "per": "calendar", "unit": "day", "time_zone": "Europe/Berlin"},
    {"algorithm": "fixed_window", "per": "calendar", "unit": "month"},
    {"algorithm": "sliding_window"},
    {"algorithm": "sliding_window", "buckets": 6},
    {"algorithm": "sliding_window", "buckets": 7},
    {"algorithm": "sliding_log"},
    {"algorithm": "token_bucket"},
    {"algorithm": "token_bucket", "burst": 5},
    {"algorithm": "token_bucket", "refill": "stepped", "burst": 7},
    {"algorithm": "leaky_bucket", "burst": 3},
    {"algorithm": "leaky_bucket", "max_wait": "30s", "unit": "minute"},
    {"algorithm": "concurrency"},
]
COUNTS_ANY = ("fixed_window", "sliding_window", "sliding_log")
RESERVING = ("reservations", "max_reservation", "on_expiry", "max_reservation_ttl")
ALONE = (*RESERVING, "count_denied")
"""What limits that pay in turn cannot have."""

CHOICES = 1 << 48

MANY = 25_000
"""Of which a hold takes a ten-thousandth at least, which is 3."""


class Choice:
    """Picks options by the digits of a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def of(self, options: Sequence[T]) -> T:
        self._number, at = divmod(self._number, len(options))
        return options[at]

    def one_in(self, chances: int) -> bool:
        return self.of(range(chances)) == chances - 1


def numbered(limit: Limit, choice: Choice) -> Limit:
    """The same limit with other numbers, which are no part of its counters' names."""
    found = dict(limit)
    bucket = limit["algorithm"] in ("token_bucket", "leaky_bucket")
    found["requests_per_unit"] = choice.of(RATES if bucket else NUMBERS)
    soft = choice.of(["", "", "", "50%", "20%", "100%"])
    found.pop("soft", None)
    if "burst" in limit:
        found["burst"] = choice.of(RATES)
    if "max_wait" in limit:
        found["requests_per_unit"] += 1
    elif soft:
        found["soft"] = soft
    if limit["algorithm"] in COUNTS_ANY:
        found["count_denied"] = choice.one_in(6)
    return _reservations(found, choice)


def _reservations(limit: Limit, choice: Choice) -> Limit:
    """The same limit, and most of those that can take reservations do."""
    found = {key: value for key, value in limit.items() if key not in RESERVING}
    if choice.one_in(4) or "max_wait" in limit or limit["algorithm"] == "concurrency":
        return found
    found["reservations"] = True
    found["max_reservation"] = choice.of(["100%", "100%", "50%", "34%"])
    found["on_expiry"] = choice.of(["release", "charge"])
    if choice.one_in(3):
        found["max_reservation_ttl"] = "2s"
    if limit["algorithm"] != "sliding_log" and choice.one_in(8):
        found["requests_per_unit"] = MANY
    return found


def moded(node: Rule, choice: Choice) -> Rule:
    """The same rule in another mode, with a queue or without one."""
    mode = choice.of(range(10))
    first = node.get("charge") == "first"
    return {
        **node,
        "shadow_mode": mode in (1, 3),
        "quota_mode": mode in (2, 3, 4) and not first,
        "on_limit": choice.of(["deny", "enqueue"]),
    }


def in_turn(limit: Limit, place: int) -> Limit:
    """The same limit as it may stand in a list whose limits pay in turn."""
    found = {key: value for key, value in limit.items() if key not in ALONE}
    found.setdefault("name", f"p{place}")
    if limit["algorithm"] in ("token_bucket", "leaky_bucket"):
        found.pop("soft", None)
    return found


def _pay_in_turn(limits: Sequence[Limit]) -> list[Limit]:
    """Those of these limits that can pay in turn, if these are several; else none."""
    seconds = [limit["unit"] == "second" for limit in limits]
    fit = [
        limit
        for limit in limits
        if "max_wait" not in limit and (limit["unit"] == "second") == all(seconds)
    ]
    return [in_turn(limit, place) for place, limit in enumerate(fit)] if len(fit) > 1 else []


def _limit(number: int) -> Limit:
    choice = Choice(number)
    limit = dict(choice.of(KINDS))
    limit.setdefault("unit", choice.of(UNITS))
    return numbered(limit, choice)


def _counts(limit: Limit) -> object:
    keys = ("algorithm", "unit", "anchor", "per", "time_zone", "buckets", "refill")
    return tuple(limit.get(key) for key in keys)


def _nodes(key: str, form: int, several: Sequence[Limit]) -> list[Rule]:
    """The nodes of one key."""
    limits = list({_counts(limit): limit for limit in several}.values())
    node: dict[str, Any] = {"key": key}
    before: list[Rule] = []
    choice = Choice(form)
    if key == "r0":
        limits[0] = {**limits[0], "name": "first"}
    elif choice.one_in(8):
        limits[0] = {**limits[0], "replaces": [{"name": "first"}]}
    paying = _pay_in_turn(limits) if choice.one_in(2) else []
    if paying:
        limits = paying
        node["charge"] = "first"
    node |= {"rate_limits": limits} if len(limits) > 1 else {"rate_limit": limits[0]}
    shape = choice.of(["", "", "", "", "", "pattern", "shared", "unlimited", "deep", "free"])
    if shape == "pattern":
        node["value"] = "a*"
    elif shape == "shared":
        node |= {"value": "a*", "share_threshold": True}
    elif shape == "unlimited":
        before.append({"key": key, "value": "a", "rate_limit": {"unlimited": True}})
    elif shape == "deep":
        node["descriptors"] = [{"key": "deep", "rate_limit": limits[0]}]
    elif shape == "free":
        before.append({"key": key, "value": "b"})
    return [*before, moded(node, choice)]


_limits = st.lists(st.integers(0, CHOICES).map(_limit), min_size=1, max_size=3)
rules = st.lists(st.tuples(st.integers(0, CHOICES), _limits), min_size=1, max_size=5).map(
    lambda drawn: [
        node
        for place, (form, limits) in enumerate(drawn)
        for node in _nodes(f"r{place}", form, limits)
    ]
)
"""A domain's rules."""

choices = st.integers(0, CHOICES).map(Choice)


def changed(rules: Sequence[Rule], choice: Choice) -> list[Rule]:
    """The same rules, of which one has other numbers and another mode."""
    found = list(rules)
    place = choice.of(range(len(found)))
    node = dict(found[place])
    if "rate_limits" in node:
        limits = [numbered(limit, choice) for limit in node["rate_limits"]]
        if node.get("charge") == "first":
            limits = [in_turn(limit, place) for place, limit in enumerate(limits)]
        node["rate_limits"] = limits
    elif "unlimited" not in node.get("rate_limit", {"unlimited": True}):
        node["rate_limit"] = numbered(node["rate_limit"], choice)
    else:
        return found
    found[place] = moded(node, choice)
    return found


settings = st.integers(0, 12).map(lambda mode: Settings(mode == 1, mode == 2, mode == 3, mode > 8))


class Wish(NamedTuple):
    """A descriptor that is asked for."""

    rule: int
    value: str
    addend: int | None
    lease: int
    limit: tuple[int, str] | None
    deeper: bool


def _wish(number: int) -> Wish:
    choice = Choice(number)
    return Wish(
        choice.of(range(6)),
        choice.of(["a", "a", "a", "b", "aa", "new"]),
        choice.of([None, None, None, 1, 2, 3, 0, 5, 40, -1, -2, -1, -100]),
        choice.of(range(5)),
        choice.of([None] * 14 + [(5, "minute"), (2, "second")]),
        choice.one_in(10),
    )


wish = st.integers(0, CHOICES).map(_wish)
wishes = st.lists(wish, min_size=1, max_size=4)
request = st.tuples(wishes, st.sampled_from([0, 0, 1, 2]))
"""A request: its descriptors, and its hits."""

Requested = tuple[list[Wish], int, int]

requested = st.tuples(wishes, st.sampled_from([0, 0, 1, 2]), st.integers(0, 1))
"""A request, and the process that gets it."""

requests = st.lists(request, min_size=1, max_size=3)


class Held(NamedTuple):
    """What is to be reserved: hits, for how many seconds, and by which id, if by one of before."""

    hits: int
    ttl: int
    again: int | None


def _held(number: int) -> Held:
    choice = Choice(number)
    return Held(
        choice.of([2, 1, 3, 0, 5, 40, MANY - 2]),
        choice.of([60, 1, 0, 10, 3_000]),
        choice.of([None, None, *range(5)]),
    )


held = st.integers(0, CHOICES).map(_held)
used = st.sampled_from([2, 0, 1, 3, 40, MANY - 2])
"""What was used of it."""

LONG = [40 * DAY, SECOND << 20, MINUTE << 20]
"""Among them so many windows that their numbers, modulo 2^20, are those of now."""

pauses = st.sampled_from(
    [0, 1, 999, SECOND // 3, SECOND, 7 * SECOND, MINUTE // 2, MINUTE, 3 * MINUTE, DAY, *LONG]
)
short_pauses = st.sampled_from([0, 0, 1, SECOND // 3, SECOND - 1])
steps_back = st.sampled_from([1, SECOND // 3, SECOND - 1, 20 * SECOND, MINUTE - 1, 3 * MINUTE])
policies = st.sampled_from(["local", "local", "local", "open", "closed", "error"])
