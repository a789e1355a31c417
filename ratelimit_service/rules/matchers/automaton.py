"""Regular expressions in linear time: the only module that knows google-re2, which may be missing.

What must not live here: rules, and what a pattern may cost (`regex`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Thread
from typing import Any, Final

__all__ = ["Automaton", "BadPatternError", "CompiledPattern", "available"]

_PATTERN_BYTES: Final = 1 << 20
_AUTOMATON_BYTES: Final = 64 << 20
"""What the states of one pattern, and of all of a level at most, may take; beyond that they start
anew."""

_FEW: Final = 8
"""So many patterns are built when they are first asked: quick, and thousands of levels have few."""


class BadPatternError(ValueError):
    """A pattern that cannot be used; says why."""


@cache
def _library() -> Any:
    """Google's RE2; None if it is not installed. It is loaded where rules need it."""
    try:
        import re2  # noqa: PLC0415
    except ImportError:  # it comes with `ratelimit-service[regex]`
        return None
    return re2


def available() -> bool:
    """Whether there is a library for regular expressions."""
    return _library() is not None


def _options(most_bytes: int) -> Any:
    options = _library().Options()
    options.max_mem = most_bytes
    options.log_errors = False
    return options


class CompiledPattern:
    """One pattern."""

    def __init__(self, text: str) -> None:
        """Raises BadPatternError."""
        re2 = _library()
        try:
            self._compiled = re2.compile(text, _options(_PATTERN_BYTES))
        except re2.error as error:
            why = error.args[0]
            said = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
            raise BadPatternError(said) from error
        except UnicodeEncodeError as error:
            raise BadPatternError("it holds half a character") from error

    @property
    def size(self) -> int:
        """How many instructions it comes to."""
        return int(self._compiled.programsize)

    def matches(self, value: str) -> bool:
        """Whether it is all of a value; linear in the value's length."""
        try:
            return self._compiled.fullmatch(value) is not None
        except UnicodeEncodeError:
            return False


class Automaton:
    """Many patterns as one. All are added, then it is built beside other work."""

    def __init__(self) -> None:
        self._set: Any = None
        self._texts: list[str] = []
        self._building: Thread | None = None
        self._waits = False
        """Whether it is to be built when it is first asked."""
        self._built = False

    def add(self, text: str) -> None:
        """Adds the next pattern, which is one that can be used."""
        self._texts.append(text)

    def build(self) -> None:
        """Begins to build it. Many patterns take long, so a thread does, and lets others run."""
        self._waits = True
        if len(self._texts) > _FEW:
            thread = Thread(target=self._build, name="regex", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this process may start no more threads
                return
            self._building, self._waits = thread, False

    def _build(self) -> None:
        most_bytes = min(_AUTOMATON_BYTES, (len(self._texts) + 1) * _PATTERN_BYTES)
        try:
            self._set = _library().Set.FullMatchSet(_options(most_bytes))
            for text in self._texts:
                self._set.Add(text)
            self._set.Add("(?s).*")  # always matches, unless the states run out of memory
            self._set.Compile()
        except _library().error:  # it does not fit into memory
            return
        self._built = True

    def matching(self, value: str) -> Sequence[int]:
        """The numbers of the patterns that are all of a value, smallest first."""
        if self._building is not None:
            self._building.join()
            self._building = None
        elif self._waits:
            self._waits = False
            self._build()
        found = None
        if self._built:
            try:
                found = self._set.Match(value)
            except UnicodeEncodeError:
                return ()
        if not found:  # it does not fit into memory: slower, and right
            return [
                at for at, text in enumerate(self._texts) if CompiledPattern(text).matches(value)
            ]
        return sorted(found)[:-1]
