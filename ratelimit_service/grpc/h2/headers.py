"""Header blocks: what is known of them from earlier ones, and what must be read (`fields`).

After its first call a client is told to use no dynamic table. Once it has said that it does so,
no block depends on another: equal blocks are remembered by their bytes. Some clients acknowledge
the setting but keep their table (grpc-java's okhttp transport); their blocks are read with that
table for as long as they use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from ratelimit_service.grpc.h2.fields import WANTED, BlockError, Field, FieldReader
from ratelimit_service.grpc.h2.head import Head, interned, judged
from ratelimit_service.grpc.h2.header_template import MAX_LEARNT_BYTES, HeaderTemplate, value_in
from ratelimit_service.model.call_origin import CALLER_HEADERS, Headers

__all__ = ["HeaderReader", "literal"]

_MAX_REMEMBERED: Final = 1_024
_MAX_NAMELESS: Final = 16


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
        self._template = HeaderTemplate()
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
            return self._heads.get(block) or self._template.head_of(block)
        return None

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
        template = self._template
        try:
            values = template.values_of(block)
            if values is None or template.caller_fields is None:
                headers = self._caller_headers(block)
                if values is not None:
                    template.caller_fields = _places(headers, template.names)
                return headers
            return [
                (name, value if at < 0 else value_in(values[at]))
                for name, value, at in template.caller_fields
            ]
        except BlockError:
            return ()

    def read_caller(self, block: bytes) -> Headers:
        """As `caller_headers`, of a block that nobody has read; nothing if it cannot be read."""
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
        headers = _of_caller(self._callers.read(block))
        if not headers and len(block) <= MAX_LEARNT_BYTES:
            if len(self._nameless) >= _MAX_NAMELESS:
                self._nameless.clear()
            self._nameless.add(block)
        return headers

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
        head = interned(judged((field.name, field.value) for field in fields))
        if not independent:
            return head
        head = self._template.learn(block, fields, head)
        if len(block) <= MAX_LEARNT_BYTES and not self._template.head_of(block):
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


def _of_caller(fields: Sequence[Field]) -> Headers:
    return [(field.name, field.value) for field in fields if field.name in CALLER_HEADERS]
