"""Header blocks, field by field: HPACK's decoder (RFC 7541) with the client's dynamic table.

Its cost is bounded: values that nobody reads are not decoded, a list above the announced size is
not put together, and a list far above it ends the connection. In tests the `hpack` package is the
oracle. What must not live here: what headers mean, nor what the RFC lists (`hpack_tables`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ratelimit_service.grpc.h2.costs import FIELD_NS, HUFFMAN_BYTE_NS
from ratelimit_service.grpc.h2.hpack_tables import (
    CODE_BITS,
    END_OF_TEXT,
    STATIC_FIELDS,
    codes,
)

__all__ = ["MAX_LIST_BYTES", "WANTED", "BlockError", "Field", "FieldReader", "unhuffed"]

MAX_LIST_BYTES: Final = 16_384
"""The largest list of headers of one request, decoded, with 32 bytes more for each. Announced."""

_MOST_LIST_BYTES: Final = 65_536
"""A list above this ends the connection, whatever that does to its table."""

_MOST_HUFFMAN_BYTES: Final = 32_768
"""Of one block, in all that must be decoded."""

_MAX_WANTED_HUFFMAN_BYTES: Final = 1_024
"""If a value that matters is larger than this, the list counts as too large."""

_TABLE_BYTES: Final = 4_096
"""The dynamic table's size at first, and the largest that we allow."""

_FIELD_BYTES: Final = 32
"""What a field counts beside its name and value (RFC 7541, section 4.1)."""

_SHORTEST: Final = _TABLE_BYTES * 30 // 8
"""More Huffman-coded bytes than this are more than the table holds, however long their codes."""

_MAX_NAMES: Final = 1_024
_MAX_NAME_BYTES: Final = 64
"""So many names are remembered, and only names up to so many bytes."""

WANTED: Final = frozenset(
    {
        b":method",
        b":path",
        b"content-type",
        b"content-length",
        b"te",
        b"grpc-timeout",
        b"grpc-encoding",
    }
)
"""Headers whose values matter."""

_STATIC: Final = STATIC_FIELDS
_STATIC_COUNT: Final = len(_STATIC)


class BlockError(Exception):
    """A header block cannot be decoded: the connection's tables may differ from now on."""


class Field(NamedTuple):
    """A field of a block; `value_at` is where its value's length stands.

    A value that does not matter is not read: it is "" here, and `value_at` says where it stands.
    """

    name: bytes
    value: bytes
    start: int
    stop: int
    value_at: int = 0


