"""The types that settings can have: how a value is written, read, bounded and shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import HEADER_NAME, CountDenied, FailurePolicy
from ratelimit_service.text.addresses import split_address, tidy, unix_path
from ratelimit_service.text.durations import parse_duration

__all__ = [
    "ADDRESS",
    "ADMIN_ADDRESS",
    "ADMIN_ADDRESS_BY_DEFAULT",
    "COUNT",
    "COUNT_DENIED",
    "DEFAULT_ADMIN",
    "DURATION",
    "FAILURE_POLICY",
    "FILE",
    "GRPC_ADDRESS",
    "HEADER",
    "INTERVAL",
    "KEY_PREFIX",
    "LOG_LEVEL",
    "NAME",
    "NAMES",
    "OPTIONAL_ADDRESS",
    "PAIRS",
    "PATH",
    "POSITIVE",
    "RATIO",
    "SAMPLE",
    "SWITCH",
    "TAGS",
    "URL",
    "URL_PATH",
    "ValueType",
    "checked",
    "choice",
    "is_on",
    "split_pairs",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """How values of a setting are written; "" as `metavar` marks a switch.

    `parse` raises SettingsError, which says what is allowed; `show` writes a value as it would
    be typed.
    """

    metavar: str
    parse: Callable[[str], T]
    show: Callable[[T], str] = str


def _show_duration(duration_us: int) -> str:
    milliseconds = duration_us // 1_000
    return f"{milliseconds}ms" if milliseconds % 1_000 else f"{milliseconds // 1_000}s"


def split_pairs(text: str) -> dict[str, str]:
    """Names and values of `NAME=VALUE,…`; envoyproxy/ratelimit writes `NAME:VALUE,…`."""
    pairs = {}
    for part in filter(None, text.split(",")):
        pair = re.fullmatch(r"\s*([^=:]+)[=:](.*)", part)
        if pair is None:
            raise SettingsError(f"{part!r} is no pair: write NAME=VALUE,NAME=VALUE")
        pairs[pair[1].strip()] = pair[2].strip()
    return pairs


def _pairs(text: str) -> str:
    split_pairs(text)
    return text


def _address(text: str) -> str:
    split_address(text)
    return text


def _url(text: str) -> str:
    return text.strip() if text.startswith("file:") else tidy(text)


def _address_or_nothing(text: str) -> str:
    return _address(text) if text else ""


def _admin_address(text: str) -> str:
    """Empty for none."""
    if text in {"", "none"}:
        return ""
    return text if text == DEFAULT_ADMIN else _grpc_address(text)


def _grpc_address(text: str) -> str:
    if unix_path(text) is None:
        split_address(text)
    return text


def _one_of(text: str, *allowed: str) -> str:
    if text.lower() not in allowed:
        raise SettingsError(f"{text!r} is unknown: use {' or '.join(allowed)}")
    return text.lower()


def choice(metavar: str, *allowed: str) -> ValueType[str]:
    """One of these words, in capitals or not."""
    return ValueType(metavar, lambda text: _one_of(text, *allowed))


_LOG_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "critical",
    "panic": "critical",
}


def _log_level(text: str) -> str:
    return _LOG_LEVELS[_one_of(text, *_LOG_LEVELS)]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{text!r} is no number from 1 upwards")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise SettingsError(f"{text!r} is no number from 0 upwards")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise SettingsError(f"{text!r} is no number from 0 to 1")
    return ratio


def _sample(text: str) -> str:
    for name, ratio in split_pairs(text).items():
        if name not in {"denied", "allowed"}:
            raise SettingsError(f"{name!r} is no kind of decision: use denied and allowed")
        _ratio(ratio)
    return text


def _header_name(text: str) -> str:
    if text and not HEADER_NAME.fullmatch(text):
        raise SettingsError(f"{text!r} is no header name: use letters, digits and -")
    return text


def _key_prefix(text: str) -> str:
    if not re.fullmatch(r"[!-z|~]{0,64}", text):
        raise SettingsError(
            f"{text!r} is no key prefix: use at most 64 letters, digits and marks, but no braces"
        )
    return text


def _tags(text: str) -> str:
    for pair in filter(None, text.split(",")):
        key, colon, _ = pair.partition(":")
        if not (key and colon):
            raise SettingsError(f"{pair!r} is no tag: write KEY:VALUE,KEY:VALUE")
    return text


def _interval(text: str) -> int:
    interval_us = parse_duration(text)
    if interval_us < _LEAST_INTERVAL_US:
        raise SettingsError(f"{text!r} is too short: the least is 100ms")
    return interval_us


_LEAST_INTERVAL_US = 100_000


def _url_path(text: str) -> str:
    if not re.fullmatch(r"/[!-~]*", text):
        raise SettingsError(f"{text!r} is no path: write /metrics")
    return text


def _switch(text: str) -> bool:
    """A boolean as Go's ParseBool reads it, which is how the reference's users write it."""
    if text in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if text in {"0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise SettingsError(f"{text!r} is neither true nor false")


def checked(name: str, text: str, parse: Callable[[str], object]) -> str:
    """The text of a variable, if it can be read. Raises SettingsError with the variable's name."""
    try:
        parse(text)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error
    return text


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on, by its variable. Raises SettingsError with the variable's name."""
    return _switch(checked(name, environ.get(name) or "false", _switch))


DEFAULT_ADMIN = "default"
"""The value of an admin address that nobody has asked for: it stands for the one below."""
ADMIN_ADDRESS_BY_DEFAULT = "127.0.0.1:8082"

ADDRESS = ValueType("HOST:PORT", _address)
ADMIN_ADDRESS = ValueType("HOST:PORT", _admin_address, lambda text: text or "none")
OPTIONAL_ADDRESS = ValueType("HOST:PORT", _address_or_nothing)
"""Empty for none."""
COUNT = ValueType("N", _count)
DURATION = ValueType("DURATION", parse_duration, _show_duration)
"""Microseconds."""
COUNT_DENIED: ValueType[CountDenied | None] = ValueType(
    "WHICH",
    lambda text: CountDenied(_one_of(text, *CountDenied)) if text else None,
    lambda which: which or "",
)
"""Empty for what the source of the rules says."""
FAILURE_POLICY = ValueType("POLICY", lambda text: FailurePolicy(_one_of(text, *FailurePolicy)))
FILE = ValueType("FILE", str)
GRPC_ADDRESS = ValueType("HOST:PORT", _grpc_address)
HEADER = ValueType("NAME", _header_name)
"""The name of a header; empty for the usual one."""
INTERVAL = ValueType("DURATION", _interval, _show_duration)
"""Microseconds between two times that something is done."""
KEY_PREFIX = ValueType("TEXT", _key_prefix)
LOG_LEVEL = ValueType("LEVEL", _log_level)
NAME = ValueType("NAME", str)
NAMES = ValueType("NAME,…", str)
PAIRS = ValueType("NAME=VALUE,…", _pairs)
PATH = ValueType("PATH", str)
POSITIVE = ValueType("N", _positive)
RATIO = ValueType("RATIO", _ratio)
TAGS = ValueType("KEY:VALUE,…", _tags)
SAMPLE = ValueType("CODE=RATIO,…", _sample)
SWITCH = ValueType("", _switch, lambda on: str(on).lower())
URL = ValueType("URL", _url)
URL_PATH = ValueType("PATH", _url_path)
