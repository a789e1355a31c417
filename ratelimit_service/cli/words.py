"""What people type for descriptors and limits, and how a descriptor is written back."""

from __future__ import annotations

import datetime
import re

import click

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import MAX_ADDEND, SECOND_US, WEEKDAYS, Descriptor, Limit, Unit
from ratelimit_service.text.addresses import split_address, unix_path
from ratelimit_service.text.descriptors import (
    DescriptorTextError,
    format_descriptor,
    read_descriptor,
)
from ratelimit_service.text.display import is_utf8
from ratelimit_service.text.durations import parse_duration

__all__ = [
    "duration",
    "format_descriptor",
    "grpc_address",
    "moment",
    "parse_descriptor",
    "parse_limit",
    "utf8",
]

_LIMIT = re.compile(r"(\d+)/(\d*)([a-z]+?)s?")


def parse_descriptor(text: str) -> Descriptor:
    """As `read_descriptor`. Raises click.UsageError, also for what is no UTF-8."""
    utf8(text)
    try:
        return read_descriptor(text)
    except DescriptorTextError as error:
        raise click.UsageError(str(error)) from error


def utf8(text: str) -> str:
    """The text itself, as the type of what is sent somewhere. Raises click.UsageError."""
    if not is_utf8(text):
        raise click.UsageError(f"{text!r} is no UTF-8")
    return text


def parse_limit(text: str) -> Limit:
    """Reads `N/UNIT`, as in `10/minute` or `5/2hours`. Raises click.UsageError."""
    parts = _LIMIT.fullmatch(text)
    unit = Unit.__members__.get(parts[3].upper()) if parts else None
    if parts is None or unit is None or int(parts[1]) > MAX_ADDEND or parts[2] == "0":
        units = ", ".join(unit.name.lower() for unit in Unit)
        raise click.UsageError(
            f"--limit {text!r}: write N/UNIT, as in 10/minute; units are {units}"
        )
    return Limit(int(parts[1]), unit, int(parts[2] or 1))


def moment(flag: str, text: str, now_us: int) -> int:
    """A moment in microseconds: a day's begin in UTC, by its name or date, or RFC 3339.

    The name is of the next such day after today. Raises click.UsageError.
    """
    now = datetime.datetime.fromtimestamp(now_us // SECOND_US, datetime.UTC)
    if text.lower() in WEEKDAYS:
        days = (WEEKDAYS.index(text.lower()) - now.weekday() - 1) % 7 + 1
        time = datetime.datetime.combine(now.date(), datetime.time(), datetime.UTC)
        time += datetime.timedelta(days=days)
    else:
        try:
            time = datetime.datetime.fromisoformat(text)
            time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
            time = time.astimezone(datetime.UTC)  # there it may be outside of the calendar
        except (ValueError, OverflowError) as error:
            raise click.UsageError(
                f"{flag} {text!r} is no time: write monday, 2026-01-31 or 2026-01-31T14:03Z"
            ) from error
    return int(time.replace(microsecond=0).timestamp()) * SECOND_US


def duration(_: click.Context, flag: click.Parameter, text: str) -> int:
    """An option's duration in microseconds. Raises click.UsageError, which names the option."""
    try:
        return parse_duration(text)
    except SettingsError as error:
        raise click.UsageError(f"{flag.opts[0]} {error}") from error


def grpc_address(_: click.Context, flag: click.Parameter, text: str) -> str:
    """An option's `HOST:PORT` or `unix:PATH`. Raises click.UsageError, which names the option."""
    try:
        if unix_path(text) is None:
            split_address(text)
    except SettingsError as error:
        raise click.UsageError(
            f"{flag.opts[0]} {text!r} is no address of a gRPC port: write HOST:PORT, as in "
            "localhost:8081, or unix:PATH"
        ) from error
    return text
