"""Header blocks: from fields (`fields`) to what a gRPC server must know of a request.

After its first call a client is told to use no dynamic table. Once it has said that it does so,
no block depends on another: equal blocks are remembered by their bytes. Some clients acknowledge
the setting but keep their table (grpc-java's okhttp transport); their blocks are read with that
table for as long as they use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import getitem
from typing import ClassVar, Final

from ratelimit_service.service import CALLER_HEADERS, Headers
from ratelimit_service.transport.h2.fields import WANTED, BlockError, Field, FieldReader, unhuffed
from ratelimit_service.transport.h2.huffman import unhuffed_together

__all__ = ["ENCODINGS", "BlockError", "Head", "HeaderReader", "literal"]

ENCODINGS: Final = frozenset({b"", b"identity", b"gzip"})
"""What `grpc-encoding` may say."""

_MAX_REMEMBERED: Final = 1_024
_MAX_LEARNT_BYTES: Final = 1_024
_MAX_NAMELESS: Final = 16

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME_CHARACTERS: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TIMEOUT_UNITS_US: Final = {
    b"H": 3_600_000_000,
    b"M": 60_000_000,
    b"S": 1_000_000,
    b"m": 1_000,
    b"u": 1,
    b"n": 0,
}


@dataclass(frozen=True, slots=True)
class Head:
    """The headers of a request, as far as they matter.

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
    oversized: bool = False
    """Whether the list is above the announced size; then nothing else is known of the headers."""
    plain: bool = False
    """Whether it is a gRPC call with nothing unusual, so that its message follows."""


_Column = tuple[list[int], list[bytes]]
"""One value of many blocks: the bytes that say how long each is and how it is coded, and each."""


class _Likeness:
    """Those parts that the latest blocks of a connection have in common.

    A client that traces sends a new block with every call, which differs from the last in the
    values of one or two headers that do not matter here.
    """

    def __init__(self) -> None:
        self._head: Head | None = None
        self._raw: list[bytes] = []
        self._varying: set[int] = set()
        self._pieces: list[bytes] = []
        self.names: list[bytes] = []
        """Of the headers that vary."""
        self.told: list[tuple[bytes, bytes, int]] | None = None
        """What blocks tell of their callers, once somebody has asked: names and values, or places
        among the values that vary, else -1."""

    def values_of(self, block: bytes) -> list[bytes] | None:
        """The values that vary, each as it is written, behind its length; None of other blocks."""
        # The walk is that of `head_of`, which is asked for every call that is traced: if it took
        # the values as well, to look for a head would take a fifth longer.
        if not self._pieces:
            return None
        *pieces, last = self._pieces
        values, at = [], 0
        try:
            for piece in pieces:
                if not block.startswith(piece, at):
                    return None
                at += len(piece)
                length = block[at] & 0x7F
                if length == 0x7F:
                    return None
                stop = at + 1 + length
                values.append(block[at:stop])
                at = stop
        except IndexError:
            return None
        return values if block[at:] == last else None

    def columns_of(self, blocks: Sequence[bytes]) -> list[_Column] | None:
        """The values that vary of many blocks; None unless all of these are alike."""
        places = self._places_of(blocks)
        if places is None:
            return None
        return [
            (
                lengths,
                [
                    block[at + 1 : at + 1 + (length & 0x7F)]
                    for block, at, length in zip(blocks, starts, lengths, strict=True)
                ],
            )
            for starts, lengths in places
        ]

    def heads_of(self, blocks: Sequence[bytes]) -> Head | None:
        """The head of many blocks, as `head_of`; None unless all of these are alike."""
        return None if self._places_of(blocks) is None else self._head

    def _places_of(self, blocks: Sequence[bytes]) -> list[tuple[list[int], list[int]]] | None:
        """Where each value that varies begins in each block, and the byte that says how long it is.

        None unless all blocks are alike.
        """
        if not self._pieces:
            return None
        *pieces, last = self._pieces
        places = []
        stops = [0] * len(blocks)
        try:
            for piece in pieces:
                if not all(map(bytes.startswith, blocks, repeat(piece), stops)):
                    return None
                size = len(piece)
                starts = [stop + size for stop in stops]
                lengths = list(map(getitem, blocks, starts))
                if 0x7F in lengths or 0xFF in lengths:
                    return None
                stops = [
                    start + 1 + (length & 0x7F)
                    for start, length in zip(starts, lengths, strict=True)
                ]
                places.append((starts, lengths))
        except IndexError:
            return None
        rests = [block[stop:] for block, stop in zip(blocks, stops, strict=True)]
        return places if rests.count(last) == len(rests) else None

    def head_of(self, block: bytes) -> Head | None:
        """The head of a block that differs from the last only where earlier blocks did."""
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

    def learn(self, block: bytes, fields: Sequence[Field], head: Head) -> Head:
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
            self.names, self.told = [], None
            return head
        self._varying.update(differing)
        at, pieces = 0, []
        for number in sorted(self._varying):
            pieces.append(block[at : fields[number].value_at])
            at = fields[number].stop
        self._raw, self._pieces = raw, [*pieces, block[at:]] if pieces else []
        self.names, self.told = [fields[number].name for number in sorted(self._varying)], None
        return self._head


