"""Descriptors as people type them and see them (`key=value,key=value`), and overrides of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ratelimit_service.errors import RateLimitError
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.text.display import count, in_seconds, printable

__all__ = ["DescriptorTextError", "format_descriptor", "override_text", "read_descriptor"]


class DescriptorTextError(RateLimitError):
    """A text that is no descriptor. The text of the error says why."""


def read_descriptor(text: str) -> Descriptor:
    r"""Reads `key=value,key=value`, with `\` before a comma, equals sign or backslash in them.

    Raises DescriptorTextError.
    """
    entries = []
    for part in _split(text, ","):
        key, *values = _split(part, "=")
        if not key:
            raise DescriptorTextError(
                f"{text!r} has an entry without key: write key=value,key=value"
            )
        entries.append(Entry(_plain(key), _plain("=".join(values))))
    return Descriptor(tuple(entries))


def format_descriptor(descriptor: Descriptor) -> str:
    """Writes a descriptor's entries as `read_descriptor` reads them."""
    return ",".join(
        "=".join(re.sub(r"([\\,=])", r"\\\1", part) for part in entry if part or part is entry.key)
        for entry in descriptor.entries
    )


def override_text(fields: Mapping[str, Any]) -> str:
    """An override in words on one line, as `Override.fields` or JSON has it.

    As `ban 5d1f02ab31: api user=eve, until 2026-07-01T16:03:00Z, by alice: reason`.
    """
    number = "".join(
        f", {count(fields[name], noun)}"
        for name, noun in (("requests", "request"), ("hits", "hit"))
        if name in fields
    )
    name = f", limit {fields['limit']}" if "limit" in fields else ""
    until = f", until {in_seconds(fields['until'])}" if "until" in fields else ""
    who = f", by {fields['who']}" if "who" in fields else ""
    reason = f": {fields['reason']}" if "reason" in fields else ""
    whom = f"{fields['domain']} {_typed(fields['entries'])}"
    return printable(f"{fields['kind']} {fields['id']}: {whom}{number}{name}{until}{who}{reason}")


def _typed(entries: Sequence[Sequence[object]]) -> str:
    """Entries, as JSON has them, as `read_descriptor` reads them."""
    return format_descriptor(
        Descriptor(tuple(Entry(str(key), str(value)) for key, value in entries))
    )


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators that stand behind no backslash."""
    return re.findall(rf"(?:^|{separator})((?:\\.|[^\\{separator}]|\\$)*)", text, re.DOTALL)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
