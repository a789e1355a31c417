"""Values of a form: `regex: "/api/v[0-9]+/.*"`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ratelimit_service.rules.matchers.automaton import (
    Automaton,
    BadPatternError,
    CompiledPattern,
    available,
)
from ratelimit_service.rules.matchers.matcher import ONE_TEXT, Index, Matcher
from ratelimit_service.rules.problem import quoted

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.reader import Fields

__all__ = ["Regex"]

_MOST_CHARACTERS: Final = 1_000
_MOST_INSTRUCTIONS: Final = 1_000


class _Together(Index):
    """All patterns of a level as one automaton: asked once, however many they are."""

    def __init__(self) -> None:
        self._automaton = Automaton()
        self._places: list[int] = []

    def add(self, matcher: Matcher, place: int) -> None:
        """Adds the next one's pattern."""
        self._automaton.add(matcher.text)
        self._places.append(place)

    def completing(self) -> Iterator[None]:
        """Begins to build the automaton."""
        self._automaton.build()
        return iter(())

    def first(self, value: str) -> int:
        """The first declared one that matches."""
        found = self._automaton.matching(value)
        return self._places[found[0]] if found else -1

    def all(self, value: str) -> Sequence[int]:
        """All that match, as declared."""
        return [self._places[at] for at in self._automaton.matching(value)]


@dataclass(frozen=True, slots=True)
class Regex(Matcher):
    """A regular expression that is all of a value. Its time is linear in the value's length."""

    key = "regex"
    help = (
        "A regular expression (RE2) instead, which must be all of the value. See "
        "[matching](#matching)."
    )
    shape = ONE_TEXT
    noun = "regular expression"
    index = _Together
    most = 1_000
    text: str

    @classmethod
    def read(cls, fields: Fields) -> Regex:
        """A pattern that can be used. Raises ValueError."""
        text = fields.text(cls.key)
        if not available():
            raise ValueError(
                "regex needs a library that is not installed: pip install "
                "'ratelimit-service[regex]'"
            )
        if not text:
            raise ValueError("regex must be a text: leave it out to take any value")
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"regex is too long: at most {_MOST_CHARACTERS} characters; use one_of for lists"
            )
        try:
            size = CompiledPattern(text).size
        except BadPatternError as error:
            raise ValueError(
                f"regex {quoted(text)} is none: {error} (the syntax is RE2's, without "
                "back-references and look-around)"
            ) from error
        if size > _MOST_INSTRUCTIONS:
            raise ValueError(
                f"regex costs too much: it comes to {size} instructions, of at most "
                f"{_MOST_INSTRUCTIONS}; make its repetitions smaller"
            )
        return cls(text)

    def matches(self, value: str) -> bool:
        """Whether the pattern is all of a value."""
        return _compiled(self.text).matches(value)


@lru_cache(maxsize=64)
def _compiled(text: str) -> CompiledPattern:
    return CompiledPattern(text)
