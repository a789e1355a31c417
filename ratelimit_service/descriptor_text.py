"""Descriptors as people type them and see them: `key=value,key=value`."""

from __future__ import annotations

import re

from ratelimit_service.errors import RateLimitError
from ratelimit_service.model import Descriptor, Entry

__all__ = ["DescriptorTextError", "format_descriptor", "read_descriptor"]


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


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators that stand behind no backslash."""
    return re.findall(rf"(?:^|{separator})((?:\\.|[^\\{separator}]|\\$)*)", text, re.DOTALL)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