class FieldReader:
    """Reads the fields of one connection's header blocks, in their order."""

    def __init__(self, wanted: frozenset[bytes] = WANTED) -> None:
        self.wanted = wanted
        """Headers whose values are read."""
        self._entries: deque[tuple[bytes, bytes]] = deque()
        self._bytes = 0
        self.table_bytes = _TABLE_BYTES
        """The size of the table that the client uses, of the size that it may use."""
        self._most_table_bytes = _TABLE_BYTES
        self._listed = 0
        """The size of the last block's list, as far as it was read."""
        self.unhuffed = 0
        """Bytes of the last block that had to be decoded."""
        self.oversized = False
        """Whether the last block's list was above the announced size; then it is not complete.

        A value that is not decoded counts with its coded length.
        """
        self.count = 0
        """The fields of the last block, as far as it was read."""

    def read(self, block: bytes) -> list[Field]:
        """The fields of a complete block. Raises BlockError."""
        try:
            return self._read(block)
        except IndexError as error:
            raise BlockError("the block ends within a field") from error

    @property
    def cost_us(self) -> int:
        """What the last block has cost."""
        return (self.count * FIELD_NS + self.unhuffed * HUFFMAN_BYTE_NS) // 1_000

    def seal(self) -> None:
        """The client uses no table, and may not begin to."""
        self._most_table_bytes = 0

    def _read(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        at, end = 0, len(block)
        self.oversized = False
        self._listed = self.unhuffed = self.count = 0
        while at < end:
            byte = block[at]
            if byte & 0xE0 == 0x20:
                size, at = _integer(block, at, 0x1F)
                self._resize(size, first=not self.count)
                continue
            if byte & 0x80:
                start = at
                index, at = _integer(block, at, 0x7F)
                name, value = self._entry(index)
                self._listed += _FIELD_BYTES + len(name) + len(value)
                field = Field(name, value, start, at)
            else:
                field = self._literal(block, at, kept=byte & 0x40 != 0)
                at = field.stop
            self.count += 1
            if self._listed <= MAX_LIST_BYTES:
                fields.append(field)
                continue
            self.oversized = True
            if self._listed > _MOST_LIST_BYTES:
                raise BlockError("a header list without end")
            if not self.table_bytes:
                break  # nothing behind this can change the result
        return fields

    def _literal(self, block: bytes, start: int, *, kept: bool) -> Field:
        """Reads a field that is written out; later blocks may refer to it if the table keeps it."""
        index, at = _integer(block, start, 0x3F if kept else 0x0F)
        if index:
            name, _ = self._entry(index)
        else:
            coded = block[at] & 0x80
            length, at = _integer(block, at, 0x7F)
            name = block[at : at + length]
            at += length
            if coded:
                name = _names.get(name) or self._name(name)
        value_at = at
        coded = block[at] & 0x80
        length, at = _integer(block, at, 0x7F)
        value = block[at : at + length]
        at += length
        if at > len(block):
            raise BlockError("the block ends within a field")
        wanted = name in self.wanted
        kept = kept and self.table_bytes > 0
        if coded and wanted and length > _MAX_WANTED_HUFFMAN_BYTES:
            self._listed += MAX_LIST_BYTES
            wanted = False
        # While tables are in use every text is decoded, because a fault in it is an error.
        if coded and (wanted or (self._most_table_bytes and length <= _SHORTEST)):
            value = self._text(value)
        if kept:
            self._keep(name, value)
        self._listed += _FIELD_BYTES + len(name) + len(value)
        return Field(name, value if wanted else b"", start, at, value_at)

    def _text(self, coded: bytes) -> bytes:
        self.unhuffed += len(coded)
        if self.unhuffed > _MOST_HUFFMAN_BYTES:
            raise BlockError("a header list without end")
        return unhuffed(coded)

    def _name(self, coded: bytes) -> bytes:
        name = self._text(coded)
        if len(_names) < _MAX_NAMES and len(coded) < _MAX_NAME_BYTES:
            _names[coded] = name
        return name

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        index = index - _STATIC_COUNT - 1
        if not 0 <= index < len(self._entries):
            raise BlockError("an index outside of the tables")
        return self._entries[index]

    def _resize(self, size: int, *, first: bool) -> None:
        if size > self._most_table_bytes or not first:
            raise BlockError("a change of the table's size that is not allowed")
        self.table_bytes = size
        self._evict(size)

    def _keep(self, name: bytes, value: bytes) -> None:
        size = _FIELD_BYTES + len(name) + len(value)
        self._evict(max(0, self.table_bytes - size))
        if size <= self.table_bytes:
            self._entries.appendleft((name, value))
            self._bytes += size

    def _evict(self, most: int) -> None:
        entries = self._entries
        while self._bytes > most:
            name, value = entries.pop()
            self._bytes -= _FIELD_BYTES + len(name) + len(value)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Reads an integer with a prefix (RFC 7541, section 5.1); returns it and where it ends."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
        shift += 7
        if shift > 28:
            raise BlockError("an integer of more than 32 bits")


_names: Final[dict[bytes, bytes]] = {}
"""Names by their Huffman codes: there are few, and decoding is slow."""


_ROOT: Final = 1
"""A state of the Huffman decoder is the bits of a code that has begun, behind a 1."""

_SYMBOLS: Final = {
    (_ROOT << CODE_BITS[symbol]) | code: symbol for symbol, code in enumerate(codes())
}
"""What the decoder has read when it comes to a state."""

_ENDS: Final = frozenset((_ROOT << ones) | ((1 << ones) - 1) for ones in range(8))
"""In these states a text may end: it is filled up to whole bytes with ones."""

_Step = tuple[int, bytes, bool]
"""What a byte does to the decoder: its next state, eight bits higher; the text read; may it end."""

_steps: Final[dict[int, _Step]] = {}
"""By state and byte, filled as they come: at most 65,536 entries."""


_halves: Final[dict[int, tuple[int, bytes]]] = {}
"""What half a byte does, by state and bits: at most 4,096 entries, of which steps are made."""


def _step(key: int) -> _Step:
    """Reads a byte, which is the lowest bits of the key; the state is above them."""
    state, first = _half(key >> 4)
    state, second = _half((state << 4) | (key & 0xF))
    step = state << 8, first + second, state in _ENDS
    _steps[key] = step
    return step


def _half(key: int) -> tuple[int, bytes]:
    """Reads four bits; returns the next state and the text read."""
    known = _halves.get(key)
    if known is not None:
        return known
    state, text = key >> 4, b""
    for at in (3, 2, 1, 0):
        state = (state << 1) | ((key >> at) & 1)
        symbol = _SYMBOLS.get(state)
        if symbol == END_OF_TEXT:
            raise BlockError("no Huffman code")
        if symbol is not None:
            text += bytes((symbol,))
            state = _ROOT
    _halves[key] = state, text
    return state, text


def unhuffed(coded: bytes) -> bytes:
    """What Huffman-coded bytes stand for. Raises BlockError."""
    state, complete = _ROOT << 8, True
    text: list[bytes] = []
    try:
        for byte in coded:
            state, read, complete = _steps[state | byte]
            text.append(read)
    except KeyError:  # some steps are new
        _learn_steps(coded)
        return unhuffed(coded)
    if not complete:
        raise BlockError("a Huffman code is cut short")
    return b"".join(text)


def _learn_steps(coded: bytes) -> None:
    """Fills in all steps that these bytes need. Raises BlockError."""
    state = _ROOT << 8
    for byte in coded:
        step = _steps.get(state | byte)
        if step is None:
            step = _step(state | byte)
        state = step[0]
