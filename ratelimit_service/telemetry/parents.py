"""What a call's headers name: its trace, by W3C's Trace Context or B3 of either kind, and its id.

https://www.w3.org/TR/trace-context/ and https://github.com/openzipkin/b3-propagation
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ratelimit_service.service import REQUEST_ID, Headers

__all__ = ["Parent", "parent_of", "request_id_of"]


class Parent(NamedTuple):
    """A caller's span; its ids are hexadecimal digits, "" for those that it has not told.

    `sampled` is None if the caller does not say. `state` is W3C's `tracestate`, as it came.
    """

    trace_id: str = ""
    span_id: str = ""
    sampled: bool | None = None
    state: str = ""


_UNKNOWN: Final = Parent()

_W3C: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_B3: Final = re.compile(
    r"([0-9a-f]{16}|[0-9a-f]{32})-([0-9a-f]{16})(?:-([01d])(?:-[0-9a-f]{16})?)?"
)
_TRACE_ID: Final = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_SAMPLED: Final = {"1": True, "true": True, "d": True, "0": False, "false": False}
_MOST_STATE: Final = 512
"""Characters of a `tracestate` that are kept, as W3C demands."""

_MOST_REQUEST_ID: Final = 128
"""Characters of a request's id that are kept."""


def parent_of(headers: Headers) -> Parent:
    """The caller's span; one without ids if there is none, or none that can be read."""
    values: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1")
        text = value.decode("latin-1").strip()
        values[key] = f"{values[key]},{text}" if key == "tracestate" and key in values else text
    return _by_w3c(values) or _by_b3(values) or _by_many_b3(values)


def request_id_of(headers: Headers) -> str:
    """What the caller calls its request (`x-request-id`), cut if it is long; "" if it does not."""
    for name, value in headers:
        if name == REQUEST_ID:
            return value[:_MOST_REQUEST_ID].decode("latin-1").strip()
    return ""


def _by_w3c(headers: Mapping[str, str]) -> Parent | None:
    ids = _W3C.fullmatch(headers.get("traceparent", ""))
    if ids is None or (ids[4] and ids[0].startswith("00")):
        return None
    state = headers.get("tracestate", "")
    flags = int(ids[3], 16)
    return _parent(ids[1], ids[2], bool(flags & 1), state if len(state) <= _MOST_STATE else "")


def _by_b3(headers: Mapping[str, str]) -> Parent | None:
    text = headers.get("b3", "").lower()
    if text in {"0", "1", "d"}:  # only whether to sample, and no ids
        return Parent(sampled=_SAMPLED[text])
    ids = _B3.fullmatch(text)
    return _parent(ids[1], ids[2], _SAMPLED.get(ids[3] or "")) if ids else None


def _by_many_b3(headers: Mapping[str, str]) -> Parent:
    sampled = _SAMPLED.get(headers.get("x-b3-sampled", "").lower())
    if headers.get("x-b3-flags") == "1":  # debug: always sampled
        sampled = True
    trace_id = headers.get("x-b3-traceid", "").lower()
    span_id = headers.get("x-b3-spanid", "").lower()
    if _TRACE_ID.fullmatch(trace_id) and _SPAN_ID.fullmatch(span_id):
        return _parent(trace_id, span_id, sampled) or Parent(sampled=sampled)
    return _UNKNOWN if sampled is None else Parent(sampled=sampled)


def _parent(trace_id: str, span_id: str, sampled: bool | None, state: str = "") -> Parent | None:
    """None for ids of zeros, which are none."""
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return Parent(trace_id.zfill(32), span_id, sampled, state)
