"""What a caller asks: a domain and, in order, the descriptors of one request."""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_service.model.limit import Limit

__all__ = ["Descriptor", "Entry", "Request"]


class Entry(NamedTuple):
    """One key and its value; the value may be empty."""

    key: str
    value: str


class Descriptor(NamedTuple):
    """Ordered entries, with what the caller says about them.

    `limit` overrides the rules. `hits_addend` overrides the request's; 0 is a peek, None says
    nothing. With `is_negative_hits` the hits are given back.
    """

    entries: tuple[Entry, ...]
    limit: Limit | None = None
    hits_addend: int | None = None
    is_negative_hits: bool = False


class Request(NamedTuple):
    """One call of ShouldRateLimit; `hits_addend` 0 means unset, that is 1."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits_addend: int = 0
