"""What is wrong in a rule file, for the person who wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ratelimit_service.rules.tree import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Problem", "did_you_mean"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, at one place.

    `path` is the place in the tree, `kind` one word for the sort of problem. What is
    `tolerated` envoyproxy/ratelimit accepts: `serve` takes its meaning and warns.
    """

    source: Source
    path: str
    message: str
    kind: str
    tolerated: bool = False

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{self.source}: {place}{self.message} [{self.kind}]"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that is nearest, as a sentence to append; "" if none is."""
    near = get_close_matches(word.lower(), list(allowed), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
