"""Header blocks that differ from the one before only in some values, and so need not be read.

What must not live here: how fields are coded (`fields`), and other blocks (`headers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratelimit_service.grpc.h2.fields import WANTED, BlockError, Field, unhuffed
from ratelimit_service.grpc.h2.head import TIMEOUT, Head, interned, timeout_us_of

__all__ = ["MAX_LEARNT_BYTES", "HeaderTemplate", "value_in"]

MAX_LEARNT_BYTES: Final = 1_024
"""Larger blocks are read each time."""

_MAX_HEADS: Final = 64


class HeaderTemplate:
    """Those parts that the latest blocks of a connection have in common.

    A client that traces sends a new block with every call, which differs from the last in the
    values of one or two headers that do not matter here. And clients whose callers have deadlines
    say with every call how much time is left (`grpc-timeout`).
    """

    def __init__(self) -> None:
        self._head: Head | None = None
        """That of the latest block."""
        self._timeout_at = -1
        """The index of `grpc-timeout` among the values that vary; -1 if it is always the same."""
        self._heads: dict[int, Head] = {}
        """The heads of such blocks, by how long their callers wait."""
        self._raw: list[bytes] = []
        self._varying: set[int] = set()
        self._chunks: list[bytes] = []
        self.names: list[bytes] = []
        """Of the headers that vary."""
        self.caller_fields: list[tuple[bytes, bytes, int]] | None = None
        """What blocks tell of their callers, once somebody has asked: of each header the name, the
        value, and its index among the values that vary; it is -1 if the value never
        varies."""

    def values_of(self, block: bytes) -> list[bytes] | None:
        """The values that vary, each as it is written, behind its length; None of other blocks."""
        # The walk is that of `head_of`, which is asked for every call that is traced: if it took
        # the values as well, to look for a head would take a fifth longer.
        if not self._chunks:
            return None
        *chunks, last = self._chunks
        values, at = [], 0
        try:
            for chunk in chunks:
                if not block.startswith(chunk, at):
                    return None
                at += len(chunk)
                length = block[at] & 0x7F
                if length == 0x7F:
                    return None
                stop = at + 1 + length
                values.append(block[at:stop])
                at = stop
        except IndexError:
            return None
        return values if at + len(last) == len(block) and block.endswith(last) else None

    def _head_saying(self, timeout: bytes) -> Head | None:
        """The head of a block with this `grpc-timeout`; None if that cannot be read."""
        timeout_us = timeout_us_of(timeout)
        if timeout_us is None or self._head is None:
            return None
        head = self._heads.get(timeout_us)
        if head is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[timeout_us] = interned(replace(self._head, timeout_us=timeout_us))
        return head

    def head_of(self, block: bytes) -> Head | None:
        """The head of a block that differs from the last only where earlier blocks did."""
        if not self._chunks:
            return None
        if self._timeout_at >= 0:
            return self._head_with_timeout(block)
        *chunks, last = self._chunks
        at = 0
        try:
            for chunk in chunks:
                if not block.startswith(chunk, at):
                    return None
                at += len(chunk)
                length = block[at] & 0x7F
                if length == 0x7F:
                    return None
                at += 1 + length
        except IndexError:
            return None
        return self._head if at + len(last) == len(block) and block.endswith(last) else None

    def _head_with_timeout(self, block: bytes) -> Head | None:
        """The same where `grpc-timeout` is one of the values that vary."""
        values = self.values_of(block)
        if values is None:
            return None
        try:
            return self._head_saying(value_in(values[self._timeout_at]))
        except BlockError:
            return None

    def learn(self, block: bytes, fields: Sequence[Field], head: Head) -> Head:
        """Compares a block with the one before; returns its head, the same one if they agree."""
        raw = [block[field.start : field.stop] for field in fields]
        differing = [
            number
            for number, (one, other) in enumerate(zip(raw, self._raw, strict=False))
            if one != other
        ]
        if (
            self._head is None
            or not _are_alike(self._head, head)
            or len(raw) != len(self._raw)
            or len(block) > MAX_LEARNT_BYTES
            or not _may_vary(fields, differing)
        ):
            self._head, self._raw, self._varying, self._chunks = head, raw, set(), []
            self.names, self.caller_fields, self._timeout_at = [], None, -1
            self._heads.clear()
            return head
        self._varying.update(differing)
        at, chunks = 0, []
        for number in sorted(self._varying):
            chunks.append(block[at : fields[number].value_at])
            at = fields[number].stop
        self._raw, self._chunks = raw, [*chunks, block[at:]] if chunks else []
        self.names, self.caller_fields = (
            [fields[number].name for number in sorted(self._varying)],
            None,
        )
        if TIMEOUT not in self.names:
            return self._head
        self._timeout_at = self.names.index(TIMEOUT)
        self._head = head
        return head if head.timeout_us is None else self._heads.setdefault(head.timeout_us, head)


def value_in(written: bytes) -> bytes:
    """A short value as it is written, with its length in front. Raises BlockError."""
    return unhuffed(written[1:]) if written[0] & 0x80 else written[1:]


def _are_alike(one: Head, other: Head) -> bool:
    """Whether heads differ in nothing, or only in how long their callers wait."""
    if one.timeout_us is not None and other.timeout_us is not None:
        one = replace(one, timeout_us=other.timeout_us)
    return one == other


def _may_vary(fields: Sequence[Field], numbers: Sequence[int]) -> bool:
    """Whether the fields of these numbers may be others in each block that is alike."""
    names = [fields[number].name for number in numbers]
    if TIMEOUT in names and [field.name for field in fields].count(TIMEOUT) > 1:
        return False  # the last one holds
    return all(name == TIMEOUT or name not in WANTED for name in names) and all(
        fields[number].value_at for number in numbers
    )
