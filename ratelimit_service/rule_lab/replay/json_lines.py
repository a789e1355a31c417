"""Many lines of JSON at once, of which only some fields are wanted: msgspec's one door.

It takes only what is usual. Of anything else it says nothing, and who asks reads line by line,
which also says what is wrong. It is not compiled, since msgspec makes its classes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from ratelimit_service.model import Entry

__all__ = ["Decisions", "FieldsReader", "Value", "decisions", "plain_entries"]

_T = TypeVar("_T")

Value = str | int | None
"""A field of an access log, as it nearly always is."""


def _objects(decoder: msgspec.json.Decoder[_T], lines: Sequence[bytes]) -> list[_T]:
    """The objects of lines that are one each; none if a line might be anything else."""
    try:
        return list(map(decoder.decode, lines))
    except (ValueError, RecursionError):
        return []


class _Decision(msgspec.Struct, gc=False):
    """What a replay needs of a line of our decision log."""

    v: Literal[1]
    time: str
    domain: str
    descriptors: msgspec.Raw
    hits: int = 0
    code: str = ""
    sample: float | msgspec.UnsetType = msgspec.UNSET
    hashed: bool | msgspec.UnsetType = msgspec.UNSET
    unreadable: Literal[0] = 0
    settle: Literal[0] = 0


class Decisions(NamedTuple):
    """Lines of a decision log, field by field; `descriptors` as they stand there."""

    times: list[str]
    domains: list[str]
    descriptors: list[bytes]
    hits: list[int]
    codes: list[str]
    sampled: bool
    hashed: bool


_decision_lines: Final = msgspec.json.Decoder(_Decision)


def decisions(lines: Sequence[bytes]) -> Decisions | None:
    """Lines of a decision log, if each is one request of the usual form; else None."""
    decoded = _objects(_decision_lines, lines)
    if not decoded:
        return None
    # Interpreted, as this module is, a field costs half of what it costs by `attrgetter`.
    return Decisions(
        [each.time for each in decoded],
        [each.domain for each in decoded],
        # This makes bytes of all at once.
        b"\n".join([each.descriptors for each in decoded]).split(b"\n"),
        [each.hits for each in decoded],
        [each.code for each in decoded],
        sampled=[each.sample for each in decoded].count(msgspec.UNSET) < len(lines),
        hashed=[each.hashed for each in decoded].count(msgspec.UNSET) < len(lines),
    )


class _Plain(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A descriptor that has nothing but entries."""

    entries: tuple[Entry, ...]


_plain: Final = msgspec.json.Decoder(tuple[_Plain, ...])


def plain_entries(descriptors: bytes) -> list[tuple[Entry, ...]]:
    """The entries of each descriptor of a line; nothing if one of them has more."""
    try:
        return [each.entries for each in _plain.decode(descriptors)]
    except (ValueError, RecursionError):
        return []


class FieldsReader:
    """Reads some fields of each line of an access log."""

    def __init__(self, names: Sequence[str]) -> None:
        """The fields' names; one with a dot in it might lead into an object, which is not usual."""
        self._decoder: msgspec.json.Decoder[msgspec.Struct] | None = None
        self._fields: Sequence[attrgetter[Value]] = ()
        if any("." in name for name in names):
            return
        attributes = {name: f"field_{attribute}" for attribute, name in enumerate(names)}
        try:
            made = msgspec.defstruct(
                "Access",
                [(attribute, Value, None) for attribute in attributes.values()],
                rename={attribute: name for name, attribute in attributes.items()},
                gc=False,
            )
        except ValueError:  # as of a quote in a name
            return
        self._decoder = msgspec.json.Decoder(made)
        self._fields = [attrgetter(attributes[name]) for name in names]

    def read(self, lines: Sequence[bytes]) -> list[list[Value]]:
        """For each field what lines say, None where it is missing.

        Nothing if a line might not be an object, or a field is of another kind.
        """
        if self._decoder is None or not (decoded := _objects(self._decoder, lines)):
            return []
        return [list(map(field, decoded)) for field in self._fields]
