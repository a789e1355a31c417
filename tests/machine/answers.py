"""What is asked, and what is told: the values of the model's requests and answers."""

from __future__ import annotations

from typing import NamedTuple

from tests.machine.terms import Terms

UNLIMITED = 2**32 - 1


class Asked(NamedTuple):
    """One descriptor of a request."""

    entries: tuple[tuple[str, str], ...]
    addend: int | None = None
    negative: bool = False
    limit: tuple[int, str] | None = None
    """An override: `requests_per_unit` and `unit`."""


class Counted(NamedTuple):
    """What one limit of a descriptor comes to; `remaining` counts the soft part in."""

    over: bool
    remaining: int
    reset_us: int
    counted: int


class Shown(NamedTuple):
    """One of the `limits` in the metadata."""

    descriptor: int
    remaining: int
    reset_seconds: int
    over: bool


class Status(NamedTuple):
    over: bool
    requests_per_unit: int | None = None
    remaining: int = 0
    reset_seconds: int | None = None


class Answer(NamedTuple):
    over: bool
    statuses: tuple[Status, ...]
    limits: tuple[Shown, ...]
    soft: bool
    delay_ms: int | None
    leased: bool
    counted: tuple[Counted, ...]
    """Of every limit of every descriptor, in order."""
    failed: bool = False
    """Whether the call failed instead, by the policy `error`."""
    queue: str = ""
    """The rule into whose queue the request went, by its path."""
    paid: tuple[str, ...] = ()
    """The names of the limits that paid, of descriptors whose limits pay in turn."""


FAILED = Answer(False, (), (), False, None, False, (), failed=True)


def seconds(reset_us: int) -> int:
    """Whole seconds, rounded up, and never 0."""
    return max(1, -(-reset_us // 1_000_000))


def shown(result: Counted, terms: Terms) -> int:
    """Rule: "`remaining` counts down to the limit and stays 0"."""
    return 0 if result.over else max(0, result.remaining - terms.soft)


def partly(result: Counted) -> bool:
    """Whether a limit "denies several hits of which fewer would pass"."""
    return result.over and result.remaining > 0 and not result.counted


def would_pass(result: Counted, terms: Terms) -> int:
    """What the metadata tell of a limit: "How many would [pass], the metadata tell"."""
    return max(0, result.remaining - terms.soft) if partly(result) else shown(result, terms)


def by_policy(answer: Answer) -> Answer:
    """What is told where the store did not count.

    "A status decided so has no `current_limit`."
    """
    statuses = [
        one if one.requests_per_unit is None else Status(one.over) for one in answer.statuses
    ]
    return answer._replace(statuses=tuple(statuses), limits=(), soft=False, delay_ms=None, queue="")
