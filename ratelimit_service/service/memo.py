"""What was worked out for some bytes, remembered by these bytes. Bounded.

One large list in which each entry has one place and takes it from whoever had it: nothing is
ever searched, grown, or dropped at once. What comes only once is not remembered, so that a
flood of new keys neither costs memory nor drives out what comes often.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

__all__ = ["Memo"]

_T = TypeVar("_T")

MAX_KEY_BYTES: Final = 512
"""What is longer is not remembered, which bounds the memo in bytes."""


_MARK_SHIFT: Final = 40
"""Beyond the bits that make a place."""


class Memo(Generic[_T]):
    """Values by bytes and by the number of the rules that they were made under."""

    def __init__(self, cells: int) -> None:
        """`cells` is a power of two."""
        self._mask = cells - 1
        self._cells: list[tuple[bytes, int, _T] | None] = [None] * cells
        self._marks = bytearray(cells)
        """Some bits of the hash of the key in each place: nearly all that is not remembered is told
        by these, which stay in the processor's cache."""
        self._asked = bytearray(cells)
        """The same of the key that last asked for the place."""

    def get(self, key: bytes, number: int) -> _T | None:
        """The value remembered under these rules; what is left of older ones is not given out."""
        known = hash(key)
        cell = known & self._mask
        if self._marks[cell] != known >> _MARK_SHIFT & 0xFF:
            return None
        found = self._cells[cell]
        if found is not None and found[0] == key and found[1] == number:
            return found[2]
        return None

    def put(self, key: bytes, number: int, value: _T) -> None:
        """Remembers a value in place of another, if its key comes for the second time.

        Not if other keys wanted its place in the meantime, or it is long.
        """
        known = hash(key)
        cell, mark = known & self._mask, known >> _MARK_SHIFT & 0xFF
        if self._asked[cell] != mark:
            self._asked[cell] = mark
        elif len(key) <= MAX_KEY_BYTES:
            self._cells[cell] = (key, number, value)
            self._marks[cell] = mark
