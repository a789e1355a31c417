"""Header blocks: from HPACK (RFC 7541) to what a gRPC server must know of a request.

After its first call a client is told to use no dynamic table. Once it has obeyed, no block
depends on another: a block is walked field by field, only what matters is decoded, and equal
blocks are remembered by their bytes. Until then, and for whatever the walk does not know, the
`hpack` package decodes everything; in tests it is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import hpack
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

__all__ = ["MAX_BLOCK_BYTES", "BlockError", "Head", "HeaderReader", "literal"]

MAX_BLOCK_BYTES = 16_384
"""The largest header block, coded, and the largest list of headers, decoded."""

_MAX_REMEMBERED = 1_024
_MAX_REMEMBERED_BYTES = 1_024

_STATIC: tuple[tuple[bytes, bytes], ...] = HeaderTable.STATIC_TABLE
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = frozenset({b":method", b":scheme", b":path"})
_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_WANTED = frozenset(
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

_UNREAD = b""
_NAME_CHARACTERS = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TIMEOUT_UNITS_US = {
    b"H": 3_600_000_000,
    b"M": 60_000_000,
    b"S": 1_000_000,
    b"m": 1_000,
    b"u": 1,
    b"n": 0,
}


class BlockError(Exception):
    """A header block cannot be decoded: the connection's tables may differ from now on."""


class Head(NamedTuple):
    """What a request's headers say.

    `malformed` tells why the request breaks HTTP/2's rules, "" if it does not. `trailers` marks
    a block without pseudo-headers.
    """

    path: bytes = b""
    method: bytes = b""
    content_type: bytes = b""
    content_length: int | None = None
    timeout_us: int | None = None
    encoding: bytes = b""
    trailers: bool = False
    malformed: str = ""


class HeaderReader:
    """Reads the header blocks of one connection, in their order."""

    remembered: dict[bytes, Head] = {}  # noqa: RUF012 -- shared on purpose: blocks depend on nothing
    """Heads by their blocks, for all connections whose clients use no dynamic table."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        self._tableless = False

    def without_table(self) -> None:
        """The client knows that there is no table any more: its next block must say so first."""
        self._decoder.max_allowed_table_size = 0
        self._tableless = True

    def read(self, block: bytes) -> Head:
        """Reads a complete header block. Raises BlockError."""
        if not self._tableless or self._decoder.header_table_size:
            return self._decode(block)
        head = self.remembered.get(block)
        if head is None:
            try:
                head = _judged(_walk(block))
            except IndexError as error:
                raise BlockError("the block ends within a field") from error
            if len(block) <= _MAX_REMEMBERED_BYTES:
                if len(self.remembered) >= _MAX_REMEMBERED:
                    self.remembered.clear()
                self.remembered[block] = head
        return head

    def _decode(self, block: bytes) -> Head:
        try:
            fields = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise BlockError(str(error)) from error
        except (IndexError, ValueError) as error:
            raise BlockError("the block ends within a field") from error
        return _judged((bytes(name), bytes(value)) for name, value in fields)


def literal(name: bytes, value: bytes) -> bytes:
    """A field to send: not indexed, not Huffman-coded (RFC 7541, section 6.2.2)."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 127:
        return bytes((number,))
    coded = [127]
    number -= 127
    while number >= 128:
        coded.append(number % 128 + 128)
        number //= 128
    return bytes([*coded, number])


def _walk(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The fields of a block that uses no dynamic table; values that do not matter are "".

    Raises IndexError where the block ends too early, BlockError for other mistakes.
    """
    at, end = 0, len(block)
    started = False
    while at < end:
        byte = block[at]
        if byte & 0x80:
            index, at = _integer(block, at, 0x7F)
            if not 0 < index <= len(_STATIC):
                raise BlockError("an index outside of the tables")
            started = True
            yield _STATIC[index - 1]
            continue
        if byte & 0xE0 == 0x20:
            size, at = _integer(block, at, 0x1F)
            if size or started:
                raise BlockError("a change of the table's size that is not allowed")
            continue
        index, at = _integer(block, at, 0x3F if byte & 0x40 else 0x0F)
        if index:
            if index > len(_STATIC):
                raise BlockError("an index outside of the tables")
            name = _STATIC[index - 1][0]
        else:
            coded = block[at] & 0x80
            length, at = _integer(block, at, 0x7F)
            name = block[at : at + length]
            at += length
            if coded:
                name = _name(name)
        coded = block[at] & 0x80
        length, at = _integer(block, at, 0x7F)
        value = block[at : at + length]
        at += length
        if at > end:
            raise BlockError("the block ends within a field")
        started = True
        if name not in _WANTED:
            yield name, _UNREAD
        else:
            yield name, _text(value) if coded else value


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """An integer with a prefix (RFC 7541, section 5.1), and where it ends."""
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


_names: dict[bytes, bytes] = {}
"""Names by their Huffman codes: there are few, and decoding is slow."""


def _name(coded: bytes) -> bytes:
    name = _names.get(coded)
    if name is None:
        name = _text(coded)
        if len(_names) < _MAX_REMEMBERED:
            _names[coded] = name
    return name


def _text(coded: bytes) -> bytes:
    try:
        return decode_huffman(coded)
    except hpack.HPACKError as error:
        raise BlockError(str(error)) from error


def _judged(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """What the fields say, held against RFC 9113, sections 8.2 and 8.3."""
    found: dict[bytes, bytes] = {}
    pseudo: set[bytes] = set()
    malformed = ""
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular:
                malformed = "a pseudo-header after a header"
            elif name not in _PSEUDO or name in pseudo:
                malformed = "a pseudo-header that is unknown or there twice"
            pseudo.add(name)
        else:
            regular = True
            if not name or not _NAME_CHARACTERS.issuperset(name):
                malformed = "a header name that is no lower-case token"
            elif name in _CONNECTION or (name == b"te" and value != b"trailers"):
                malformed = "a header of connections"
        if name in _WANTED:
            found[name] = value
    if pseudo and (not pseudo >= _REQUIRED or not found[b":path"]):
        malformed = malformed or "a pseudo-header is missing"
    length = found.get(b"content-length")
    return Head(
        found.get(b":path", b""),
        found.get(b":method", b""),
        found.get(b"content-type", b""),
        int(length) if length and length.isdigit() and len(length) < 12 else None,
        _timeout_us(found.get(b"grpc-timeout", b"")),
        found.get(b"grpc-encoding", b""),
        not pseudo,
        malformed,
    )


def _timeout_us(text: bytes) -> int | None:
    """A grpc-timeout in microseconds; None if there is none that can be read."""
    number, unit = text[:-1], _TIMEOUT_UNITS_US.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(number) * unit if unit else int(number) // 1_000
