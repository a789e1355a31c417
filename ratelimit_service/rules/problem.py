"""What is wrong in a rule file, for the person who wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratelimit_service.rules.paths import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Problem", "did_you_mean", "listed", "quoted"]

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


def quoted(text: str) -> str:
    """Text of a file for a message: in quotes, what is not printable escaped, not too long."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that is nearest, as a sentence to append; "" if none is."""
    near = nearest(word, allowed)
    return f"; did you mean {near!r}?" if near else ""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The allowed word that is most alike; "" if none is."""
    from difflib import get_close_matches  # noqa: PLC0415 -- no worker needs it

    known = {each.lower(): each for each in allowed}
    near = get_close_matches(word.lower(), known, n=1)
    return known[near[0]] if near else ""


def listed(words: Iterable[str]) -> str:
    """Words for a sentence."""
    return ", ".join(words)
