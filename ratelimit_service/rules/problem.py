"""What is wrong in a rule file, for the person who wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ratelimit_service.algorithms import CALLED_ELSEWHERE
from ratelimit_service.rules.paths import Source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "MAX_TEXT",
    "Problem",
    "allowed_are",
    "did_you_mean",
    "listed",
    "nearest",
    "origin",
    "quoted",
    "too_long",
]

MAX_TEXT = 4_096
"""Characters of a domain, a key, a value, a template, a description, or metadata: answers and
counters carry them."""

_MAX_QUOTED = 60
"""Characters of a file's text that a message repeats."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, at one place.

    `path` is the place in the tree, `kind` one word for the sort of problem. What is
    `tolerated` envoyproxy/ratelimit accepts: `serve` takes its meaning and warns. A `hint` is
    nothing wrong at all, only worth knowing: `lint` says it.
    """

    source: Source
    path: str
    message: str
    kind: str
    tolerated: bool = False
    hint: bool = False

    def fatal(self, *, strict: bool) -> bool:
        """Whether a file with this problem is bad."""
        return not self.hint and (strict or not self.tolerated)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.source}: {where}{self.message} [{self.kind}]"


_ELSEWHERE = {
    "bucket_size": "burst",
    "capacity": "burst",
    "max_burst": "burst",
    "queue_size": "burst",
    "limit": "requests_per_unit",
    "leak_rate": "requests_per_unit",
    "rate": "requests_per_unit",
    "refill_rate": "requests_per_unit",
    "requests": "requests_per_unit",
    **CALLED_ELSEWHERE,
}
"""Words of books and of other rate limiters, with what they are called here."""


def origin(text: str) -> str:
    """Where a text comes from that its author has not written, as a sentence to append; or ""."""
    if "{{" in text or "}}" in text:
        return "; this is a template that was not filled in: render the chart first"
    if _VARIABLE.search(text):
        return "; this is a variable that was not put in its place: run envsubst, or the like"
    if _FLOAT.fullmatch(text):
        return f"; Helm writes large numbers so: write {float(text):.0f}, in a chart with | int64"
    if _SMART.search(text):
        return "; these quotes come from a word processor: write \" or '"
    return ""


_VARIABLE = re.compile(r"\$\{\w+\}|\$\(\w+\)")
_FLOAT = re.compile(r"[0-9](\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_SMART = re.compile("[\u2018\u2019\u201c\u201d]")


def quoted(text: str) -> str:
    """Text of a file for a message: in quotes, what is not printable escaped, not too long."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


def too_long(name: str, text: str, most: int) -> str:
    """What is said of a text that is too long."""
    return f"{name} has {len(text)} characters: {most} are allowed"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that is nearest, as a sentence to append; "" if none is."""
    near = nearest(word, allowed)
    return f"; did you mean {near!r}?" if near else ""


def allowed_are(word: str, allowed: Collection[str]) -> str:
    """What may stand in place of a word: the nearest one before the list of all."""
    near = nearest(word, allowed)
    return (
        f"did you mean {near!r}? Allowed are {listed(allowed)}"
        if near
        else (f"allowed are {listed(allowed)}")
    )


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The allowed word that means the same elsewhere, or is most alike; "" if none is."""
    meant = _ELSEWHERE.get(word.lower(), "")
    if meant in allowed:
        return meant
    known = {each.lower(): each for each in allowed}
    near = get_close_matches(word.lower(), known, n=1)
    return known[near[0]] if near else ""


def listed(words: Iterable[str]) -> str:
    """Words for a sentence."""
    return ", ".join(words)
