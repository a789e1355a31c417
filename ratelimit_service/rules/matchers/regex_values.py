"""Values that a regular expression takes, to show how to ask and to see where two of them meet.

What must not live here: whether a value is taken, which is RE2's to say (`automaton`). So what this
reads of RE2's syntax need not be all of it: whoever asks holds each value against the expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ratelimit_service.rules.matchers.automaton import BadPatternError, compiled

__all__ = ["guesses"]

_MOST: Final = 32
"""So many values are guessed of one expression."""
_MOST_DEPTH: Final = 50
_MOST_CHARACTERS: Final = 10_000
"""Of one value."""

_SINGLES: Final = "1aAx-_/.:@ \t\n\r\f\v\a\0é☃"
"""One of these is in nearly every class of characters."""

_ESCAPE: Final = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[0-9a-fA-F]+\}|[0-9a-fA-F]{2})|[0-7]{1,3}|.)", re.DOTALL
)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_GROUP: Final = re.compile(r"\((?:\?(?:P?<\w+>|[imsU-]*(?P<end>[:)])))?")
_REPEATED: Final = re.compile(r"(?:[*+?]|\{(?P<least>[0-9]+)(?:,[0-9]*)?\})\??")


def guesses(text: str, filler: str) -> Sequence[str]:
    """Values that an expression likely takes, `filler` standing for `.*`; none if it is odd."""
    try:
        return list(dict.fromkeys(_Guesser(text, filler).alternatives(0)))
    except (ValueError, OverflowError):  # OverflowError: a character beyond Unicode
        return ()


class _Guesser:
    """Goes once through an expression."""

    def __init__(self, text: str, filler: str) -> None:
        self._text = text
        self._filler = filler
        self._at = 0

    def alternatives(self, depth: int) -> list[str]:
        """Values of all that stands up to a bracket or the end. Raises ValueError."""
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deep")
        values = self._sequence(depth)
        while self._next() == "|":
            self._at += 1
            values += self._sequence(depth)
        return values[:_MOST]

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _sequence(self, depth: int) -> list[str]:
        values = [""]
        while (sign := self._next()) and sign not in "|)":
            options = self._repeated(self._one(sign, depth), any_character=sign == ".")
            values = [before + after for before in values for after in options][:_MOST]
            if max(map(len, values), default=0) > _MOST_CHARACTERS:
                raise ValueError("too long")
        return values

    def _repeated(self, options: list[str], *, any_character: bool) -> list[str]:
        part = _REPEATED.match(self._text, self._at)
        if part is None:
            return options
        self._at = part.end()
        if any_character and part[0][0] in "*+":
            return [self._filler or options[0]] if part[0][0] == "+" else [self._filler]
        if part["least"] is not None:
            return [text * int(part["least"]) for text in options]
        return options if part[0][0] == "+" else [*options, ""]

    def _one(self, sign: str, depth: int) -> list[str]:
        if sign == "(":
            return self._group(depth)
        if sign == "[":
            return self._single(_CLASS)
        if sign == "\\":
            return self._escaped()
        self._at += 1
        return [{".": "x", "^": "", "$": ""}.get(sign, sign)]

    def _group(self, depth: int) -> list[str]:
        part = _GROUP.match(self._text, self._at)
        assert part is not None  # noqa: S101 -- a bracket alone is one
        self._at = part.end()
        if part["end"] == ")":
            return [""]  # flags
        values = self.alternatives(depth + 1)
        if self._next() != ")":
            raise ValueError("a group that does not end")
        self._at += 1
        return values

    def _escaped(self) -> list[str]:
        if self._text.startswith("\\Q", self._at):
            quoted, _, _ = self._text[self._at + 2 :].partition("\\E")
            self._at += len("\\Q" + quoted + "\\E")
            return [quoted]
        if self._text[self._at + 1 : self._at + 2] in tuple("bBAz"):
            self._at += 2
            return [""]
        return self._single(_ESCAPE)

    def _single(self, kind: re.Pattern[str]) -> list[str]:
        """A character of a class, or the one that is written by its number."""
        part = kind.match(self._text, self._at)
        if part is None:
            raise ValueError("a class that does not end")
        self._at = part.end()
        digits = part[0].strip("\\x{}")
        known = _SINGLES
        if part[0].startswith("\\x"):
            known = chr(int(digits, 16))
        elif digits.isdigit():
            known = chr(int(digits, 8))
        try:
            one = compiled(part[0])
        except BadPatternError as error:
            raise ValueError("no class by itself") from error
        return [next(each for each in (*known, *part[0], "") if not each or one.matches(each))]
