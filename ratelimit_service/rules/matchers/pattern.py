"""Values with a `*` in them: `value: /api/*`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimit_service.rules.matchers.effort import EFFORT
from ratelimit_service.rules.matchers.fragments import FragmentIndex
from ratelimit_service.rules.matchers.matcher import Index, Matcher

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["Pattern"]


_FEW: Final = 8
"""So many patterns are compared one by one, each with so many fragments at most: that takes less
than to look for their fragments."""


class _FragmentSearch(Index):
    """Patterns by a fragment of each, if they are more than a few."""

    def __init__(self) -> None:
        self._few: list[tuple[int, Pattern]] | None = []
        """All of them, None if they are many or long."""
        self._by_fragment = FragmentIndex[tuple[int, Pattern]]()

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next pattern."""
        assert isinstance(matcher, Pattern)  # noqa: S101 -- it is the index of these
        self._by_fragment.add(matcher.fragments, (position, matcher))
        few = self._few
        if few is not None:
            few.append((position, matcher))
            if len(few) > _FEW or len(matcher.fragments) > _FEW:
                self._few = None

    def parts(self) -> Iterator[object]:
        """Those of the patterns."""
        return self._by_fragment.parts()

    def first(self, value: str) -> int:
        """The first declared one that takes it. Raises EffortSpentError."""
        if self._few is not None:
            for position, pattern in self._few:
                if pattern.matches(value):
                    return position
            return -1
        positions = self.all(value)
        return positions[0] if positions else -1

    def all(self, value: str) -> Sequence[int]:
        """All that take it, as declared. Raises EffortSpentError."""
        if not EFFORT.bounded:
            return self._taking(value)
        positions = EFFORT.results.get((self, value))
        if positions is None:
            EFFORT.spend(0)
            positions = self._taking(value)
            EFFORT.results[self, value] = positions
        return positions

    def _taking(self, value: str) -> Sequence[int]:
        likely = self._by_fragment.likely(value)
        return sorted([position for position, pattern in likely if pattern.matches(value)])


@dataclass(frozen=True, slots=True)
class Pattern(Matcher):
    """A value with any number of `*`, each standing for zero or more characters."""

    key = "value"
    help = "The value to match; each `*` in it stands for any characters or none."
    default = "any value"
    noun = "pattern"
    index = _FragmentSearch
    covers_by_text = True
    text: str
    fragments: tuple[str, ...]
    """What stands before the first star, between stars, and behind the last one."""

    @classmethod
    def of(cls, text: str) -> Pattern:
        """The pattern that a value with a `*` is."""
        first, *middle, last = text.split("*")
        return cls(text, (first, *filter(None, middle), last))

    @classmethod
    def written(cls, fields: Fields) -> bool:
        """Without a `*` the value is exact."""
        return "*" in fields.raw(cls.key)

    @classmethod
    def read(cls, fields: Fields) -> Pattern:
        """Every text with a `*` is one."""
        return cls.of(fields.raw(cls.key))

    def __reduce__(self) -> tuple[type[Pattern], tuple[str, tuple[str, ...]]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return Pattern, (self.text, self.fragments)

    def matches(self, value: str) -> bool:
        """Whether the pattern is all of `value`; linear in its length for each fragment."""
        first, *middle, last = self.fragments
        end = len(value) - len(last)
        if end < len(first) or not (value.startswith(first) and value.endswith(last)):
            return False
        at = len(first)
        for fragment in middle:
            start = value.find(fragment, at, end)
            if start < 0:
                return False
            at = start + len(fragment)
        return True

    @property
    def name(self) -> str:
        """Its text, which no exact value can be: those have no `*`."""
        return self.text

    @property
    def literals(self) -> tuple[str, ...]:
        """A value that reads as the pattern does goes to it, whatever stands before."""
        return (self.text,)

    @property
    def takes_all(self) -> bool:
        """Whether it is nothing but stars."""
        return not any(self.fragments)

    @property
    def beginning(self) -> str:
        """What stands before the first star."""
        return self.fragments[0]

    @property
    def covered_text(self) -> str:
        """Its text, as `covers` explains."""
        return self.text

    def covers(self, other: Matcher) -> bool:
        """Whether it takes whatever another pattern takes.

        A `*` of the other stands for any text, and only a `*` of this one can take that. So the
        other's text is matched as if its `*` were a letter that nothing else contains. Of another
        kind it is known how its values begin.
        """
        if isinstance(other, Pattern):
            return self.matches(other.text)
        first, *rest = self.fragments
        return not any(rest) and other.beginning.startswith(first)

    @property
    def example(self) -> str:
        """A 1 for every star."""
        return self.text.replace("*", "1")
