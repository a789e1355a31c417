"""JSON that is read a few values at a time: Python's own reader takes a whole text in one go.

That reader still reads each text and number. Nothing is known here of requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Final

__all__ = ["MOST_DEPTH", "read_json"]

MOST_DEPTH: Final = 16
"""So many objects and lists may lie in each other; a request has six of them."""

_AT_ONCE: Final = 128
"""Values in one step: less than half a millisecond's work."""

_after_blanks: Final = re.compile(r"[ \t\n\r]*").match


def read_json(text: str, decoder: json.JSONDecoder) -> Generator[None, None, object]:
    """What the decoder would make of the text. Raises ValueError for what is no JSON."""
    reader = _StepReader(text, decoder)
    value = yield from reader.value(0)
    if reader.at != len(text):
        raise reader.wrong("Extra data")
    return value


class _StepReader:
    """A text, and how far it is read. `at` is never before a blank."""

    def __init__(self, text: str, decoder: json.JSONDecoder) -> None:
        self._text = text
        self._decoder = decoder
        self._read = 0
        """How many values have been begun."""
        self.at = 0
        self._move(0)

    def wrong(self, why: str) -> json.JSONDecodeError:
        """The error of what stands here, in the words of Python's reader if it has any."""
        return json.JSONDecodeError(why, self._text, self.at)

    def value(self, depth: int) -> Generator[None, None, object]:
        """Reads the value that begins here, in so many objects and lists."""
        self._read += 1
        if self._read % _AT_ONCE == 0:
            yield
        mark = self._text[self.at : self.at + 1]
        if mark not in {"{", "["}:
            return self._plain()
        if depth == MOST_DEPTH:
            raise self.wrong(f"more than {MOST_DEPTH} objects and lists lie in each other")
        return (yield from (self._pairs if mark == "{" else self._list)(depth + 1))

    def _plain(self) -> object:
        """A text, a number, or a word."""
        value, stop = self._decoder.raw_decode(self._text, self.at)
        self._move(stop)
        return value

    def _list(self, depth: int) -> Generator[None, None, object]:
        items: list[object] = []
        self._move(self.at + 1)
        if self._passed("]"):
            return items
        while True:
            items.append((yield from self.value(depth)))
            if self._passed("]"):
                return items
            self._expect(",")

    def _pairs(self, depth: int) -> Generator[None, None, object]:
        pairs: list[tuple[str, object]] = []
        self._move(self.at + 1)
        if not self._passed("}"):
            while True:
                if not self._text.startswith('"', self.at):
                    raise self.wrong("Expecting property name")
                name = str(self._plain())
                self._expect(":")
                pairs.append((name, (yield from self.value(depth))))
                if self._passed("}"):
                    break
                self._expect(",")
        hook = self._decoder.object_pairs_hook
        return dict(pairs) if hook is None else hook(pairs)

    def _passed(self, mark: str) -> bool:
        """Goes on behind a mark, if it stands here."""
        if not self._text.startswith(mark, self.at):
            return False
        self._move(self.at + 1)
        return True

    def _expect(self, mark: str) -> None:
        if not self._passed(mark):
            raise self.wrong(f"Expecting {mark!r} delimiter")

    def _move(self, at: int) -> None:
        blanks = _after_blanks(self._text, at)
        assert blanks is not None  # noqa: S101 -- it takes nothing as well
        self.at = blanks.end()
