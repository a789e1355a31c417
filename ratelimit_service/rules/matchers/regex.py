"""Values of a form: `regex: "/api/v[0-9]+/.*"`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from ratelimit_service.rules.matchers.automaton import (
    Automaton,
    BadPatternError,
    CompiledPattern,
    available,
    compiled,
)
from ratelimit_service.rules.matchers.effort import EFFORT
from ratelimit_service.rules.matchers.matcher import ONE_TEXT, Index, Matcher
from ratelimit_service.rules.matchers.regex_values import guesses
from ratelimit_service.rules.problem import quoted

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["Regex"]

_MOST_CHARACTERS: Final = 1_000
_MOST_INSTRUCTIONS: Final = 1_000
"""Of one pattern, and of all of a level that begin as the same value does."""

_MOST_WORK: Final = 400_000
"""Instructions times bytes, at most, that are spent on a value: each takes some nanoseconds."""

_MOST_BYTES: Final = 64 << 20
"""The memory that the states of all patterns of a level may take; beyond it RE2 drops them."""

_BUILDING: Final = 200
"""What it takes to build one instruction, in the unit of `_MOST_WORK`."""

_AT_ONCE: Final = 32
"""Patterns whose instructions are added up at once: half a millisecond's worth."""


class _Bundle:
    """Some patterns of a level, and the positions that they have in it."""

    def __init__(self, patterns: Sequence[tuple[int, Regex]], most_bytes: int) -> None:
        self._positions = [position for position, _ in patterns]
        self.size = sum(pattern.size for _, pattern in patterns)
        """How many instructions they come to."""
        self.automaton = Automaton([pattern.text for _, pattern in patterns], most_bytes)

    def get_ready(self) -> None:
        """Builds the automaton, if nobody has done so. Raises EffortSpentError."""
        if not self.automaton.built:
            EFFORT.spend(self.size * _BUILDING)
            self.automaton.build()

    def matching(self, value: str) -> Sequence[int]:
        """The positions of those that match, as declared."""
        return [self._positions[at] for at in self.automaton.matching(value)]


