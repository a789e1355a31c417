"""Header blocks: from HPACK (RFC 7541) to what a gRPC server must know of a request.

After its first call a client is told to use no dynamic table. Once it has said that it does so,
no block depends on another: a block is walked field by field, only what matters is decoded, and
equal blocks are remembered by their bytes. Until then the `hpack` package decodes everything; in
tests it is the oracle. Some clients acknowledge the setting but keep their table (grpc-java's
okhttp transport); their blocks are decoded with that table for as long as they use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import hpack
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

__all__ = ["ENCODINGS", "MAX_BLOCK_BYTES", "BlockError", "Head", "HeaderReader", "literal"]

MAX_BLOCK_BYTES: Final = 16_384
"""The largest header block, coded, and the largest list of headers, decoded."""

ENCODINGS: Final = frozenset({b"", b"identity", b"gzip"})
"""What `grpc-encoding` may say."""

_MAX_REMEMBERED: Final = 1_024
_MAX_LEARNT_BYTES: Final = 1_024

_STATIC: Final[tuple[tuple[bytes, bytes], ...]] = HeaderTable.STATIC_TABLE
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_WANTED: Final = frozenset(
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

_UNREAD: Final = b""
_NAME_CHARACTERS: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TIMEOUT_UNITS_US: Final = {
    b"H": 3_600_000_000,
    b"M": 60_000_000,
    b"S": 1_000_000,
    b"m": 1_000,
    b"u": 1,
    b"n": 0,
}


class BlockError(Exception):
    """A header block cannot be decoded: the connection's tables may differ from now on."""


@dataclass(frozen=True, slots=True)
class Head:
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
    plain: bool = False
    """A gRPC call with nothing unusual: what follows is its message."""


class _Field(NamedTuple):
    """A field of a walked block; `value_at` is where its value's length stands.

    The value is "" if it does not matter: then `value_at` is set, and it may be anything.
    """

    name: bytes
    value: bytes
    start: int
    stop: int
    value_at: int = 0


class _Likeness:
    """What the latest blocks of a connection have in common.

    A client that traces sends a new block with every call, which differs from the last in the
    values of one or two headers that do not matter here.
    """

    def __init__(self) -> None:
        self._head: Head | None = None
        self._raw: list[bytes] = []
        self._varying: set[int] = set()
        self._pieces: list[bytes] = []

    def head_of(self, block: bytes) -> Head | None:
        """The head of a block that differs only where others have differed."""
        if not self._pieces:
            return None
        *pieces, last = self._pieces
        at = 0
        try:
            for piece in pieces:
                if not block.startswith(piece, at):
                    return None
                at += len(piece)
                length = block[at] & 0x7F
                if length == 0x7F:
                    return None
                at += 1 + length
        except IndexError:
            return None
        return self._head if block[at:] == last else None

    def learn(self, block: bytes, fields: Sequence[_Field], head: Head) -> Head:
        """Compares a block with the one before; returns its head, the same one if they agree."""
        raw = [block[field.start : field.stop] for field in fields]
        differing = [
            number
            for number, (one, other) in enumerate(zip(raw, self._raw, strict=False))
            if one != other
        ]
        if (
            self._head != head
            or len(raw) != len(self._raw)
            or len(block) > _MAX_LEARNT_BYTES
            or not all(fields[number].value_at for number in differing)
        ):
            self._head, self._raw, self._varying, self._pieces = head, raw, set(), []
            return head
        self._varying.update(differing)
        at, pieces = 0, []
        for number in sorted(self._varying):
            pieces.append(block[at : fields[number].value_at])
            at = fields[number].stop
        self._raw, self._pieces = raw, [*pieces, block[at:]] if pieces else []
        return self._head


class HeaderReader:
    """Reads the header blocks of one connection, in their order."""

    remembered: ClassVar[dict[bytes, Head]] = {}
    """Heads by their blocks, for all connections whose clients use no dynamic table: then blocks
    depend on nothing."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        self._tableless = False
        self._independent = False
        """Whether no block depends on another."""
        self._likeness = _Likeness()
        self._heads = HeaderReader.remembered

    def without_table(self) -> None:
        """The client knows that it should use no table.

        Its next block should begin by saying so (RFC 9113, section 4.3.1). A client that does not
        say so goes on with the table that it has.
        """
        self._tableless = True

    def recall(self, block: bytes) -> Head | None:
        """What is known of a block, or of one that differs in nothing that matters."""
        if self._independent:
            return self._heads.get(block) or self._likeness.head_of(block)
        return None

    def read(self, block: bytes) -> Head:
        """Reads a complete header block. Raises BlockError."""
        if not self._independent:
            decoded = self._decode(block)
            self._independent = self._tableless and not self._decoder.header_table_size
            return decoded
        return self.recall(block) or self._walked(block)

    def _walked(self, block: bytes) -> Head:
        try:
            fields = list(_walk(block))
        except IndexError as error:
            raise BlockError("the block ends within a field") from error
        head = self._likeness.learn(
            block, fields, _judged((field.name, field.value) for field in fields)
        )
        if len(block) <= _MAX_LEARNT_BYTES and not self._likeness.head_of(block):
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


def _walk(block: bytes) -> Iterator[_Field]:
    """The fields of a block that uses no dynamic table; values that do not matter are "".

    Raises IndexError where the block ends too early, BlockError for other mistakes.
    """
    at, end = 0, len(block)
    started = False
    while at < end:
        start, byte = at, block[at]
        if byte & 0x80:
            index, at = _integer(block, at, 0x7F)
            if not 0 < index <= len(_STATIC):
                raise BlockError("an index outside of the tables")
            started = True
            yield _Field(*_STATIC[index - 1], start, at)
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
        value_at = at
        coded = block[at] & 0x80
        length, at = _integer(block, at, 0x7F)
        value = block[at : at + length]
        at += length
        if at > end:
            raise BlockError("the block ends within a field")
        started = True
        if name in _WANTED:
            yield _Field(name, _text(value) if coded else value, start, at)
        else:
            yield _Field(name, _UNREAD, start, at, value_at)


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


_names: Final[dict[bytes, bytes]] = {}
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
    method, content_type = found.get(b":method", b""), found.get(b"content-type", b"")
    encoding = found.get(b"grpc-encoding", b"")
    return Head(
        found.get(b":path", b""),
        method,
        content_type,
        int(length) if length and length.isdigit() and len(length) < 12 else None,
        _timeout_us(found.get(b"grpc-timeout", b"")),
        encoding,
        trailers=not pseudo,
        malformed=malformed,
        plain=method == b"POST"
        and content_type.startswith(b"application/grpc")
        and encoding in ENCODINGS
        and length is None
        and bool(pseudo)
        and not malformed,
    )


def _timeout_us(text: bytes) -> int | None:
    """A grpc-timeout in microseconds; None if there is none that can be read."""
    number, unit = text[:-1], _TIMEOUT_UNITS_US.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(number) * unit if unit else int(number) // 1_000
