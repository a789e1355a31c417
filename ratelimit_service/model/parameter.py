"""A parameter of an algorithm, as rules write it: the one table behind every text about it.

The reader of rules, its messages, the dump, `explain`, the script's argument and the documents'
table all come from these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from ratelimit_service.model.limit import MAX_ADDEND, Limit
from ratelimit_service.model.unit import SECOND_US

__all__ = ["Contradiction", "Parameter", "Takes"]


class Takes(Enum):
    """What the value of a parameter is."""

    NUMBER = auto()
    """A whole number from `least` to `most`; 0 where it is not given."""
    WORD = auto()
    """One of `words`; what is kept is its index among them. The first one is the default."""
    DURATION = auto()
    """A length of time, as 500ms, kept in microseconds; 0 where it is not given."""
    ANCHOR = auto()
    """One of the keys that say together where windows begin."""


class Parameter(NamedTuple):
    """One key of a rule that means something to one algorithm, or to some.

    `help` is the sentence of the documents' table, `default` its column. `instead` is told to
    who gives the key to another algorithm. `field` is the field of `Limit` that keeps the value
    (of a word, whether it is the second); without one it is in `Limit.own`. `phrase` is how
    `explain` speaks of a value, with `{}` for it. `beside` names the key without which this one
    means nothing.
    """

    name: str
    takes: Takes
    help: str
    default: str = "none"
    instead: str = ""
    field: str = ""
    phrase: str = ""
    least: int = 0
    most: int = MAX_ADDEND
    words: tuple[str, ...] = ()
    beside: str = ""
    text_of: Callable[[Limit], str] | None = None
    """The value as rules write it, "" for the default, where `takes` does not say that."""
    phrase_of: Callable[[Limit], str] | None = None
    """What `explain` says, "" for nothing, where `phrase` cannot."""

    def text(self, limit: Limit, value: int) -> str:
        """The value as a rule file has it; "" where it is the default."""
        if self.text_of is not None:
            return self.text_of(limit)
        if not value:
            return ""
        if self.takes is Takes.WORD:
            return self.words[value]
        return f"{value // 1_000}ms" if self.takes is Takes.DURATION else str(value)

    def phrase_for(self, limit: Limit, value: int) -> str:
        """The value in words for people; "" where it is the default."""
        if self.phrase_of is not None:
            return self.phrase_of(limit)
        if not value:
            return ""
        text = self.text(limit, value)
        if self.takes is Takes.DURATION:
            text = f"{value / SECOND_US:g} s"
        return (self.phrase or f"{self.name} {{}}").format(text)


class Contradiction(NamedTuple):
    """Why values of a limit make no sense together, and the key to mend it at."""

    kind: str
    message: str
    key: str
    hint: bool = False
    """Whether it is only good to know."""
