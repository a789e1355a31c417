"""What people type for descriptors and limits, and how a descriptor is written back."""

from __future__ import annotations

import re

import click

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import MAX_ADDEND, Descriptor, Entry, Limit, Unit
from ratelimit_service.settings import parse_duration

__all__ = ["duration", "format_descriptor", "parse_descriptor", "parse_limit"]

_LIMIT = re.compile(r"(\d+)/(\d*)([a-z]+?)s?")


def parse_descriptor(text: str) -> Descriptor:
    r"""Reads `key=value,key=value`, with `\` before a comma, equals sign or backslash in them."""
    entries = []
    for part in _split(text, ","):
        key, *values = _split(part, "=")
        if not key:
            raise click.UsageError(f"{text!r} has an entry without key: write key=value,key=value")
        entries.append(Entry(_plain(key), _plain("=".join(values))))
    return Descriptor(tuple(entries))


def format_descriptor(descriptor: Descriptor) -> str:
    """Writes a descriptor's entries as `parse_descriptor` reads them."""
    return ",".join(
        "=".join(re.sub(r"([\\,=])", r"\\\1", part) for part in entry if part or part is entry.key)
        for entry in descriptor.entries
    )


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators that stand behind no backslash."""
    return re.findall(rf"(?:^|{separator})((?:\\.|[^\\{separator}]|\\$)*)", text, re.DOTALL)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def parse_limit(text: str) -> Limit:
    """Reads `N/UNIT`, as in `10/minute` or `5/2hours`. Raises click.UsageError."""
    found = _LIMIT.fullmatch(text)
    unit = Unit.__members__.get(found[3].upper()) if found else None
    if found is None or unit is None or int(found[1]) > MAX_ADDEND or found[2] == "0":
        units = ", ".join(unit.name.lower() for unit in Unit)
        raise click.UsageError(
            f"--limit {text!r}: write N/UNIT, as in 10/minute; units are {units}"
        )
    return Limit(int(found[1]), unit, int(found[2] or 1))


def duration(_: click.Context, flag: click.Parameter, text: str) -> int:
    """An option's duration in microseconds. Raises click.UsageError, which names the option."""
    try:
        return parse_duration(text)
    except SettingsError as error:
        raise click.UsageError(f"{flag.opts[0]} {error}") from error
