"""Regular expressions in linear time: the only module that knows google-re2, which may be missing.

What must not live here: rules, and what a pattern may cost (`regex`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

__all__ = ["Automaton", "BadPatternError", "CompiledPattern", "available", "compiled"]

_PATTERN_BYTES: Final = 1 << 20
"""The memory that the states of one pattern may take; beyond it RE2 drops them and starts again."""


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
            message = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
            raise BadPatternError(message) from error
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
    """Patterns as one, built when it is first asked. To make one loads the library.

    That takes most of a microsecond for each of their instructions. No thread could do it beside
    other work: the library does not let go of the interpreter meanwhile.
    """

    def __init__(self, texts: Sequence[str], most_bytes: int) -> None:
        """Of patterns that can be used. Its states take so many bytes at most, and 1 MiB each."""
        _library()  # takes 10 ms: at best before this process serves, and never in a request's way
        self._texts = texts
        self._most_bytes = min(most_bytes, (len(texts) + 1) * _PATTERN_BYTES)
        self._set: Any = None
        self.built = False
        """Whether it was built, which fails if it does not fit into memory."""

    @property
    def at_hand(self) -> bool:
        """Whether it can be asked without building anything."""
        return self._set is not None

    def build(self) -> None:
        """Builds it, if nobody has done so."""
        if self.built:
            return
        self.built = True
        built = _library().Set.FullMatchSet(_options(self._most_bytes))
        try:
            for text in self._texts:
                built.Add(text)
            built.Add("(?s).*")  # always matches, unless the states run out of memory
            built.Compile()
        except _library().error:  # it does not fit into memory
            return
        self._set = built

    def matching(self, value: str) -> Sequence[int]:
        """The numbers of the patterns that are all of a value, smallest first."""
        self.build()
        matches = None
        if self._set is not None:
            try:
                matches = self._set.Match(value)
            except UnicodeEncodeError:
                return ()
        if not matches:  # it does not fit into memory: slower, and right
            return [at for at, text in enumerate(self._texts) if compiled(text).matches(value)]
        return sorted(matches)[:-1] if len(matches) > 1 else ()


@lru_cache(maxsize=64)
def compiled(text: str) -> CompiledPattern:
    """A pattern that can be used. Some of them are kept."""
    return CompiledPattern(text)