class _Together(Index):
    """All patterns of a level. Only those are asked that begin as the value does, all at once."""

    def __init__(self) -> None:
        self._patterns: list[tuple[int, Regex]] = []
        self._every: list[_Bundle] = []
        self._bundles: dict[str, _Bundle] = {}
        """By the text that their patterns begin with."""
        self._lengths: list[int] = []
        """Of these texts."""
        self._most = 1
        """Instructions for a byte in the worst case."""

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next one's pattern."""
        assert isinstance(matcher, Regex)  # noqa: S101 -- it is the index of these
        self._patterns.append((position, matcher))

    def completing(self) -> Iterator[None]:
        """Parts the patterns, so that each bundle is built in a moment."""
        for most, _ in _growing_together([pattern for _, pattern in self._patterns]):
            self._most = max(most, 1)
            yield
        alike: dict[str, list[tuple[int, Regex]]] = {}
        for number, (position, pattern) in enumerate(self._patterns, 1):
            alike.setdefault(pattern.beginning, []).append((position, pattern))
            if number % _AT_ONCE == 0:
                yield
        texts: list[list[str]] = [[]]
        size = 0
        for text in sorted(alike):
            own = sum(pattern.size for _, pattern in alike[text])
            if texts[-1] and size + own > _MOST_INSTRUCTIONS:
                texts.append([])
                size = 0
                yield
            texts[-1].append(text)
            size += own
        for together in texts:
            patterns = sorted(chain(*map(alike.__getitem__, together)), key=itemgetter(0))
            self._every.append(_Bundle(patterns, _MOST_BYTES // len(texts)))
            self._bundles.update(dict.fromkeys(together, self._every[-1]))
            yield
        self._lengths = sorted(set(map(len, alike)))
        self._patterns.clear()

    def first(self, value: str) -> int:
        """The first declared one that matches. Raises EffortSpentError."""
        positions = self.all(value)
        return positions[0] if positions else -1

    def all(self, value: str) -> Sequence[int]:
        """All that match, as declared. Raises EffortSpentError."""
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        work = size * self._most
        if work > _MOST_WORK:
            return ()  # it would hold up all others: at worst each byte runs all instructions
        if not EFFORT.bounded:
            return _search(self._candidates(value), value)
        positions = EFFORT.results.get((self, value))
        if positions is None:
            bundles = self._candidates(value)
            for bundle in bundles:
                bundle.get_ready()
            building = sum(bundle.size for bundle in bundles if not bundle.automaton.at_hand)
            EFFORT.spend(work + building * _BUILDING)
            positions = EFFORT.results[self, value] = _search(bundles, value)
        return positions

    def _candidates(self, value: str) -> Sequence[_Bundle]:
        """The bundles that have a pattern that begins as a value does."""
        if len(self._every) == 1:
            return self._every
        bundles: list[_Bundle] = []
        for length in self._lengths:
            bundle = self._bundles.get(value[:length])
            if bundle is not None and bundle not in bundles:
                bundles.append(bundle)
            if length >= len(value):
                break
        return bundles


def _search(bundles: Sequence[_Bundle], value: str) -> Sequence[int]:
    if len(bundles) == 1:
        return bundles[0].matching(value)
    return sorted(position for bundle in bundles for position in bundle.matching(value))


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
    size: int = 1
    """How many instructions it comes to."""

    @classmethod
    def excess(cls, level: Sequence[Matcher]) -> tuple[Matcher, str] | None:
        """Too many, or too many instructions for one value."""
        patterns = [each for each in level if isinstance(each, Regex)]
        size, worst = _together(patterns)
        if size <= _MOST_INSTRUCTIONS or len(patterns) > cls.most:
            return super(Regex, cls).excess(level)
        return worst, (
            f"the regular expressions of this level that begin as {quoted(worst.text)} does come "
            f"to {size} instructions, of at most {_MOST_INSTRUCTIONS}: let them begin with "
            "different texts, or write one_of or a `*` in value for some"
        )

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
                f"regex {quoted(text)} is none: {error}{_at(text, str(error))} (the syntax is "
                "RE2's, without back-references and look-around)"
            ) from error
        if size > _MOST_INSTRUCTIONS:
            raise ValueError(
                f"regex costs too much: it comes to {size} instructions, of at most "
                f"{_MOST_INSTRUCTIONS}; make its repetitions smaller"
            )
        return cls(text, size)

    def matches(self, value: str) -> bool:
        """Whether the pattern is all of a value."""
        return compiled(self.text).matches(value)

    @property
    def beginning(self) -> str:
        """The text that it begins with."""
        return _beginning(self.text)

    @property
    def example(self) -> str:
        """The first that is guessed, with a 1 for `.*`."""
        return next((each for each in self.values("1") if each), "")

    def values(self, filler: str) -> Sequence[str]:
        """Some values that it takes, where `.*` stands for `filler`; none if they are not seen."""
        return [each for each in guesses(self.text, filler) if self.matches(each)]

    def covers(self, other: Matcher) -> bool:
        """Whether it takes all that another takes, as far as its text shows that.

        A text with only `.*` behind it takes all values of one line that begin with the text and
        are not too long. Other values go to the key alone, so no expression takes all values
        (`takes_all`).
        """
        text = _beginning(self.text)
        if self == other or self.text in _EVERYTHING:
            return True
        return self.text == f"{text}.*" and other.beginning.startswith(text)


_EVERYTHING: Final = {".*", "^.*$", "(?s).*"}


def _at(text: str, error: str) -> str:
    """Where in a pattern the mistake is that RE2 names: it quotes the text that begins there."""
    what, _, quoted_part = error.partition(": ")
    if what in {"missing )", "unexpected )"}:
        at = _unmatched_parenthesis(text)
    elif what == "trailing \\":
        at = len(text) - 1
    else:
        at = text.find(quoted_part) if quoted_part else -1
    return f", at character {at + 1}" if at >= 0 else ""


def _unmatched_parenthesis(text: str) -> int:
    """The index of a parenthesis that has no partner; -1 if all have one."""
    opened: list[int] = []
    for part in _PARTS.finditer(text):
        if part[0] == "(":
            opened.append(part.start())
        elif part[0] == ")":
            if not opened:
                return part.start()
            opened.pop()
    return opened[-1] if opened else -1


_PARTS: Final = re.compile(r"\\.|\[\^?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]|.", re.DOTALL)
"""An escaped character, a class of characters, or any other one."""


def _together(patterns: Sequence[Regex]) -> tuple[int, Regex]:
    """The most instructions that one value can need, and one of the patterns that need them.

    A pattern that begins with a text needs none for values that begin otherwise.
    """
    *_, heaviest = _growing_together(patterns)
    return heaviest


def _growing_together(patterns: Sequence[Regex]) -> Iterator[tuple[int, Regex]]:
    """As `_together`, in steps of some patterns each: the last one that it gives is right."""
    beginnings: dict[str, int] = {}
    most, worst = 0, patterns[0]
    texts: list[str] = []
    for pattern in patterns:
        text = _beginning(pattern.text)
        beginnings[text] = beginnings.get(text, 0) + pattern.size
        texts.append(text)
        if len(texts) % _AT_ONCE == 0:
            yield most, worst
    for number, (pattern, text) in enumerate(zip(patterns, texts, strict=True), 1):
        size = sum(beginnings.get(text[:end], 0) for end in range(len(text) + 1))
        if size > most:
            most, worst = size, pattern
        if number % _AT_ONCE == 0:
            yield most, worst
    yield most, worst


_LITERAL: Final = re.compile(
    r"([^\\.\[\](){}*+?|^$]|\\[^\w\s]|\[[^\\\[\]^]\])(?![*?{]|\+?\??(?:\\Q|\(\?[a-zA-Z-]+\)))"
)
"""A character that stands for itself, and cannot be left out: `a`, `\\.` or `[.]`.

RE2 repeats what stands before flags and empty quotes: `a(?i)*` and `a\\Q\\E*` can be nothing.
"""


def _beginning(text: str) -> str:
    """The text that all begin with that a pattern takes, as far as it is plain to see."""
    if "|" in text and not _ONLY_IN_GROUPS.fullmatch(text):
        return ""
    prefix = ""
    at = 0
    while part := _LITERAL.match(text, at):
        prefix += part[0].strip("[]\\") or part[0][1]
        at = part.end()
    return prefix


_ONLY_IN_GROUPS: Final = re.compile(
    r"(?:[^()|\\\[\]]|\\.|\[[^\[\]\\]+\]|\([^()\\\[\]]*\))*", re.DOTALL
)
"""A pattern without alternatives but in groups that hold no others."""
