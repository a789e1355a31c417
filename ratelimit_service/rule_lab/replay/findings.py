"""What the use of a rule says about its limits: findings that one can act on, and suggestions.

What must not live here: what is counted (`use`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.model import WHOLE_PPM, Mode
from ratelimit_service.rule_lab.replay.use import LimitUse, RuleUse

__all__ = ["Finding", "Suggestion", "findings_of", "suggestions"]

NEAR: Final = 1.2
"""A caller that asks at most so many times the limit is close to it."""

_MANY_DENIED: Final = 0.05
"""A limit that denies a larger part of its callers is looked at."""

_DECORATIVE: Final = 0.10
"""A limit of which at most this share was ever used will deny nobody soon."""

_TIGHT: Final = 0.90
"""A limit of which more than this share was used, but that denied nobody, will be the next to
deny."""

_FEW: Final = 5
_HALF: Final = 0.5
_FEWEST: Final = 10
"""With fewer callers or denials than this, shares of them say nothing."""

_WORDS: Final = ("no", "one", "two", "three", "four", "five")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to act on: its kind for programs, its sentence for people."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The smallest number, of a key in the rule, that would have denied so many callers at most.

    `beyond`: it is even larger than that, since callers were followed so far only.
    """

    percent: float
    key: str
    number: int
    beyond: bool


def findings_of(use: RuleUse, percent: float) -> Iterator[Finding]:
    """The findings about one rule. Suggestions in them are for so many percent of callers."""
    if use.rule.kind is Kind.UNLIMITED:
        return
    shadow = use.rule.mode is Mode.SHADOW
    denies = "would deny" if shadow else "denies"
    yield from _strict(use, percent, denies)
    yield from _concentrated(use)
    for limit in use.limits:
        yield from _idle(limit, use)
    if shadow and not use.admitted_over:
        yield Finding("harmless", "a shadow that would deny nobody: it can be enforced")


def _strict(use: RuleUse, percent: float, denies: str) -> Iterator[Finding]:
    """Whether it denies many callers, and whether these want little more than it gives."""
    callers = list(use.callers)
    denied = [caller for caller in callers if caller.denied]
    if len(callers) < _FEWEST or len(denied) < _MANY_DENIED * len(callers):
        return
    summary = f"{denies} {_share(len(denied), len(callers))} of callers"
    index = _tightest(use)
    limit = use.limits[index]
    if limit.demand is None or not limit.spec.limit:
        yield Finding("denies", summary)
        return
    near = sum(caller.peaks[index] <= NEAR * limit.spec.limit for caller in denied)
    if near < _HALF * len(denied):
        far = _share(len(denied) - near, len(denied))
        yield Finding("denies", f"{summary}, {far} of these ask more than {NEAR} x the limit")
        return
    text = (
        f"{summary}, {_share(near, len(denied))} of these within {NEAR} x of the limit: too strict"
    )
    best = next(iter(suggestions(limit, index, use, percent)), None)
    if best is not None and not best.beyond:
        text += f" ({best.key} {best.number} would have denied at most {percent:g} %)"
    yield Finding("too_strict", text)


def _tightest(use: RuleUse) -> int:
    """The index of the limit that was over most often."""
    denied = [limit.denied for limit in use.limits]
    return denied.index(max(denied))


def _concentrated(use: RuleUse) -> Iterator[Finding]:
    """Whether few callers make most denials."""
    total = use.deniers.total
    top = use.deniers.top(2 * _FEW + 1)
    made = 0
    for number, caller in enumerate(top[:_FEW], 1):
        made += caller.times - caller.error
        if total >= _FEWEST and made >= _HALF * total and len(top) > 2 * number:
            callers = f"{_WORDS[number]} caller{'s make' if number > 1 else ' makes'}"
            names = ", ".join(caller.name for caller in top[:number])
            yield Finding("few", f"{callers} {_share(made, total)} of denials: {names}")
            return


def _idle(limit: LimitUse, use: RuleUse) -> Iterator[Finding]:
    """Whether a limit denies nobody, and by how much."""
    most = limit.spec.limit
    if not most or use.denied + use.admitted_over or use.requests < _FEWEST:
        return
    share = max(0, limit.peak) / most
    name = f"{limit.limit.name}: " if limit.limit.name and len(use.limits) > 1 else ""
    if share <= _DECORATIVE:
        yield Finding("decorative", f"{name}never above {_share(limit.peak, most)}: decorative")
    elif share >= _TIGHT:
        used = _share(limit.peak, most)
        yield Finding("tight", f"{name}denies nobody, but {used} was used: it is nearly reached")


def suggestions(limit: LimitUse, index: int, use: RuleUse, percent: float) -> Iterator[Suggestion]:
    """The smallest limits that would have denied at most so many percent of callers, then 1, 0.

    By what callers asked, charged or not: had they been answered otherwise, they might have
    asked something else.
    """
    if limit.demand is None or not len(use.callers):
        return
    peaks = sorted((caller.peaks[index] for caller in use.callers), reverse=True)
    key = "burst" if ALGORITHMS[limit.limit.algorithm].refills else "requests_per_unit"
    for share in dict.fromkeys((percent, 1.0, 0.0)):
        denied = int(len(peaks) * share / 100)
        most = peaks[denied] if denied < len(peaks) else 0
        beyond = most >= limit.demand.limit
        yield Suggestion(share, key, max(1, _without_soft(most, limit.limit.soft_ppm)), beyond)


def _without_soft(most: int, soft_ppm: int) -> int:
    """The smallest number that makes such a limit with its soft part."""
    number = most * WHOLE_PPM // (WHOLE_PPM + soft_ppm)
    while number + number * soft_ppm // WHOLE_PPM < most:
        number += 1
    return number


def _share(part: int, whole: int) -> str:
    """A part in percent, with as many digits as mean something."""
    percent = 100 * part / whole if whole else 0
    return f"{percent:.0f} %" if percent >= 1 or not percent else f"{percent:.2g} %"
