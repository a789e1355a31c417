"""What was worked out for some bytes, remembered by these bytes. Bounded.

It is a table of cells. Each key has one cell, and takes it from the key that had it before.
So nothing is ever searched, grown, or dropped at once. What comes only once is not remembered: a
flood of new keys neither costs memory nor drives out what comes often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["Memo"]

_T = TypeVar("_T")

MAX_KEY_BYTES: Final = 512
"""Longer keys are not remembered, so that the memo is bounded in bytes."""


_BLOCK_BITS: Final = 8
_BLOCK: Final = 1 << _BLOCK_BITS

_MARK_SHIFT: Final = 40
"""Marks are made of the hash's bits above those that choose a cell."""


class Memo(Generic[_T]):
    """Values by bytes and by the number of the rules that they were made under."""

    def __init__(self, cells: int) -> None:
        """`cells` is a power of two."""
        self._mask = cells - 1
        self._empty: list[tuple[bytes, int, _T] | None] = [None] * _BLOCK
        self._blocks = [self._empty] * max(1, cells >> _BLOCK_BITS)
        """The cells, so many in each block. One that nobody has used yet takes no memory."""
        self._marks = bytearray(cells)
        """For each cell some bits of its key's hash. They tell nearly all keys that are not
        remembered, and they stay in the processor's cache."""
        self._asked = bytearray(cells)
        """For each cell the same bits of the key that last asked for it; 0 is nobody yet."""

    def get(self, key: bytes, number: int) -> _T | None:
        """The value that is remembered under these rules. Values of older rules are not given."""
        known: i64 = hash(key)
        cell = known & self._mask
        if self._marks[cell] != known >> _MARK_SHIFT & 0xFF:
            return None
        entry = self._blocks[cell >> _BLOCK_BITS][cell & _BLOCK - 1]
        if entry is not None and entry[0] == key and entry[1] == number:
            return entry[2]
        return None

    def put(self, key: bytes, number: int, value: _T) -> None:
        """Remembers a value if its key comes for the second time.

        It takes the cell of another key. A long key is not remembered, nor one whose cell other
        keys have asked for in the meantime.
        """
        known: i64 = hash(key)
        cell, mark = known & self._mask, known >> _MARK_SHIFT & 0xFF
        asker = mark or 1
        if self._asked[cell] != asker:
            self._asked[cell] = asker
        elif len(key) <= MAX_KEY_BYTES:
            block = self._blocks[cell >> _BLOCK_BITS]
            if block is self._empty:
                block = self._blocks[cell >> _BLOCK_BITS] = [None] * _BLOCK
            block[cell & _BLOCK - 1] = (key, number, value)
            self._marks[cell] = mark