class HeaderReader:
    """Reads the header blocks of one connection, in their order."""

    remembered: ClassVar[dict[bytes, Head]] = {}
    """Heads by their blocks, for all connections whose clients use no dynamic table: then blocks
    do not depend on earlier ones."""

    def __init__(self) -> None:
        self._fields = FieldReader()
        self._tableless = False
        self._independent = False
        """Whether the client uses no table any more, so that no block depends on another."""
        self._likeness = _Likeness()
        self._heads = HeaderReader.remembered
        self.cost_us = 0
        """What the last block that was read has cost."""
        self._callers: FieldReader | None = None
        """What reads what is told of callers, in blocks that depend on no other."""
        self._nameless: set[bytes] = set()
        """Blocks that tell nothing of their caller; most clients send the same ones again."""

    def without_table(self) -> None:
        """Hears that the client has acknowledged that it should use no table.

        Its next block should begin by saying so (RFC 9113, section 4.3.1). A client that does not
        say so goes on with the table that it has.
        """
        self._tableless = True

    def recall(self, block: bytes) -> Head | None:
        """The head of a block if it, or one that differs in nothing that matters, is known."""
        if self._independent:
            return self._heads.get(block) or self._likeness.head_of(block)
        return None

    def count_known(self, wanted: Callable[[Head], bool], blocks: Sequence[bytes]) -> int:
        """How many of the first blocks are known, and have a wanted head."""
        if not self._independent:
            return 0
        head = self._likeness.heads_of(blocks)
        if head is not None:
            return len(blocks) if wanted(head) else 0
        for count, block in enumerate(blocks):
            head = self.recall(block)
            if head is None or not wanted(head):
                return count
        return len(blocks)

    def read(self, block: bytes) -> Head:
        """Reads a complete header block. Raises BlockError."""
        self.cost_us = 0
        return self.recall(block) or self._read(block)

    def read_with_caller(self, block: bytes) -> tuple[Head, Headers]:
        """As `read`, and also the headers that tell something of the caller.

        Where a block depends on the client's table both can be read only together.
        """
        if self._independent:
            return self.read(block), self.caller_headers(block)
        reader = self._fields
        reader.wanted = _WITH_CALLER
        try:
            fields = reader.read(block)
        finally:
            reader.wanted = WANTED
        return self._head_of(block, fields), _of_caller(fields)

    def is_nameless(self, block: bytes) -> bool:
        """Whether a block is known to tell nothing of its caller."""
        return block in self._nameless

    def caller_headers(self, block: bytes) -> Headers:
        """The headers that tell something of the caller, of a block that has been recalled.

        Nothing if one of them is not coded right: nobody has decoded them before.
        """
        if block in self._nameless:
            return ()
        likeness = self._likeness
        try:
            values = likeness.values_of(block)
            if values is None or likeness.told is None:
                found = self._caller_headers(block)
                if values is not None:
                    likeness.told = _places(found, likeness.names)
                return found
            return [
                (name, value if at < 0 else _value(values[at])) for name, value, at in likeness.told
            ]
        except BlockError:
            return ()

    def callers_columns(self, blocks: Sequence[bytes]) -> Mapping[bytes, list[bytes]] | None:
        """The same of blocks that nobody has read: each header by its name, value by value.

        None if they are not known to be alike, or a value cannot be decoded with the others.
        """
        likeness = self._likeness
        if likeness.told is None:
            return None
        columns = likeness.columns_of(blocks)
        if columns is None:
            return None
        found: dict[bytes, list[bytes]] = {}
        for name, value, at in likeness.told:
            values = [value] * len(blocks) if at < 0 else _values(columns[at])
            if values is None:
                return None
            found[name] = values
        return found

    def read_caller(self, block: bytes) -> Headers:
        """The same of one block that nobody has read; nothing if it cannot be read."""
        try:
            self.read(block)
        except BlockError:
            return ()
        return self.caller_headers(block)

    def _caller_headers(self, block: bytes) -> Headers:
        """Reads them field by field. Raises BlockError."""
        if self._callers is None:
            self._callers = FieldReader(CALLER_HEADERS)
            self._callers.table_bytes = 0
            self._callers.seal()
        found = _of_caller(self._callers.read(block))
        if not found and len(block) <= _MAX_LEARNT_BYTES:
            if len(self._nameless) >= _MAX_NAMELESS:
                self._nameless.clear()
            self._nameless.add(block)
        return found

    def _read(self, block: bytes) -> Head:
        return self._head_of(block, self._fields.read(block))

    def _head_of(self, block: bytes, fields: Sequence[Field]) -> Head:
        reader = self._fields
        self.cost_us = reader.cost_us
        independent = self._independent
        if self._tableless and not independent and not reader.table_bytes:
            self._independent = True
            reader.seal()
        if reader.oversized:
            return _OVERSIZED
        head = _judged((field.name, field.value) for field in fields)
        if not independent:
            return head
        head = self._likeness.learn(block, fields, head)
        if len(block) <= _MAX_LEARNT_BYTES and not self._likeness.head_of(block):
            if len(self.remembered) >= _MAX_REMEMBERED:
                self.remembered.clear()
            self.remembered[block] = head
        return head


def literal(name: bytes, value: bytes) -> bytes:
    """A field as we send it: not indexed, not Huffman-coded (RFC 7541, section 6.2.2)."""
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


_OVERSIZED: Final = Head(oversized=True)

_WITH_CALLER: Final = WANTED | CALLER_HEADERS


def _places(headers: Headers, names: Sequence[bytes]) -> list[tuple[bytes, bytes, int]] | None:
    """Where headers stand among those that vary; None if a name is there twice."""
    if len(set(names)) < len(names) or len({name for name, _ in headers}) < len(headers):
        return None
    return [(name, value, names.index(name) if name in names else -1) for name, value in headers]


def _values(column: _Column) -> list[bytes] | None:
    """Short values, decoded; None if some are not decoded together."""
    lengths, values = column
    if min(lengths) & 0x80:
        return unhuffed_together(values)
    if not max(lengths) & 0x80:
        return values
    coded = [value for length, value in zip(lengths, values, strict=True) if length & 0x80]
    texts = unhuffed_together(coded)
    if texts is None:
        return None
    decoded = iter(texts)
    return [
        next(decoded) if length & 0x80 else value
        for length, value in zip(lengths, values, strict=True)
    ]


def _value(written: bytes) -> bytes:
    """A short value as it is written, with its length in front. Raises BlockError."""
    return unhuffed(written[1:]) if written[0] & 0x80 else written[1:]


def _of_caller(fields: Sequence[Field]) -> Headers:
    return [(field.name, field.value) for field in fields if field.name in CALLER_HEADERS]


def _judged(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """The head that the fields make, checked by RFC 9113, sections 8.2 and 8.3."""
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
        if name in WANTED:
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
    """A grpc-timeout in microseconds; None if it cannot be read."""
    number, unit = text[:-1], _TIMEOUT_UNITS_US.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(number) * unit if unit else int(number) // 1_000
